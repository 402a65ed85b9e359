// What primed_product.h and direct_attention.h ask of a port, on a host, as the PTX manual describes it: for tests.
//
// Copies are made as late as they may be, or at once, as a test asks: the one finds reads that do
// not wait, the other finds stages that are filled while they are read. Shared memory begins as
// NaN. `faults` counts what a GPU would not forgive.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fibers.h"
#include "lanes.h"

namespace blink {

struct Faults {
    uint32_t early_reads = 0;     // of what the kernel ahead writes
    uint32_t outside = 0;         // of an array or of shared memory
    uint32_t misaligned = 0;      // accesses of 16 bytes
    uint32_t bank_conflicts = 0;  // of 8 lanes that are served at once
    uint32_t arrivals = 0;        // at a barrier, more than its phase expects

    void add(const Faults& other) {
        early_reads += other.early_reads;
        outside += other.outside;
        misaligned += other.misaligned;
        bank_conflicts += other.bank_conflicts;
        arrivals += other.arrivals;
    }
};

struct Range {
    const void* begin;
    size_t bytes;

    bool holds(const void* at, size_t count) const {
        const auto from = reinterpret_cast<uintptr_t>(begin), place = reinterpret_cast<uintptr_t>(at);
        return place >= from && place + count <= from + bytes;
    }
};

struct HostCluster;

// What the threads of one block share.
struct HostBlock {
    HostBlock(uint32_t number, uint32_t warps, size_t shared_bytes, bool copies_late, uint32_t seed)
        : HostBlock(std::make_shared<Fibers>(seed), number, warps, shared_bytes, copies_late) {}

    // Beside others on the same fibers.
    HostBlock(std::shared_ptr<Fibers> shared_fibers, uint32_t number, uint32_t warps, size_t shared_bytes,
              bool copies_late)
        : number(number), copies_late(copies_late), own_fibers(std::move(shared_fibers)), fibers(*own_fibers),
          barrier(fibers, 32 * warps), mail(fibers), shared((shared_bytes + 15) / 16) {
        std::memset(static_cast<void*>(shared.data()), 0xff, 16 * shared.size());
        for (uint32_t i = 0; i < warps; ++i) this->warps.emplace_back(fibers);
    }

    // `work(lanes)` by every thread. False where some wait for good.
    template <class Work>
    bool run(Work work);

    struct Fragments {
        uint32_t a[4], b[2];
        float value;
        const Chunk* row;
    };

    struct Warp {
        explicit Warp(Fibers& fibers) : barrier(fibers, 32) {}
        Fibers::Barrier barrier;
        Fragments lanes[2][32];
        std::map<uint32_t, std::vector<const Chunk*>> reads[4];  // by quarter and number, not yet complete
    };

    const uint32_t number;
    const bool copies_late;
    const std::shared_ptr<Fibers> own_fibers;
    Fibers& fibers;
    Fibers::Barrier barrier;
    HostCluster* cluster = nullptr;
    Fibers::Event mail;
    std::optional<uint32_t> mail_expected;  // bytes that are still to come
    std::vector<Chunk> shared;
    uint32_t before = 0;  // a counter's number that one thread tells all
    std::deque<Warp> warps;
    std::vector<Range> constant;   // what copies and loads may read at any time
    std::vector<Range> published;  // what the kernel ahead writes
    Faults faults;
};

// Blocks that run at once.
struct HostCluster {
    HostCluster(uint32_t first, uint32_t count, uint32_t warps, size_t shared_bytes, bool copies_late, uint32_t seed)
        : fibers(std::make_shared<Fibers>(seed)), threads(32 * warps), barrier(*fibers, count * threads) {
        for (uint32_t i = 0; i < count; ++i)
            blocks.emplace_back(fibers, first + i, warps, shared_bytes, copies_late).cluster = this;
    }

    // `work(lanes)` by every thread. False where some wait for good.
    template <class Work>
    bool run(Work work);

    const std::shared_ptr<Fibers> fibers;
    const uint32_t threads;  // of a block
    Fibers::Barrier barrier;
    std::deque<HostBlock> blocks;
};

class HostLanes {
  public:
    HostLanes(HostBlock& block, uint32_t thread) : block_(block), warp_(block.warps[thread / 32]), thread_(thread) {}

