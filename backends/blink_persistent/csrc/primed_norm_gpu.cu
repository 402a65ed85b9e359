// The norm between primed products (primed_norm.h). A text before this one defines BLINK_WARPS and
// BLINK_EACH.
#include "blink/lanes_gpu.h"
#include "blink/primed_norm.h"

extern __shared__ __align__(128) unsigned char blink_shared[];

extern "C" __global__ void __launch_bounds__(32 * BLINK_WARPS)
    blink_norm(const __grid_constant__ blink::NormCall norm) {
    blink::GpuLanes lanes(blink_shared);
    blink::PrimedNorm<blink::GpuLanes, BLINK_WARPS, BLINK_EACH>(lanes, norm).run();
}
