// The persistent scheduler kernel: one thread block, wrapped as a graph that is launched from the
// host once and from then on replaces itself.
#include "blink/port_gpu.cuh"

namespace blink {

constexpr uint32_t kIdleSleepNs = 500;

struct GpuScheduler {
    void* ring;
    EngineTables engine;
    SchedulerState* state;
    const ControlWords* control;      // mapped host memory
    const cudaGraphExec_t* graphs;    // [engine.graph_count], instantiated for device launch
};

}  // namespace blink

extern "C" __global__ void __launch_bounds__(blink::GpuPort::kLanes, 1)
    blink_scheduler(const blink::GpuScheduler* parameters) {
    using namespace blink;
    __shared__ GpuPort::Shared shared;
    const RingView ring = view_ring(parameters->ring);
    GpuPort port(shared, parameters->graphs);
    Scheduler<GpuPort> scheduler(port, ring, parameters->engine, *parameters->state, parameters->control);
    SchedulerCondition condition = SchedulerCondition::kRunning;
    if (port.lane() == 0) port.store_release(&ring.header->condition, static_cast<uint32_t>(condition));
    for (;;) {
        const Outcome outcome = scheduler.pass();
        if (outcome == Outcome::kIdle) __nanosleep(kIdleSleepNs);
        if (outcome == Outcome::kRelaunch) {
            if (port.lane() == 0) {
                const cudaError_t error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
                if (error != cudaSuccess) {
                    ring.header->error = static_cast<uint32_t>(error);
                    port.store_release(&ring.header->condition, static_cast<uint32_t>(SchedulerCondition::kFailed));
                }
            }
            return;
        }
        if (outcome == Outcome::kPark) condition = SchedulerCondition::kParked;
        if (outcome == Outcome::kStop) condition = SchedulerCondition::kStopped;
        if (outcome == Outcome::kFailed) condition = SchedulerCondition::kFailed;
        if (condition != SchedulerCondition::kRunning) break;
    }
    if (port.lane() == 0) port.store_release(&ring.header->condition, static_cast<uint32_t>(condition));
}
