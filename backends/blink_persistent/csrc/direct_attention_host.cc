// The kernel of direct_attention.h on a host, for tests, block after block, or cluster after
// cluster. A text before this one defines BLINK_DIRECTS as for direct_attention_gpu.cu; each becomes
// a function of its name.
#include "blink/attention_host.h"
#include "blink/direct_attention.h"
#include "blink/lanes_host.h"

using blink::AttentionCall, blink::DirectAttention, blink::Faults, blink::HostBlock, blink::HostCluster,
    blink::HostLanes, blink::published_to_attention;

// In the order that a seed decides: on a GPU any block may be the last to arrive.
template <class Kernel>
int run(const AttentionCall& a, uint32_t pages, uint32_t warps, size_t head_dim, bool clustered, uint32_t seed,
        Faults* faults) {
    const size_t page_bytes = 2 * head_dim * a.kv_heads * a.block_size * pages;
    const uint32_t together = clustered ? a.splits : 1;
    std::vector<uint32_t> order(a.rows * a.kv_heads * a.splits / together);
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (const uint32_t number : order) {
        HostCluster cluster(number * together, together, warps, Kernel::shared_bytes(a.heads / a.kv_heads), false,
                            seed + number);
        for (HostBlock& block : cluster.blocks) {
            block.constant = {{a.keys, page_bytes}, {a.values, page_bytes}};
            block.published = published_to_attention(a, head_dim, a.rows * a.heads * a.splits);
        }
        if (!cluster.run([&](HostLanes& lanes) { Kernel(lanes, a).run(); })) return 1;
        for (const HostBlock& block : cluster.blocks) faults->add(block.faults);
    }
    return 0;
}

// Returns the bytes of shared memory for groups of `pages` heads without an attention.
#define BLINK_DIRECT(NAME, WARPS, HEAD_DIM, PROGRAMS, CLUSTERED)                                 \
    extern "C" int NAME(const AttentionCall* a, uint32_t pages, uint32_t seed, Faults* faults) { \
        using Kernel = DirectAttention<HostLanes, WARPS, HEAD_DIM, CLUSTERED>;                   \
        if (a == nullptr) return static_cast<int>(Kernel::shared_bytes(pages));                  \
        return run<Kernel>(*a, pages, WARPS, HEAD_DIM, CLUSTERED, seed, faults);                 \
    }

BLINK_DIRECTS
