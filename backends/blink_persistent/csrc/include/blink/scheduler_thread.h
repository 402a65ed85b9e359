// A scheduler that runs on a host: its memory, its thread, and the host's words to it.
#pragma once

#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "port_host.h"

namespace blink {

// The ring's memory, what the tables point at and the doorbell outlive it.
template <class Port>
class SchedulerThread {
  public:
    static constexpr int kIdleWaitMs = 100;  // the longest silence of the heartbeat

    SchedulerThread(void* ring_memory, const EngineTables& engine, int doorbell, Port port, uint32_t trace_capacity)
        : engine_(engine), ring_(view_ring(ring_memory)), doorbell_(doorbell), port_(std::move(port)),
          memory_(lay_out_state(nullptr, ring_.slot_count, engine_, trace_capacity) / sizeof(StateLine) + 1),
          scheduler_(port_, ring_, engine_, state(), &control_) {
        lay_out_state(memory_.front().bytes, ring_.slot_count, engine_, trace_capacity);
        initialize_state(state(), engine_);
        Port::store_release(&ring_.header->accepting, 1u);
    }

    ~SchedulerThread() { stop(); }
    SchedulerThread(const SchedulerThread&) = delete;
    SchedulerThread& operator=(const SchedulerThread&) = delete;

    // One pass on the calling thread, for tests; not while the thread runs.
    Outcome pass() { return scheduler_.pass(); }

    // Runs passes on a thread of its own until stop(), parking and resuming on command.
    void start() {
        if (stopped_ || thread_.joinable()) throw std::logic_error("the scheduler runs already, or was stopped");
        thread_ = std::thread([this] { run(); });
    }

    void wake() const { ring_bell(doorbell_); }

    void command(Command command) {
        Port::store_release(&control_.command, static_cast<uint32_t>(command));
        wake();
    }

    // From here on newly claimed submits end with reason CLOSED.
    void close() {
        Port::store_release(&control_.close, 1u);
        wake();
    }

    // Stops between two steps and joins the thread: a step in flight is waited for. Uses the
    // doorbell for the last time.
    void stop() {
        if (std::exchange(stopped_, true)) return;
        command(Command::kStop);
        if (thread_.joinable()) thread_.join();
    }

    SchedulerCondition condition() const {
        return static_cast<SchedulerCondition>(Port::load_acquire(&ring_.header->condition));
    }
    const EngineTables& engine() const { return engine_; }
    SchedulerState& state() { return *reinterpret_cast<SchedulerState*>(memory_.front().bytes); }

  private:
    void announce(SchedulerCondition condition) {
        Port::store_release(&ring_.header->condition, static_cast<uint32_t>(condition));
    }

    void run() {
        port_.begin();
        announce(SchedulerCondition::kRunning);
        for (;;) {
            switch (scheduler_.pass()) {
                case Outcome::kProgress:
                case Outcome::kRelaunch:  // on a host the same instance goes on
                    break;
                case Outcome::kBusy: port_.await_step(doorbell_); break;
                case Outcome::kIdle:
                    if (port_.error() != 0) return fail();  // its requests have ended
                    wait_for_bell(doorbell_, kIdleWaitMs);
                    break;
                case Outcome::kPark: park(); break;
                case Outcome::kStop: announce(SchedulerCondition::kStopped); return;
                case Outcome::kFailed: return fail();
            }
        }
    }

    void fail() {
        if (port_.error() != 0) Port::store(&ring_.header->error, port_.error());
        announce(SchedulerCondition::kFailed);
    }

    void park() {
        Port::store(&ring_.header->parks, ring_.header->parks + 1);
        announce(SchedulerCondition::kParked);
        while (Port::load_acquire(&control_.command) == static_cast<uint32_t>(Command::kPark)) {
            wait_for_bell(doorbell_, kIdleWaitMs);
            Port::store(&ring_.header->heartbeat_ns, Port::now_ns());
        }
        announce(SchedulerCondition::kRunning);
    }

    EngineTables engine_;
    RingView ring_;
    int doorbell_;
    Port port_;
    ControlWords control_{static_cast<uint32_t>(Command::kRun), 0};
    std::vector<StateLine> memory_;
    Scheduler<Port> scheduler_;
    std::thread thread_;
    bool stopped_ = false;
};

}  // namespace blink
