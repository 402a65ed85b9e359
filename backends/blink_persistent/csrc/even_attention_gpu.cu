// Decode attention whose blocks have even shares of all rows' KV (even_attention.h).
//
// A text before this one defines BLINK_EVENS as one BLINK_EVEN for each way of cutting.
#include "blink/even_attention.h"
#include "blink/pages_gpu.h"

#define BLINK_EVEN(NAME, WARPS, HEAD_DIM, PAIRS, RESIDENT)                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS + 32, RESIDENT)                                  \
        NAME(const __grid_constant__ blink::TensorMap keys, const __grid_constant__ blink::TensorMap values, \
             const __grid_constant__ blink::AttentionCall attention) {                                       \
        blink::GpuPages pages(blink_shared);                                                                 \
        blink::EvenAttention<blink::GpuPages, WARPS, HEAD_DIM, PAIRS>(pages, attention).run(&keys, &values); \
    }

extern __shared__ __align__(1024) unsigned char blink_shared[];

BLINK_EVENS
