// Products for the tensor cores, whose weights are on their way before the kernel ahead has ended
// (wide_product.h). A text before this one defines BLINK_PRODUCTS as one BLINK_PRODUCT for each way of
// cutting.
#include "blink/tiles_gpu.h"
#include "blink/wide_product.h"

#define BLINK_PRODUCT(NAME, TILE_ROWS, ROWS, WINDOWS, STAGES, GROUPS, GATED, OUT)                                    \
    extern "C" __global__ void __launch_bounds__(128 * GROUPS + 64, 1)                                               \
        NAME(const __grid_constant__ blink::TensorMap weight, const __grid_constant__ blink::TensorMap x,            \
             const blink::WideProductCall call) {                                                                    \
        blink::GpuTiles tiles(blink_shared);                                                                         \
        blink::WideProduct<blink::GpuTiles, TILE_ROWS, ROWS, WINDOWS, STAGES, GROUPS, GATED, OUT>::run(tiles, call,  \
                                                                                                       &weight, &x); \
    }

extern __shared__ __align__(1024) unsigned char blink_shared[];

BLINK_PRODUCTS