    uint32_t thread() const { return thread_; }
    uint32_t block() const { return block_.number; }
    void* shared() { return block_.shared.data(); }
    void sync() { block_.barrier.arrive_and_wait(); }
    void sync_warp() { warp_.barrier.arrive_and_wait(); }
    float exchange(float value, uint32_t lane) {
        auto& lanes = next_lanes();
        lanes[thread_ % 32].value = value;
        warp_.barrier.arrive_and_wait();
        return lanes[lane].value;
    }
    float exchange_xor(float value, uint32_t mask) { return exchange(value, thread_ % 32 ^ mask); }
    uint32_t count(bool condition) {
        auto& lanes = next_lanes();
        lanes[thread_ % 32].a[0] = condition ? 1 : 0;
        warp_.barrier.arrive_and_wait();
        uint32_t count = 0;
        for (const HostBlock::Fragments& lane : lanes) count += lane.a[0];
        return count;
    }
    void let_next_in() {}
    void await_previous() { awaited_ = true; }

    void copy(Chunk* to, const uint16_t* from) {
        check_source(from, sizeof *to);
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
        check_source(from, sizeof(Chunk));
        Chunk value;
        std::memcpy(&value, from, sizeof value);
        return value;
    }
    template <class Value>
    Value fetch(const Value* from) {
        check_source(from, sizeof *from);
        return *from;
    }
    Chunk load_ahead(const uint16_t* from) { return load(from); }
    Chunk read(const Chunk* from) {
        note_read(from);
        return *checked(from);
    }
    void write(Chunk* to, const Chunk& value) { *checked(to) = value; }

    // Lane 8 * i + j tells row j of matrix i; word i of lane 4 * g + t is elements 2 * t and 2 * t + 1
    // of row g of that matrix.
    Chunk read_matrices(const Chunk* row) {
        const auto& lanes = tell_row(row);
        const uint32_t g = thread_ % 32 / 4, t = thread_ % 4;
        Chunk value;
        for (uint32_t i = 0; i < 4; ++i) value.word[i] = lanes[8 * i + g].row->word[t];
        return value;
    }
    // The same of elements g of rows 2 * t and 2 * t + 1.
    Chunk read_transposed(const Chunk* row) {
        const auto& lanes = tell_row(row);
        const uint32_t g = thread_ % 32 / 4, t = thread_ % 4;
        Chunk value;
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t first = lanes[8 * i + 2 * t].row->word[g / 2],
                           second = lanes[8 * i + 2 * t + 1].row->word[g / 2];
            const uint32_t shift = g % 2 * 16;
            value.word[i] = (first >> shift & 0xffff) | (second >> shift & 0xffff) << 16;
        }
        return value;
    }

    // Lane 4 * g + t tells columns 2 * t and 2 * t + 1 of row g.
    uint32_t transpose(uint32_t word) {
        auto& lanes = next_lanes();
        lanes[thread_ % 32].a[0] = word;
        warp_.barrier.arrive_and_wait();
        const uint32_t g = thread_ % 32 / 4, t = thread_ % 4, shift = g % 2 * 16;
        const uint32_t first = lanes[4 * (2 * t) + g / 2].a[0], second = lanes[4 * (2 * t + 1) + g / 2].a[0];
        return (first >> shift & 0xffff) | (second >> shift & 0xffff) << 16;
    }

