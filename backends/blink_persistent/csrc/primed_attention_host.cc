// The kernel of primed_attention.h on a host, for tests, block after block. A text before this one
// defines BLINK_ATTENTIONS as for primed_attention_gpu.cu; each becomes a function of its name.
#include "blink/lanes_host.h"
#include "blink/primed_attention.h"

using blink::AttentionCall, blink::Faults, blink::HostBlock, blink::HostLanes, blink::PrimedAttention;

// Blocks in the order that a seed decides: on a GPU any may be the last to arrive.
template <class Kernel>
int run(const AttentionCall& a, uint32_t pages, uint32_t warps, size_t head_dim, bool copies_late, uint32_t seed,
        Faults* faults) {
    const size_t width = head_dim * (a.heads + 2 * a.kv_heads), floats = sizeof(float);
    const size_t page_bytes = 2 * head_dim * a.kv_heads * a.block_size * pages;
    std::vector<uint32_t> order(a.rows * a.kv_heads * a.splits);
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (const uint32_t number : order) {
        HostBlock block(number, warps, Kernel::kSharedBytes, copies_late, seed + number);
        block.constant = {{a.keys, page_bytes}, {a.values, page_bytes}};
        block.published = {{a.qkv, floats * a.parts * a.rows * width},
                           {a.partial, floats * a.rows * a.heads * a.splits * head_dim},
                           {a.log_sums, floats * a.rows * a.heads * a.splits}};
        if (!block.run([&](HostLanes& lanes) { Kernel(lanes, a).run(); })) return 1;
        faults->add(block.faults);
    }
    return 0;
}

// Returns the bytes of shared memory without an attention.
#define BLINK_ATTENTION(NAME, WARPS, HEAD_DIM, STAGES)                                                             \
    extern "C" int NAME(const AttentionCall* a, uint32_t pages, bool copies_late, uint32_t seed, Faults* faults) { \
        using Kernel = PrimedAttention<HostLanes, WARPS, HEAD_DIM, STAGES>;                                        \
        if (a == nullptr) return Kernel::kSharedBytes;                                                             \
        return run<Kernel>(*a, pages, WARPS, HEAD_DIM, copies_late, seed, faults);                                 \
    }

BLINK_ATTENTIONS
