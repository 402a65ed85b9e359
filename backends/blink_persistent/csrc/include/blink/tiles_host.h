// What wide_product.h asks of a port, on a host, as the PTX manual describes it: for tests.
//
// Either copies are made as late as they may be, when nothing else can go on, in any order, or
// multiplications are, when they are waited for: the one finds reads that do not wait, or not for all,
// the other finds stages that are filled while they are read. Shared memory begins as NaN. `faults`
// counts what a GPU would not forgive.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "fibers.h"
#include "lanes.h"

namespace blink {

struct TileFaults {
    uint32_t early_reads = 0;  // of what the kernel ahead writes
    uint32_t outside = 0;      // of shared memory, or of barriers that are not made
    uint32_t misaligned = 0;   // boxes and matrices
    uint32_t arrivals = 0;     // more than a barrier's phase expects
};

// Of a matrix of bfloat16, row by row; a box is 64 inner elements of `box_rows` rows.
struct HostMap {
    const uint16_t* begin;
    uint32_t depth, rows, box_rows;
    bool published;  // by the kernel ahead
};

// What the threads of one block share.
struct TileBlock {
    struct Box {
        unsigned char* to;
        const HostMap* map;
        uint32_t inner, row;
    };

    struct Barrier {
        explicit Barrier(Fibers& fibers) : event(fibers) {}
        uint32_t count = 0, pending = 0, phase = 0;
        int64_t bytes = 0;  // expected and not yet there
        Fibers::Event event;
        std::vector<Box> late;
    };

    TileBlock(uint32_t number, uint32_t warps, size_t shared_bytes, bool copies_late, uint32_t seed)
        : TileBlock(std::make_shared<Fibers>(seed), number, warps, nullptr, shared_bytes, copies_late) {}

    // On fibers and in shared memory that are somebody else's; in its own where `shared` is null.
    TileBlock(std::shared_ptr<Fibers> shared_fibers, uint32_t number, uint32_t warps, void* shared, size_t shared_bytes,
              bool copies_late)
        : number(number), copies_late(copies_late), own_fibers(std::move(shared_fibers)), fibers(*own_fibers),
          all(fibers, 32 * warps), shared_bytes(shared_bytes),
          memory(shared == nullptr ? shared_bytes + 1023 : 0, 0xff),
          shared(shared == nullptr ? aligned(memory.data()) : static_cast<unsigned char*>(shared)) {
        for (uint32_t i = 0; i < warps; ++i) this->warps.emplace_back(fibers, 32);
        if (copies_late) fibers.when_all_wait([this] { return land_some(); });
    }

    // `work(tiles)` by every thread. False where some wait for good.
    template <class Work>
    bool run(Work work);

    bool holds(const unsigned char* at, size_t bytes) const {
        return at >= shared && at + bytes <= shared + shared_bytes;
    }

    void copy(const Box& box, Barrier& barrier) {
        if (!copies_late) return land(box, barrier);
        if (barrier.late.empty()) late.push_back(&barrier);
        barrier.late.push_back(box);
    }

    void complete(Barrier& barrier) {
        if (barrier.pending > 0 || barrier.bytes != 0) return;
        barrier.pending = barrier.count;
        barrier.phase += 1;
        barrier.event.tell();
    }

    const uint32_t number;
    const bool copies_late;
    const std::shared_ptr<Fibers> own_fibers;
    Fibers& fibers;
    Fibers::Barrier all;
    const size_t shared_bytes;
    std::vector<unsigned char> memory;
    unsigned char* const shared;
    std::deque<Fibers::Barrier> warps;
    std::map<const uint64_t*, Barrier> barriers;
    std::vector<Barrier*> late;
    TileFaults faults;

  private:
    // Those of one barrier.
    bool land_some() {
        if (late.empty()) return false;
        std::swap(late[fibers.any() % late.size()], late.back());
        Barrier& barrier = *late.back();
        late.pop_back();
        for (const Box& box : std::exchange(barrier.late, {})) land(box, barrier);
        return true;
    }

    // Chunk c of row r lies where chunk c ^ r % 8 would without the swizzle.
    void land(const Box& box, Barrier& barrier) {
        for (uint32_t r = 0; r < box.map->box_rows; ++r)
            for (uint32_t c = 0; c < 8; ++c) {
                uint16_t chunk[8] = {};
                for (uint32_t i = 0; i < 8; ++i) {
                    const uint32_t row = box.row + r, inner = box.inner + 8 * c + i;
                    if (row < box.map->rows && inner < box.map->depth)
                        chunk[i] = box.map->begin[size_t{row} * box.map->depth + inner];
                }
                std::memcpy(box.to + 128 * r + 16 * (c ^ r % 8), chunk, sizeof chunk);
            }
        barrier.bytes -= 128 * int64_t{box.map->box_rows};
        complete(barrier);
    }

    static unsigned char* aligned(unsigned char* at) { return at + (0 - reinterpret_cast<uintptr_t>(at)) % 1024; }
};

class HostTiles {
  public:
    HostTiles(TileBlock& block, uint32_t thread) : block_(block), thread_(thread) {}