    void open_mailbox(uint64_t* mailbox, uint32_t bytes) {
        check_mailbox(mailbox);
        if (block_.cluster->blocks.size() < 2) block_.faults.outside += 1;  // launched without a cluster
        block_.mail_expected = bytes;
    }
    void enter_cluster() {}
    void await_cluster() {
        block_.cluster->barrier.arrive_and_wait();
        cluster_begun_ = true;
    }
    void send(float* to, uint64_t* mailbox, uint32_t rank, float value) {
        check_mailbox(mailbox);
        HostBlock& other = block_.cluster->blocks.at(rank);
        const size_t at = reinterpret_cast<char*>(to) - reinterpret_cast<char*>(block_.shared.data());
        if (!cluster_begun_ || !other.mail_expected || *other.mail_expected < sizeof value ||
            at + sizeof value > sizeof(Chunk) * other.shared.size()) {
            block_.faults.outside += 1;
            return;
        }
        std::memcpy(reinterpret_cast<char*>(other.shared.data()) + at, &value, sizeof value);
        *other.mail_expected -= sizeof value;
        if (*other.mail_expected == 0) other.mail.tell();
    }
    void await_mailbox(uint64_t* mailbox) {
        check_mailbox(mailbox);
        while (block_.mail_expected != 0u) block_.mail.wait();
    }

    // Blocks run one after the other, so that there is nothing to order.
    uint32_t add(uint32_t* counter) { return (*counter)++; }
    uint32_t arrive(uint32_t* counter) {
        sync();
        if (thread_ == 0) block_.before = add(counter);
        sync();
        return block_.before;
    }

    // Lane 4 * g + t holds of a, [16, 16]: rows g, g + 8, g, g + 8 and columns 2 * t on, twice,
    // then 2 * t + 8 on; of b, [16, 8]: rows 2 * t on and 2 * t + 8 on of column g; of the sums,
    // [16, 8]: columns 2 * t on of row g, then of row g + 8.
    void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t* b) {
        auto& lanes = next_lanes();
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

    void check_source(const void* at, size_t count) {
        const auto holds = [at, count](const Range& range) { return range.holds(at, count); };
        if (reinterpret_cast<uintptr_t>(at) % count != 0) block_.faults.misaligned += 1;
        if (std::ranges::any_of(block_.published, holds))
            block_.faults.early_reads += awaited_ ? 0u : 1u;
        else if (!std::ranges::any_of(block_.constant, holds))
            block_.faults.outside += 1;
    }

    void check_mailbox(const uint64_t* mailbox) {
        if (reinterpret_cast<uintptr_t>(mailbox) % sizeof *mailbox != 0) block_.faults.misaligned += 1;
        if (!Range{block_.shared.data(), 16 * block_.shared.size()}.holds(mailbox, sizeof *mailbox))
            block_.faults.outside += 1;
    }

    // Itself; the first chunk where it lies outside.
    template <class Pointer>
    Pointer checked(Pointer at) {
        if (reinterpret_cast<uintptr_t>(at) % sizeof(Chunk) != 0) block_.faults.misaligned += 1;
        if (Range{block_.shared.data(), 16 * block_.shared.size()}.holds(at, sizeof(Chunk))) return at;
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

    const HostBlock::Fragments (&tell_row(const Chunk* row))[32] {
        note_read(row);
        auto& lanes = next_lanes();
        lanes[thread_ % 32].row = checked(row);
        warp_.barrier.arrive_and_wait();
        return lanes;
    }

    // Those of two successive exchanges lie apart, so that one barrier is enough.
    HostBlock::Fragments (&next_lanes())[32] { return warp_.lanes[parity_ ^= 1]; }

    HostBlock& block_;
    HostBlock::Warp& warp_;
    const uint32_t thread_;
    bool awaited_ = false;
    bool cluster_begun_ = false;
    uint32_t parity_ = 0;
    uint32_t reads_ = 0;
    std::vector<Copy> open_;
    std::deque<std::vector<Copy>> groups_;
};

template <class Work>
bool HostCluster::run(Work work) {
    try {
        fibers->run(threads * static_cast<uint32_t>(blocks.size()), [&](uint32_t thread) {
            HostLanes lanes(blocks[thread / threads], thread % threads);
            work(lanes);
        });
    } catch (const std::runtime_error&) {
        return false;
    }
    return true;
}

template <class Work>
bool HostBlock::run(Work work) {
    try {
        fibers.run(static_cast<uint32_t>(32 * warps.size()), [&](uint32_t thread) {
            HostLanes lanes(*this, thread);
            work(lanes);
        });
    } catch (const std::runtime_error&) {
        return false;
    }
    return true;
}

}  // namespace blink
