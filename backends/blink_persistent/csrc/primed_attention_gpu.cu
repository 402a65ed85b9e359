// Decode attention whose KV is on its way before the kernel ahead has ended (primed_attention.h).
//
// A text before this one defines BLINK_ATTENTIONS as one BLINK_ATTENTION for each way of cutting.
#include "blink/lanes_gpu.h"
#include "blink/primed_attention.h"

#define BLINK_ATTENTION(NAME, WARPS, HEAD_DIM, STAGES)                                            \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 16 / WARPS)                          \
        NAME(const __grid_constant__ blink::AttentionCall attention) {                            \
        blink::GpuLanes lanes(blink_shared);                                                      \
        blink::PrimedAttention<blink::GpuLanes, WARPS, HEAD_DIM, STAGES>(lanes, attention).run(); \
    }

extern __shared__ __align__(128) unsigned char blink_shared[];

BLINK_ATTENTIONS
