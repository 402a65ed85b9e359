// The norm between primed products (primed_norm.h). A text before this one defines BLINK_WARPS and
// BLINK_EACH. With more registers it would not fit beside the product of many rows.
#include "blink/lanes_gpu.h"
#include "blink/primed_norm.h"

extern __shared__ __align__(128) unsigned char blink_shared[];

extern "C" __global__ void __maxnreg__(48) blink_norm(const __grid_constant__ blink::NormCall norm) {
    blink::GpuLanes lanes(blink_shared);
    blink::PrimedNorm<blink::GpuLanes, BLINK_WARPS, BLINK_EACH>(lanes, norm).run();
}
