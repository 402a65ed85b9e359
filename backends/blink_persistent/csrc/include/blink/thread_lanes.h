// A thread block whose lanes are threads: for tests of what is written for a GPU's thread block.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "types.h"

namespace blink {

// What the lanes of one block share. The barrier sleeps: std::barrier yields first, and beside a busy
// process each yield costs a time slice.
struct Team {
    explicit Team(uint32_t count) : values{std::vector<uint64_t>(count), std::vector<uint64_t>(count)} {
        pthread_barrier_init(&barrier, nullptr, count);
    }
    ~Team() { pthread_barrier_destroy(&barrier); }
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;
    pthread_barrier_t barrier;
    std::vector<uint64_t> values[2];
};

class Lane {
  public:
    Lane(Team& team, uint32_t lane) : team_(team), lane_(lane) {}
    uint32_t lane() const { return lane_; }
    uint32_t lanes() const { return static_cast<uint32_t>(team_.values[0].size()); }
    void sync() { pthread_barrier_wait(&team_.barrier); }
    uint64_t sum(uint64_t value) {
        return fold(value, lanes(), [](uint64_t a, uint64_t b) { return a + b; });
    }
    uint64_t max(uint64_t value) {
        return fold(value, lanes(), [](uint64_t a, uint64_t b) { return std::max(a, b); });
    }
    uint64_t scan(uint64_t value) {
        return fold(value, lane_, [](uint64_t a, uint64_t b) { return a + b; });
    }
    static void add(uint32_t* word, uint32_t value) { std::atomic_ref(*word).fetch_add(value); }
    static void add(float* word, float value) { std::atomic_ref(*word).fetch_add(value); }
    static void set_bits(uint32_t* word, uint32_t bits) { std::atomic_ref(*word).fetch_or(bits); }
    static uint32_t take(uint32_t* word) { return std::atomic_ref(*word).exchange(0); }

  private:
    // With one barrier, as on the GPU: what follows may not rely on a second.
    template <class Combine>
    uint64_t fold(uint64_t value, uint32_t until, Combine combine) {
        std::vector<uint64_t>& values = team_.values[parity_ ^= 1];
        values[lane_] = value;
        sync();
        uint64_t result = 0;
        for (uint32_t i = 0; i < until; ++i) result = combine(result, values[i]);
        return result;
    }

    Team& team_;
    uint32_t lane_;
    uint32_t parity_ = 0;
};

// `work(lane)` by `count` threads together; returns when all are done.
template <class Work>
void run_lanes(uint32_t count, Work work) {
    Team team(count);
    std::vector<std::jthread> threads;
    for (uint32_t i = 0; i < count; ++i)
        threads.emplace_back([&team, &work, i] {
            Lane lane(team, i);
            work(lane);
        });
}

}  // namespace blink
