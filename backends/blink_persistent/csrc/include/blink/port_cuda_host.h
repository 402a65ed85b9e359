// The scheduler's port for graphs on a GPU that a host drives: the control for the paper's
// comparison (section 4.2, figure 3). A step's inputs are copied to the device, its graph is
// launched, its tokens are copied back, and the host learns of its end by synchronizing.
#pragma once

#include <memory>

#include "scheduler_thread.h"
#include "step_copies.h"

namespace blink {

// The driver's functions that steps need, each returning a CUresult. Whoever has loaded the driver
// gives their addresses, so that this is built without CUDA's headers and libraries.
struct CudaDriver {
    int (*set_context)(void* context);                                                 // cuCtxSetCurrent
    int (*copy_to_device)(uint64_t to, const void* from, size_t bytes, void* stream);  // cuMemcpyHtoDAsync
    int (*copy_to_host)(void* to, uint64_t from, size_t bytes, void* stream);          // cuMemcpyDtoHAsync
    int (*launch_graph)(void* graph, void* stream);                                    // cuGraphLaunch
    int (*query)(void* stream);                                                        // cuStreamQuery
    int (*synchronize)(void* stream);                                                  // cuStreamSynchronize
};

constexpr int kCudaSuccess = 0;
constexpr int kCudaNotReady = 600;  // CUDA_ERROR_NOT_READY

// How the host learns that a step has ended. kSynchronize leaves it to the driver; the ring is
// read once a step then, and an arrival during a step waits for the step after the next. kPoll
// asks again and again, and reads the ring in between.
enum class StepWait : uint32_t { kSynchronize = 0, kPoll = 1 };

// Steps of an engine on a GPU, driven by one host thread. At most one is under way.
class CudaSteps {
  public:
    // `device` and `host` are the step buffers of both phases, host[p] pinned and of device[p]'s
    // shapes; `graphs` are the executable graphs of `tables`, in order. Raises invalid_argument.
    CudaSteps(const CudaDriver& driver, void* context, void* stream, const std::vector<uint64_t>& graphs,
              const EngineTables& tables, const PhaseBuffers (&device)[kPhases], const PhaseBuffers (&host)[kPhases],
              StepWait wait)
        : driver_(driver), context_(context), stream_(stream), tables_(tables), wait_(wait) {
        if (graphs.size() != tables.graph_count) throw std::invalid_argument("one executable graph a key is needed");
        for (uint32_t phase = 0; phase < kPhases; ++phase) {
            device_errors_[phase] = reinterpret_cast<uint64_t>(device[phase].error);
            tables_.buffers[phase] = host[phase];
            tables_.buffers[phase].completion = &ended_[phase];
        }
        for (uint32_t graph = 0; graph < tables.graph_count; ++graph) {
            const GraphKey& key = tables.graphs[graph];
            StepParts parts;
            for (uint32_t phase = first_part(key.phase); phase < end_part(key.phase); ++phase) {
                const GraphKey part = part_of(key, static_cast<Phase>(phase));
                parts.push_back(
                    {phase, part.sequences, plan_copies(part, tables.max_blocks, device[phase], host[phase])});
            }
            parts_.push_back(std::move(parts));
            graphs_.push_back(reinterpret_cast<void*>(graphs[graph]));
        }
    }
    CudaSteps(const CudaSteps&) = delete;
    CudaSteps& operator=(const CudaSteps&) = delete;

    // The engine as the scheduler sees it: the host's buffers, and completion counters of ours.
    const EngineTables& tables() const { return tables_; }
    StepWait wait() const { return wait_; }
    uint32_t error() const { return static_cast<uint32_t>(error_); }

    // Makes the context current on the calling thread, which drives all steps.
    void begin() { check(driver_.set_context(context_)); }

    // Puts a whole step on the stream. False once anything has failed.
    bool launch(uint32_t graph) {
        running_ = &parts_[graph];
        for (const StepPart& part : *running_) {
            uint32_t* const error = tables_.buffers[part.phase].error;
            // The scheduler has taken note, the device's word still stands.
            if (std::exchange(stale_error_[part.phase], false))
                to_device({device_errors_[part.phase], error, sizeof *error});
            for (const StepCopy& copy : part.copies.inputs) to_device(copy);
        }
        if (error_ == kCudaSuccess) check(driver_.launch_graph(graphs_[graph], stream_));
        for (const StepPart& part : *running_) {
            for (const StepCopy& copy : wants_logprobs(part) ? part.copies.outputs : part.copies.tokens) to_host(copy);
            if (keeps(part)) to_host(part.copies.sampling);
        }
        return error_ == kCudaSuccess;
    }

