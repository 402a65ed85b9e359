// The kernel of even_attention.h on a host, for tests, block after block. A text before this one
// defines BLINK_EVENS as for even_attention_gpu.cu; each becomes a function of its name.
#include "blink/attention_host.h"
#include "blink/even_attention.h"
#include "blink/pages_host.h"

using blink::AttentionCall, blink::EvenAttention, blink::Faults, blink::HostMap, blink::HostPages, blink::kMostGroup,
    blink::PageBlock, blink::published_to_attention;

// In the order that a seed decides: on a GPU any block may be the last to arrive.
template <class Kernel>
int run(const HostMap& keys, const HostMap& values, const AttentionCall& a, uint32_t blocks, bool copies_late,
        uint32_t seed, Faults* faults) {
    std::vector<uint32_t> order(blocks);
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (const uint32_t number : order) {
        PageBlock block(number, blocks, Kernel::kThreads / 32, Kernel::kConsumers,
                        Kernel::shared_bytes(a.heads / a.kv_heads), copies_late, seed + number);
        block.lanes.published = published_to_attention(a, keys.depth, blocks * 2 * kMostGroup);
        if (!block.run([&](HostPages& pages) { Kernel(pages, a).run(&keys, &values); })) return 1;
        faults->add(block.faults());
    }
    return 0;
}

// Returns the bytes of shared memory, but for what aligns it, for groups of `blocks` heads without
// an attention.
#define BLINK_EVEN(NAME, WARPS, HEAD_DIM, PAIRS, RESIDENT)                                                   \
    extern "C" int NAME(const HostMap* keys, const HostMap* values, const AttentionCall* a, uint32_t blocks, \
                        bool copies_late, uint32_t seed, Faults* faults) {                                   \
        using Kernel = EvenAttention<HostPages, WARPS, HEAD_DIM, PAIRS>;                                     \
        if (a == nullptr) return static_cast<int>(Kernel::shared_bytes(blocks));                             \
        return run<Kernel>(*keys, *values, *a, blocks, copies_late, seed, faults);                           \
    }

BLINK_EVENS
