// The experts of a step's only token (expert_gate.h, expert_sum.h). A text before this one defines
// BLINK_GATE_WARPS, BLINK_GATE_WINDOWS, BLINK_GATE_STAGES, BLINK_CHOSEN and BLINK_SUM_STAGES.
#include "blink/expert_gate.h"
#include "blink/expert_sum.h"
#include "blink/lanes_gpu.h"

extern __shared__ __align__(128) unsigned char blink_shared[];

using blink::ExpertCall, blink::GpuLanes;

// As many registers as primed_product_gpu.cu leaves: two blocks may be on a multiprocessor.
extern "C" __global__ void __launch_bounds__(32 * BLINK_GATE_WARPS, 16 / BLINK_GATE_WARPS)
    blink_expert_gate(const __grid_constant__ ExpertCall call) {
    GpuLanes lanes(blink_shared);
    blink::ExpertGate<GpuLanes, BLINK_GATE_WARPS, BLINK_GATE_WINDOWS, BLINK_GATE_STAGES>::run(lanes, call);
}

extern "C" __global__ void __launch_bounds__(32 * BLINK_CHOSEN)
    blink_expert_sum(const __grid_constant__ ExpertCall call) {
    GpuLanes lanes(blink_shared);
    blink::ExpertSum<GpuLanes, BLINK_CHOSEN, BLINK_SUM_STAGES>::run(lanes, call);
}
