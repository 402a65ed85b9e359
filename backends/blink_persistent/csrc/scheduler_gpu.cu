// The persistent scheduler kernel: one thread block, wrapped as a graph that is launched from the
// host once and from then on replaces itself.
#include "blink/port_gpu.cuh"

namespace blink {

constexpr uint32_t kIdleSleepNs = 500;
constexpr uint32_t kNearRows = 256;  // of an engine with no more, their slots are read from shared memory

struct GpuScheduler {
    void* ring;
    EngineTables engine;
    SchedulerState* state;
    const ControlWords* control;    // mapped host memory
    const cudaGraphExec_t* graphs;  // [engine.graph_count], instantiated for device launch
    Profile* profile;               // null: none is kept
};

// Where the host finds what it may read of the state while the scheduler is parked.
struct StateAddresses {
    uint64_t bytes;
    uint64_t trace;
    uint64_t trace_count;
};

// All lanes copy together. A barrier.
template <class Word>
__device__ void copy_words(Word* to, const Word* from, uint32_t count) {
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
    __syncthreads();
}

// The same; T is made of whole 8-byte words.
template <class T>
__device__ void copy_together(T* to, const T* from) {
    static_assert(sizeof(T) % 8 == 0 && alignof(T) % 8 == 0);
    copy_words(reinterpret_cast<uint64_t*>(to), reinterpret_cast<const uint64_t*>(from), sizeof(T) / 8);
}

__device__ SchedulerCondition condition_after(Outcome outcome) {
    switch (outcome) {
        case Outcome::kPark: return SchedulerCondition::kParked;
        case Outcome::kStop: return SchedulerCondition::kStopped;
        case Outcome::kFailed: return SchedulerCondition::kFailed;
        default: return SchedulerCondition::kRunning;
    }
}

}  // namespace blink

// Lays out and initializes the state of a new scheduler over a ring in device memory. Without
// memory it only tells how many bytes are needed. One thread.
extern "C" __global__ void blink_initialize_state(const blink::GpuScheduler* parameters, uint32_t trace_capacity,
                                                  blink::StateAddresses* addresses) {
    using namespace blink;
    const EngineTables& engine = parameters->engine;
    auto* header = static_cast<RingHeader*>(parameters->ring);
    SchedulerState* state = parameters->state;
    addresses->bytes = lay_out_state(reinterpret_cast<uint8_t*>(state), header->slot_count, engine, trace_capacity);
    if (state == nullptr) return;
    initialize_state(*state, engine);
    header->accepting = 1;
    addresses->trace = reinterpret_cast<uint64_t>(state->trace);
    addresses->trace_count = reinterpret_cast<uint64_t>(&state->trace_count);
}

// Runs until it is told to park or stop, or a launch fails. What is read at every step lies in
// shared memory while an instance runs; between instances all state is in global memory.
extern "C" __global__ void __launch_bounds__(blink::GpuPort::kLanes, 1)
    blink_scheduler(const blink::GpuScheduler* parameters) {
    using namespace blink;
    __shared__ GpuPort::Shared shared;
    __shared__ EngineTables engine;
    __shared__ SchedulerState state;
    __shared__ uint32_t near_slots[kNearRows];
    GpuPort port(shared, parameters->graphs, parameters->profile);
    port.stamp(kMomentStarted);
    copy_together(&engine, &parameters->engine);
    copy_together(&state, parameters->state);
    uint32_t* const row_slots = state.row_slots;
    const uint32_t near_rows = engine.max_rows <= kNearRows ? engine.max_rows : 0;
    copy_words(near_slots, row_slots, near_rows);
    if (port.lane() == 0 && near_rows > 0) state.row_slots = near_slots;
    port.sync();
    const RingView ring = view_ring(parameters->ring);
    RingHeader& header = *ring.header;
    Scheduler<GpuPort> scheduler(port, ring, engine, state, parameters->control);
    if (port.lane() == 0) port.store_release(&header.condition, static_cast<uint32_t>(SchedulerCondition::kRunning));
    Outcome outcome;
    while ((outcome = scheduler.pass()) <= Outcome::kIdle)
        if (outcome == Outcome::kIdle) __nanosleep(kIdleSleepNs);
    copy_words(row_slots, near_slots, near_rows);
    if (port.lane() == 0) state.row_slots = row_slots;
    port.sync();
    copy_together(parameters->state, &state);
    if (port.lane() != 0) return;
    SchedulerCondition condition = condition_after(outcome);
    uint32_t error = port.error();
    if (outcome == Outcome::kRelaunch) {
        port.stamp(kMomentRelaunching);
        port.release();
        error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
        if (error == cudaSuccess) return;
        condition = SchedulerCondition::kFailed;
    }
    if (outcome == Outcome::kPark) header.parks += 1;
    if (condition == SchedulerCondition::kFailed) header.error = error;
    port.store_release(&header.condition, static_cast<uint32_t>(condition));
}
