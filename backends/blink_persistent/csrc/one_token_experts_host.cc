// The kernels of expert_gate.h and expert_sum.h on a host, for tests, block after block. A text before
// this one defines what one_token_experts_gpu.cu names.
#include "blink/expert_gate.h"
#include "blink/expert_sum.h"
#include "blink/lanes_host.h"

using blink::ExpertCall, blink::Faults, blink::HostBlock, blink::HostLanes, blink::Range;
using Gate = blink::ExpertGate<HostLanes, BLINK_GATE_WARPS, BLINK_GATE_WINDOWS, BLINK_GATE_STAGES>;
using Sum = blink::ExpertSum<HostLanes, BLINK_CHOSEN, BLINK_SUM_STAGES>;

extern "C" int blink_expert_gate(const ExpertCall* call, bool copies_late, uint32_t seed, Faults* faults) {
    const size_t matrix = size_t{4} * call->size * call->depth;
    for (uint32_t number = 0; number < call->blocks * call->chosen; ++number) {
        HostBlock block(number, BLINK_GATE_WARPS, Gate::kSharedBytes, copies_late, seed + number);
        block.published = {{call->x, size_t{2} * call->depth}, {call->scores, sizeof(float) * call->experts}};
        block.constant = {{call->weight, call->experts * matrix}};
        if (!block.run([&](HostLanes& lanes) { Gate::run(lanes, *call); })) return 1;
        faults->add(block.faults);
    }
    return 0;
}

extern "C" int blink_expert_sum(const ExpertCall* call, bool copies_late, uint32_t seed, Faults* faults) {
    const size_t matrix = size_t{2} * call->size * call->depth;
    for (uint32_t number = 0; number < call->blocks; ++number) {
        HostBlock block(number, BLINK_CHOSEN, Sum::shared_bytes(call->depth), copies_late, seed + number);
        block.published = {{call->x, size_t{2} * call->chosen * call->depth}};
        block.constant = {{call->weight, call->experts * matrix}, {call->scores, sizeof(float) * call->experts}};
        if (!block.run([&](HostLanes& lanes) { Sum::run(lanes, *call); })) return 1;
        faults->add(block.faults);
    }
    return 0;
}