    uint32_t thread() const { return thread_; }
    uint32_t warp() const { return thread_ / 32; }
    uint32_t block() const { return block_.number; }
    void* shared() { return block_.shared; }
    void let_next_in() {}
    void await_previous() { awaited_ = true; }
    void sync() { block_.all.arrive_and_wait(); }
    void fetch_map(const HostMap*) {}

    void make_barrier(uint64_t* barrier, uint32_t count) {
        auto& made = block_.barriers.try_emplace(barrier, block_.fibers).first->second;
        made.count = made.pending = count;
    }
    void make_barriers(uint64_t* barriers, uint32_t number, uint32_t count) {
        for (uint32_t i = 0; i < number; ++i) make_barrier(barriers + i, count);
    }
    void expect(uint64_t* barrier, uint32_t bytes) {
        find(barrier).bytes += bytes;
        arrive(barrier);
    }
    void arrive(uint64_t* barrier) {
        TileBlock::Barrier& there = find(barrier);
        if (there.pending == 0)
            block_.faults.arrivals += 1;
        else
            there.pending -= 1;
        block_.complete(there);
    }
    void await(uint64_t* barrier, uint32_t parity) {
        TileBlock::Barrier& there = find(barrier);
        while (there.phase % 2 == parity) there.event.wait();
    }

    void copy_once(unsigned char* to, const HostMap* map, uint32_t inner, uint32_t row, uint64_t* barrier) {
        copy(to, map, inner, row, barrier);
    }
    void copy_often(unsigned char* to, const HostMap* map, uint32_t inner, uint32_t row, uint64_t* barrier) {
        copy(to, map, inner, row, barrier);
    }

    // A warp's lanes go together.
    void begin_multiply() { block_.warps[warp()].arrive_and_wait(); }
    void commit_multiply() { groups_.push_back(std::exchange(open_, {})); }
    template <uint32_t kPending, uint32_t kParts, uint32_t kSums>
    void await_multiplied(float (&)[kParts][kSums]) {
        for (; groups_.size() > kPending; groups_.pop_front())
            for (const auto& multiplication : groups_.front()) multiplication();
        block_.warps[warp()].arrive_and_wait();
    }
    template <uint32_t kSums>
    void multiply(float (&sums)[kSums], const unsigned char* a, const unsigned char* b, bool add) {
        auto work = [this, &sums, a, b, add] {
            const uint32_t q = thread_ / 32 % 4, g = thread_ % 32 / 4, t = thread_ % 4;
            for (uint32_t i = 0; i < kSums; ++i) {
                float sum = add ? sums[i] : 0.0f;
                for (uint32_t k = 0; k < 16; ++k)
                    sum += element(a, 16 * q + g + i / 2 % 2 * 8, k) * element(b, i / 4 * 8 + 2 * t + i % 2, k);
                sums[i] = sum;
            }
        };
        if (block_.copies_late)
            work();
        else
            open_.push_back(work);
    }

    void store(float* to, float value) { *to = value; }
    void store(uint16_t* to, float value) { store_feature(to, value); }

  private:
    TileBlock::Barrier& find(const uint64_t* barrier) {
        const auto found = block_.barriers.find(barrier);
        if (found != block_.barriers.end()) return found->second;
        block_.faults.outside += 1;
        return block_.barriers.try_emplace(barrier, block_.fibers).first->second;
    }

    void copy(unsigned char* to, const HostMap* map, uint32_t inner, uint32_t row, uint64_t* barrier) {
        if (map->published && !awaited_) block_.faults.early_reads += 1;
        if ((to - block_.shared) % 1024 != 0) block_.faults.misaligned += 1;
        if (!block_.holds(to, 128 * size_t{map->box_rows})) {
            block_.faults.outside += 1;
            return;
        }
        block_.copy({to, map, inner, row}, find(barrier));
    }

    // `matrix` may begin some chunks into its rows.
    float element(const unsigned char* matrix, uint32_t row, uint32_t k) {
        const size_t begin = static_cast<size_t>(matrix - block_.shared), byte = begin % 128 + 2 * k;
        if ((begin - begin % 128) % 1024 != 0) block_.faults.misaligned += 1;
        const unsigned char* at = matrix - begin % 128 + 128 * row + 16 * (byte / 16 ^ row % 8) + byte % 16;
        if (!block_.holds(at, 2)) {
            block_.faults.outside += 1;
            return 0.0f;
        }
        uint16_t bits;
        std::memcpy(&bits, at, sizeof bits);
        return float_of(bits);
    }

    TileBlock& block_;
    const uint32_t thread_;
    bool awaited_ = false;
    std::vector<std::function<void()>> open_;
    std::deque<std::vector<std::function<void()>>> groups_;
};

template <class Work>
bool TileBlock::run(Work work) {
    try {
        fibers.run(static_cast<uint32_t>(32 * warps.size()), [&](uint32_t thread) {
            HostTiles tiles(*this, thread);
            work(tiles);
        });
    } catch (const std::runtime_error&) {
        return false;
    }
    return true;
}

}  // namespace blink
