// The scheduler's port for an engine on a host: one lane, an engine thread behind a mailbox, eventfds.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler.h"

namespace blink {

inline uint64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

// Wakes whoever polls the eventfd; -1 is nobody. A full counter has woken him already.
inline void ring_bell(int eventfd) {
    const uint64_t one = 1;
    if (eventfd >= 0) [[maybe_unused]]
        const ssize_t written = ::write(eventfd, &one, sizeof one);
}

// Waits until the eventfd was rung or the time is over; takes all rings at once.
inline bool wait_for_bell(int eventfd, int timeout_ms) {
    pollfd bell{eventfd, POLLIN, 0};
    if (::poll(&bell, 1, timeout_ms) <= 0) return false;
    uint64_t rings = 0;
    return ::read(eventfd, &rings, sizeof rings) == sizeof rings;
}

// One launched graph on its way to the engine thread.
class LaunchMailbox {
  public:
    void put(uint32_t graph) {
        {
            const std::lock_guard lock(mutex_);
            graph_ = graph;
        }
        posted_.notify_one();
    }

    // The next graph to run; none after `timeout_ms`, or once closed.
    std::optional<uint32_t> take(int timeout_ms) {
        std::unique_lock lock(mutex_);
        posted_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return graph_ || closed_; });
        return std::exchange(graph_, std::nullopt);
    }

    void close() {
        {
            const std::lock_guard lock(mutex_);
            closed_ = true;
        }
        posted_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable posted_;
    std::optional<uint32_t> graph_;
    bool closed_ = false;
};

// What ports on a host have in common: one lane, atomics, the clock, eventfds.
class HostPrimitives {
  public:
    explicit HostPrimitives(std::vector<int> notify_fds) : notify_fds_(std::move(notify_fds)) {}

    static constexpr bool kNotifies = true;
    static constexpr bool kPollsAhead = false;
    static constexpr uint32_t lane() { return 0; }
    static constexpr uint32_t row_lane() { return 0; }
    static constexpr uint32_t lanes() { return 1; }
    static void sync() {}
    static bool any(bool value) { return value; }
    static uint32_t sum(uint32_t value) { return value; }
    static uint32_t scan(uint32_t) { return 0; }
    static void acquire() {}  // load_words already acquires

    static FrontendWords load_words(FrontendWords* words) {
        return {load_acquire(&words->submit), load_acquire(&words->release), load_acquire(&words->cancel), 0};
    }

    static ControlWords control_words(const ControlWords* control) {
        auto* words = const_cast<ControlWords*>(control);
        return {load_acquire(&words->command), load_acquire(&words->close)};
    }

    static void ask_control(const ControlWords*) {}

    static uint32_t load_acquire(uint32_t* word) { return std::atomic_ref(*word).load(std::memory_order_acquire); }

    static uint32_t load(const uint16_t* word) { return *word; }  // its tables stay as they are

    template <class T>
    static void store_release(T* word, T value) {
        std::atomic_ref(*word).store(value, std::memory_order_release);
    }

    template <class T>
    static void store(T* word, T value) {
        std::atomic_ref(*word).store(value, std::memory_order_relaxed);
    }

    static void expect(uint32_t) {}
    static void release() {}  // what launches a graph releases
    static uint64_t now_ns() { return monotonic_ns(); }
    static void rest(uint64_t) {}  // between passes its thread waits
    static bool watches(uint64_t) { return false; }
    static void stamp(Moment) {}

    void notify(uint32_t range) {
        if (range < notify_fds_.size()) ring_bell(notify_fds_[range]);
    }

  private:
    std::vector<int> notify_fds_;
};

// Beyond scheduler.h's list, what the scheduler's thread (scheduler_thread.h) asks of its port:
//
//   begin()           called once on that thread, before the first pass
//   await_step(bell)  a graph runs: waits until another pass may find something to do
//   error()           a launch or a wait failed for good: its number, to be shown; else 0
class HostPort : public HostPrimitives {
  public:
    static constexpr int kBusyWaitMs = 5;  // between scans while a step runs and nobody rings

    HostPort(LaunchMailbox& mailbox, std::vector<int> notify_fds)
        : HostPrimitives(std::move(notify_fds)), mailbox_(mailbox) {}

    LaunchResult launch(uint32_t graph) {
        mailbox_.put(graph);
        return LaunchResult::kLaunched;
    }

    static uint32_t scan_share(uint32_t slots) { return slots; }
    static void begin() {}
    static void await_step(int doorbell) { wait_for_bell(doorbell, kBusyWaitMs); }
    static uint32_t error() { return 0; }

  private:
    LaunchMailbox& mailbox_;
};

}  // namespace blink
