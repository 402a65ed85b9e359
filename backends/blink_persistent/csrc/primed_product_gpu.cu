// Products whose weights are on their way before the kernel ahead has ended (primed_product.h).
//
// A text before this one defines BLINK_PRODUCTS as one BLINK_PRODUCT for each way of cutting. Blocks
// of more than 8 warps are bounded as the largest, so that they leave registers for the small
// kernels beside them.
#include "blink/lanes_gpu.h"
#include "blink/primed_product.h"

#define BLINK_PRODUCT(NAME, WARPS, TILES, ROW_TILES, WINDOWS, STAGES, GATED, OUT)                                   \
    extern "C" __global__ void __launch_bounds__(WARPS > 8 ? 512 : 32 * WARPS, 16 / WARPS)                          \
        NAME(const uint16_t* x, const uint16_t* weight, void* out, uint32_t rows, uint32_t size, uint32_t depth,    \
             uint32_t share, uint32_t blocks) {                                                                     \
        const blink::Product product{x, weight, out, rows, size, depth, share, blocks};                             \
        blink::GpuLanes lanes(blink_shared);                                                                        \
        blink::PrimedProduct<blink::GpuLanes, WARPS, TILES, ROW_TILES, WINDOWS, STAGES, GATED, OUT>(lanes, product) \
            .run();                                                                                                 \
    }

extern __shared__ __align__(128) unsigned char blink_shared[];

BLINK_PRODUCTS
