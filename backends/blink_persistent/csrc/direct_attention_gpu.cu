// Decode attention whose KV goes straight into registers (direct_attention.h).
//
// A text before this one defines BLINK_DIRECTS as one BLINK_DIRECT for each way of cutting.
#include "blink/direct_attention.h"
#include "blink/lanes_gpu.h"

#define BLINK_DIRECT(NAME, WARPS, HEAD_DIM, PROGRAMS, CLUSTERED)                                     \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, PROGRAMS)                               \
        NAME(const __grid_constant__ blink::AttentionCall attention) {                               \
        blink::GpuLanes lanes(blink_shared);                                                         \
        blink::DirectAttention<blink::GpuLanes, WARPS, HEAD_DIM, CLUSTERED>(lanes, attention).run(); \
    }

extern __shared__ __align__(128) unsigned char blink_shared[];

BLINK_DIRECTS
