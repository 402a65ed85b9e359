// The kernel of primed_product.h on a host, for tests, block after block. A text before this one defines
// BLINK_PRODUCTS as for primed_product_gpu.cu; each becomes a function of its name.
#include "blink/lanes_host.h"
#include "blink/primed_product.h"

using blink::Faults, blink::HostBlock, blink::HostLanes, blink::PrimedProduct, blink::Product, blink::Range;

template <class Kernel>
int run(const Product& product, uint32_t warps, uint32_t halves, bool copies_late, uint32_t seed, Faults* faults) {
    const uint32_t splits = product.depth / product.share;
    for (uint32_t number = 0; number < product.blocks * splits; ++number) {
        HostBlock block(number, warps, Kernel::kSharedBytes, copies_late, seed + number);
        block.published = {{product.x, size_t{2} * product.rows * product.depth}};
        block.constant = {{product.weight, size_t{2} * halves * product.size * product.depth}};
        if (!block.run([&](HostLanes& lanes) { Kernel(lanes, product).run(); })) return 1;
        faults->add(block.faults);
    }
    return 0;
}

// Returns the bytes of shared memory for rows = 0.
#define BLINK_PRODUCT(NAME, WARPS, TILES, ROW_TILES, WINDOWS, STAGES, GATED, OUT)                                 \
    extern "C" int NAME(const uint16_t* x, const uint16_t* weight, void* out, uint32_t rows, uint32_t size,       \
                        uint32_t depth, uint32_t share, uint32_t blocks, bool copies_late, uint32_t seed,         \
                        Faults* faults) {                                                                         \
        using Kernel = PrimedProduct<HostLanes, WARPS, TILES, ROW_TILES, WINDOWS, STAGES, GATED, OUT>;            \
        if (rows == 0) return Kernel::kSharedBytes;                                                               \
        return run<Kernel>({x, weight, out, rows, size, depth, share, blocks}, WARPS, GATED ? 2 : 1, copies_late, \
                           seed, faults);                                                                         \
    }

BLINK_PRODUCTS
