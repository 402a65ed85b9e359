// What primed_product.h asks of a port, on a host, as the PTX manual describes it: for tests.
//
// Copies are made as late as they may be, or at once, as a test asks: the one finds reads that do
// not wait, the other finds stages that are filled while they are read. Shared memory begins as
// NaN. `faults` counts what a GPU would not forgive.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <vector>

#include "fibers.h"
#include "primed_product.h"

namespace blink {

inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

struct Faults {
    uint32_t early_reads = 0;     // of what the kernel ahead writes
    uint32_t outside = 0;         // of an array or of shared memory
    uint32_t misaligned = 0;      // accesses of 16 bytes
    uint32_t bank_conflicts = 0;  // of 8 lanes that are served at once
};

struct Range {
    const void* begin;
    size_t bytes;

    bool holds(const void* at) const {
        const auto from = reinterpret_cast<uintptr_t>(begin), place = reinterpret_cast<uintptr_t>(at);
        return place >= from && place + sizeof(Chunk) <= from + bytes;
    }
};

// What the threads of one block share.
struct HostBlock {
    HostBlock(uint32_t number, uint32_t warps, size_t shared_bytes, bool copies_late, uint32_t seed)
        : number(number), copies_late(copies_late), fibers(seed), barrier(fibers, 32 * warps),
          shared(shared_bytes / 16) {
        std::memset(static_cast<void*>(shared.data()), 0xff, 16 * shared.size());
        for (uint32_t i = 0; i < warps; ++i) this->warps.emplace_back(fibers);
    }

    struct Fragments {
        uint32_t a[4], b[2];
    };

    struct Warp {
        explicit Warp(Fibers& fibers) : barrier(fibers, 32) {}
        Fibers::Barrier barrier;
        Fragments lanes[2][32];
        std::map<uint32_t, std::vector<const Chunk*>> reads[4];  // by quarter and number, not yet complete
    };

    const uint32_t number;
    const bool copies_late;
    Fibers fibers;
    Fibers::Barrier barrier;
    std::vector<Chunk> shared;
    std::deque<Warp> warps;
    Range x{}, weight{};
    Faults faults;
};

class HostLanes {
  public:
    HostLanes(HostBlock& block, uint32_t thread) : block_(block), warp_(block.warps[thread / 32]), thread_(thread) {}

    uint32_t thread() const { return thread_; }
    uint32_t block() const { return block_.number; }
    void* shared() { return block_.shared.data(); }
    void sync() { block_.barrier.arrive_and_wait(); }
    void let_next_in() {}
    void await_previous() { awaited_ = true; }

    void copy(Chunk* to, const uint16_t* from) {
        if (!check(block_.weight, from) && !check(block_.x, from)) block_.faults.outside += 1;
        if (check(block_.x, from) && !awaited_) block_.faults.early_reads += 1;
        if (block_.copies_late)
            open_.push_back({checked(to), from});
        else
            std::memcpy(checked(to), from, sizeof *to);
    }
    void commit() { groups_.push_back(std::exchange(open_, {})); }
    template <uint32_t kPending>
    void wait_copies() {
        for (; groups_.size() > kPending; groups_.pop_front())
            for (const Copy& copy : groups_.front()) std::memcpy(copy.to, copy.from, sizeof *copy.to);
    }

    Chunk load(const uint16_t* from) {
        if (!awaited_) block_.faults.early_reads += 1;
        if (!check(block_.x, from)) block_.faults.outside += 1;
        Chunk value;
        std::memcpy(&value, from, sizeof value);
        return value;
    }
    Chunk read(const Chunk* from) {
        note_read(from);
        return *checked(from);
    }
    void write(Chunk* to, const Chunk& value) { *checked(to) = value; }

    // Lane 4 * g + t holds of a, [16, 16]: rows g, g + 8, g, g + 8 and columns 2 * t on, twice,
    // then 2 * t + 8 on; of b, [16, 8]: rows 2 * t on and 2 * t + 8 on of column g; of the sums,
    // [16, 8]: columns 2 * t on of row g, then of row g + 8.
    void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t* b) {
        auto& lanes = warp_.lanes[parity_ ^= 1];
        HostBlock::Fragments& own = lanes[thread_ % 32];
        std::copy_n(a, 4, own.a);
        std::copy_n(b, 2, own.b);
        warp_.barrier.arrive_and_wait();
        const uint32_t g = thread_ % 32 / 4, t = thread_ % 4;
        for (uint32_t i = 0; i < 4; ++i)
            for (uint32_t k = 0; k < 16; ++k) {
                const uint32_t holder = k % 8 / 2, half = k / 8, shift = k % 2 * 16;
                const uint32_t left = lanes[4 * g + holder].a[2 * half + i / 2] >> shift;
                const uint32_t right = lanes[4 * (2 * t + i % 2) + holder].b[half] >> shift;
                sums[i] += float_of(left & 0xffff) * float_of(right & 0xffff);
            }
    }

  private:
    struct Copy {
        Chunk* to;
        const uint16_t* from;
    };

    bool check(const Range& range, const void* at) {
        if (reinterpret_cast<uintptr_t>(at) % sizeof(Chunk) != 0) block_.faults.misaligned += 1;
        return range.holds(at);
    }

    // Itself; the first chunk where it lies outside.
    template <class Pointer>
    Pointer checked(Pointer at) {
        if (check({block_.shared.data(), 16 * block_.shared.size()}, at)) return at;
        block_.faults.outside += 1;
        return block_.shared.data();
    }

    // The n-th reads of 8 lanes are one access, of 8 different banks of 16 bytes.
    void note_read(const Chunk* from) {
        const uint32_t quarter = thread_ % 32 / 8, number = reads_++;
        auto& reads = warp_.reads[quarter][number];
        for (const Chunk* other : reads)
            if (other != from && (other - from) % 8 == 0) block_.faults.bank_conflicts += 1;
        reads.push_back(from);
        if (reads.size() == 8) warp_.reads[quarter].erase(number);
    }

    HostBlock& block_;
    HostBlock::Warp& warp_;
    const uint32_t thread_;
    bool awaited_ = false;
    uint32_t parity_ = 0;
    uint32_t reads_ = 0;
    std::vector<Copy> open_;
    std::deque<std::vector<Copy>> groups_;
};

}  // namespace blink
