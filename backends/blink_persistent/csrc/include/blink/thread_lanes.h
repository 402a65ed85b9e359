// Thread blocks whose lanes are threads: for tests of what is written for a GPU's thread blocks.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "sampler_masses.h"
#include "types.h"

namespace blink {

// What lanes share that meet. The barrier sleeps: std::barrier yields first, and beside a busy
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

// How the lanes of a row are cut into blocks of a cluster, and these into groups.
struct LaneCut {
    uint32_t lanes;
    uint32_t blocks = 1;
    uint32_t width = 1;
};

class Lane {
  public:
    static constexpr uint32_t kBatch = 2;

    // `group`: the lanes that go through a tile together; none for one alone.
    Lane(Team& team, uint32_t lane, Team* group = nullptr, Team* block = nullptr) : team_(team), lane_(lane) {
        if (group != nullptr) group_ = std::make_unique<Lane>(*group, lane % group->values[0].size());
        if (block != nullptr) local_ = std::make_unique<Lane>(*block, lane % block->values[0].size(), group);
    }

    uint32_t lane() const { return lane_; }
    uint32_t lanes() const { return static_cast<uint32_t>(team_.values[0].size()); }
    void sync() { pthread_barrier_wait(&team_.barrier); }
    uint64_t sum(uint64_t value) { return share(value).total; }
    uint64_t max(uint64_t value) {
        uint64_t most = 0;
        for (const uint64_t other : exchange(value)) most = std::max(most, other);
        return most;
    }
    template <uint32_t kCount>
    void sums(uint64_t (&values)[kCount]) {
        for (uint64_t& value : values) value = sum(value);
    }
    Share share(uint64_t value) {
        Share share{0, 0};
        const std::vector<uint64_t>& all = exchange(value);
        for (uint32_t i = 0; i < all.size(); ++i) {
            if (i == lane_) share.below = share.total;
            share.total += all[i];
        }
        return share;
    }

    uint32_t width() const { return group_ ? group_->lanes() : 1; }
    Share group_share(uint64_t value) { return group_ ? group_->share(value) : Share{0, value}; }
    uint64_t of_first(uint64_t value) { return group_ ? group_->exchange(value)[0] : value; }
    Lane& local() { return local_ ? *local_ : *this; }

    static void add(uint32_t* word, uint32_t value) { std::atomic_ref(*word).fetch_add(value); }
    static void add(float* word, float value) { std::atomic_ref(*word).fetch_add(value); }
    static void set_bits(uint32_t* word, uint32_t bits) { std::atomic_ref(*word).fetch_or(bits); }
    static uint32_t take(uint32_t* word) { return std::atomic_ref(*word).exchange(0); }

  private:
    // With one barrier, as on the GPU: what follows may not rely on a second.
    const std::vector<uint64_t>& exchange(uint64_t value) {
        std::vector<uint64_t>& values = team_.values[parity_ ^= 1];
        values[lane_] = value;
        sync();
        return values;
    }

    Team& team_;
    uint32_t lane_;
    uint32_t parity_ = 0;
    std::unique_ptr<Lane> group_, local_;
};

// `work(lane)` by all lanes together; returns when all are done.
template <class Work>
void run_lanes(const LaneCut& cut, Work work) {
    Team team(cut.lanes);
    std::vector<std::unique_ptr<Team>> blocks, groups;
    for (uint32_t i = 0; i < cut.blocks; ++i) blocks.push_back(std::make_unique<Team>(cut.lanes / cut.blocks));
    for (uint32_t i = 0; i < cut.lanes / cut.width; ++i) groups.push_back(std::make_unique<Team>(cut.width));
    std::vector<std::jthread> threads;
    for (uint32_t i = 0; i < cut.lanes; ++i)
        threads.emplace_back([&, i] {
            Team* const block = cut.blocks > 1 ? blocks[i / (cut.lanes / cut.blocks)].get() : nullptr;
            Lane lane(team, i, cut.width > 1 ? groups[i / cut.width].get() : nullptr, block);
            work(lane);
        });
}

}  // namespace blink
