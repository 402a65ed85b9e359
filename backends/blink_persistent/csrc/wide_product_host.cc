// The kernel of wide_product.h on a host, for tests, block after block. A text before this one
// defines BLINK_PRODUCTS as for wide_product_gpu.cu; each becomes a function of its name.
#include "blink/tiles_host.h"
#include "blink/wide_product.h"

using blink::HostMap, blink::HostTiles, blink::TileBlock, blink::TileFaults, blink::WideProduct, blink::WideProductCall;

template <class Kernel, uint32_t kRows, bool kGated>
int run(const uint16_t* x, const uint16_t* weight, uint32_t depth, const WideProductCall& call, bool copies_late,
        uint32_t seed, TileFaults* faults) {
    const HostMap weights{weight, depth, (kGated ? 2 : 1) * call.size, Kernel::kBoxRows, false};
    const HostMap inputs{x, depth, call.rows, kRows, true};
    for (uint32_t number = 0; number < depth / call.share * call.blocks; ++number) {
        TileBlock block(number, Kernel::kThreads / 32, Kernel::kSharedBytes, copies_late, seed + number);
        if (!block.run([&](HostTiles& tiles) { Kernel::run(tiles, call, &weights, &inputs); })) return 1;
        faults->early_reads += block.faults.early_reads;
        faults->outside += block.faults.outside;
        faults->misaligned += block.faults.misaligned;
        faults->arrivals += block.faults.arrivals;
    }
    return 0;
}

// Returns the bytes of shared memory without a call.
#define BLINK_PRODUCT(NAME, TILE_ROWS, ROWS, WINDOWS, STAGES, GROUPS, GATED, OUT)                               \
    extern "C" int NAME(const uint16_t* x, const uint16_t* weight, uint32_t depth, const WideProductCall* call, \
                        bool copies_late, uint32_t seed, TileFaults* faults) {                                  \
        using Kernel = WideProduct<HostTiles, TILE_ROWS, ROWS, WINDOWS, STAGES, GROUPS, GATED, OUT>;            \
        if (call == nullptr) return Kernel::kSharedBytes;                                                       \
        return run<Kernel, ROWS, GATED>(x, weight, depth, *call, copies_late, seed, faults);                    \
    }

BLINK_PRODUCTS
