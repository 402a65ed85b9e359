// The scripted engine on a GPU: the same rule as on the host, one warp a sequence. A graph is a
// step kernel and an end kernel, as a model's graph is its layers and its last kernel.
#include "blink/port_gpu.cuh"
#include "blink/scripted_rule.h"

namespace blink {

struct StepTimes {
    uint64_t begun_ns;  // first instruction of the step kernel
    uint64_t ended_ns;  // just before the completion counter is written
};

struct ScriptedGpu {
    EngineTables engine;
    ScriptedRule rule;
    int32_t poison_token;  // a sequence whose last token this is gives NaN logits
    int32_t* kv;           // [scripted_kv_tokens]
    uint64_t step_ns;      // the least time a step takes
    const uint32_t* gate;  // mapped host memory: steps that may end; null: all
    StepTimes* times;      // [times_capacity], by step number modulo; null: not kept
    uint32_t times_capacity;
    uint32_t steps;  // that have ended, of all phases
    uint64_t begun_ns;
};

}  // namespace blink

// One block for each row of the step's decode part, then for each sequence of its prefill.
extern "C" __global__ void __launch_bounds__(32) blink_scripted_step(blink::ScriptedGpu* scripted, uint32_t rows) {
    using namespace blink;
    const Phase phase = blockIdx.x < rows ? Phase::kDecode : Phase::kPrefill;
    const uint32_t i = phase == Phase::kDecode ? blockIdx.x : blockIdx.x - rows, lane = threadIdx.x;
    if (blockIdx.x == 0 && lane == 0) scripted->begun_ns = GpuPort::now_ns();
    const EngineTables& engine = scripted->engine;
    const PhaseBuffers& b = engine.buffers[static_cast<uint32_t>(phase)];
    const auto length = static_cast<uint32_t>(b.lengths[i]);
    const auto start = static_cast<uint32_t>(b.start_positions[i]);
    if (length == 0) return;
    const uint32_t first = phase == Phase::kDecode ? i : static_cast<uint32_t>(b.cu_seqlens[i]);
    for (uint32_t at = start + lane; at < length; at += 32)
        scripted->kv[scripted_entry(engine, phase, i, at)] = b.token_ids[first + at - start];
    if ((b.sampling[i].flags & kSamplingActive) == 0) return;
    __syncwarp();
    uint64_t hash = 0;
    int32_t last = -1;
    for (uint32_t base = 0; base < length; base += 32) {
        const uint32_t count = min(32u, length - base);
        const int32_t token = lane < count ? scripted->kv[scripted_entry(engine, phase, i, base + lane)] : 0;
        for (uint32_t j = 0; j < count; ++j) {
            last = __shfl_sync(0xffffffffu, token, j);
            hash = scripted_mix(hash, last);
        }
    }
    const bool suppress = (b.sampling[i].flags & kSamplingSuppressEnd) != 0;
    const int32_t token = scripted_token(scripted->rule, hash, suppress);
    if (lane == 0) scripted_show(b, i, token, last == scripted->poison_token);
    if (lane < kScriptedTopEntries) scripted_show_entry(b, scripted->rule, i, token, lane);
}

// Does nothing; so that a graph can have as many nodes as a model's.
extern "C" __global__ void blink_scripted_filler() {}

extern "C" __global__ void __launch_bounds__(1) blink_scripted_end(blink::ScriptedGpu* scripted, blink::Phase phase) {
    using namespace blink;
    if (scripted->gate != nullptr)
        while (GpuPort::load_acquire(scripted->gate) <= scripted->steps) __nanosleep(1000);
    while (GpuPort::now_ns() - scripted->begun_ns < scripted->step_ns) __nanosleep(100);
    const uint32_t step = scripted->steps++;
    const PhaseBuffers& decode = scripted->engine.buffers[static_cast<uint32_t>(Phase::kDecode)];
    const PhaseBuffers& prefill = scripted->engine.buffers[static_cast<uint32_t>(Phase::kPrefill)];
    const uint32_t decoded = *decode.completion + 1, prefilled = *prefill.completion + 1;
    if (scripted->times != nullptr)
        scripted->times[step % scripted->times_capacity] = {scripted->begun_ns, GpuPort::now_ns()};
    if (uses(phase, Phase::kDecode)) GpuPort::store_release(decode.completion, decoded);
    if (uses(phase, Phase::kPrefill)) GpuPort::store_release(prefill.completion, prefilled);
}