    // Waits for the step under way, or, polling, asks once. A step that fails ends with the error.
    void await() {
        const int status = wait_ == StepWait::kPoll ? driver_.query(stream_) : driver_.synchronize(stream_);
        if (status == kCudaNotReady) return;
        check(status);
        for (const StepPart& part : *running_) {
            uint32_t& step_error = *tables_.buffers[part.phase].error;
            if (status != kCudaSuccess) step_error = error();
            stale_error_[part.phase] = step_error != 0;
            HostPrimitives::store_release(&ended_[part.phase], ended_[part.phase] + 1);
        }
    }

  private:
    // What a graph does in the step buffers of one phase.
    struct StepPart {
        uint32_t phase;
        uint32_t sequences;
        StepCopies copies;
    };
    using StepParts = std::vector<StepPart>;

    bool wants_logprobs(const StepPart& part) const {
        return any_active(part, [](const SamplingRow& row) { return row.logprobs != 0; });
    }

    // May a sampler keep something with a row from one token to the next? Not with a greedy one.
    bool keeps(const StepPart& part) const {
        return any_active(part, [](const SamplingRow& row) { return row.temperature != 0 || row.grammar_words != 0; });
    }

    template <class Wanted>
    bool any_active(const StepPart& part, Wanted wanted) const {
        const SamplingRow* rows = tables_.buffers[part.phase].sampling;
        return std::any_of(rows, rows + part.sequences, [wanted](const SamplingRow& row) {
            return (row.flags & kSamplingActive) != 0 && wanted(row);
        });
    }

    void to_device(const StepCopy& copy) {
        if (error_ == kCudaSuccess) check(driver_.copy_to_device(copy.device, copy.host, copy.bytes, stream_));
    }
    void to_host(const StepCopy& copy) {
        if (error_ == kCudaSuccess) check(driver_.copy_to_host(copy.host, copy.device, copy.bytes, stream_));
    }

    // The first error stays: what comes after it follows from it.
    void check(int status) {
        if (error_ == kCudaSuccess) error_ = status;
    }

    CudaDriver driver_;
    void* context_;
    void* stream_;
    EngineTables tables_;
    StepWait wait_;
    std::vector<void*> graphs_;
    std::vector<StepParts> parts_;
    uint64_t device_errors_[kPhases];
    bool stale_error_[kPhases] = {};
    uint32_t ended_[kPhases] = {};
    const StepParts* running_ = nullptr;
    int error_ = kCudaSuccess;
};

class CudaHostPort : public HostPrimitives {
  public:
    static constexpr uint32_t kPollShare = 512;  // slots between two polls: about as long as one takes

    CudaHostPort(CudaSteps& steps, std::vector<int> notify_fds)
        : HostPrimitives(std::move(notify_fds)), steps_(steps) {}

    LaunchResult launch(uint32_t graph) {
        return steps_.launch(graph) ? LaunchResult::kLaunched : LaunchResult::kFailed;
    }

    uint32_t scan_share(uint32_t slots) const {
        return steps_.wait() == StepWait::kPoll ? std::min(slots, kPollShare) : slots;
    }
    void begin() { steps_.begin(); }
    void await_step(int) { steps_.await(); }
    uint32_t error() const { return steps_.error(); }

  private:
    CudaSteps& steps_;
};

// The scheduler's thread over a ring in host memory and an engine's graphs on a GPU.
class CudaHostScheduler {
  public:
    CudaHostScheduler(void* ring_memory, std::unique_ptr<CudaSteps> steps, int doorbell, std::vector<int> notify_fds,
                      uint32_t trace_capacity)
        : steps_(std::move(steps)), thread_(ring_memory, steps_->tables(), doorbell,
                                            CudaHostPort(*steps_, std::move(notify_fds)), trace_capacity) {}

    SchedulerThread<CudaHostPort>& thread() { return thread_; }

  private:
    std::unique_ptr<CudaSteps> steps_;
    SchedulerThread<CudaHostPort> thread_;
};

}  // namespace blink
