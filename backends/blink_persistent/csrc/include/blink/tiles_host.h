// What wide_product.h asks of a port, on a host, as the PTX manual describes it: for tests.
//
// Either copies are made as late as they may be, when a thread waits for them, or multiplications
// are, when they are waited for: the one finds reads that do not wait, the other finds stages that
// are filled while they are read. Shared memory begins as NaN. `faults` counts what a GPU would not
// forgive.
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

struct TileCluster;

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

    TileBlock(TileCluster& cluster, uint32_t number, uint32_t rank, uint32_t warps, size_t shared_bytes);

    // In shared memory that is somebody else's.
    TileBlock(TileCluster& cluster, uint32_t number, uint32_t warps, void* shared, size_t shared_bytes);

    unsigned char* shared() { return begin; }
    bool holds(const unsigned char* at, size_t bytes) {
        return at >= shared() && at + bytes <= shared() + shared_bytes;
    }

    TileCluster& cluster;
    const uint32_t number, rank;
    const size_t shared_bytes;
    std::vector<unsigned char> memory;
    unsigned char* const begin;
    std::deque<Fibers::Barrier> warps;
    std::map<const uint64_t*, Barrier> barriers;
};

// Blocks that run at once.
struct TileCluster {
    TileCluster(uint32_t first, uint32_t count, uint32_t warps, size_t shared_bytes, bool copies_late, uint32_t seed)
        : TileCluster(std::make_shared<Fibers>(seed), count, warps, copies_late) {
        for (uint32_t i = 0; i < count; ++i) blocks.emplace_back(*this, first + i, i, warps, shared_bytes);
    }

    // Without its blocks, beside others on the same fibers.
    TileCluster(std::shared_ptr<Fibers> shared_fibers, uint32_t count, uint32_t warps, bool copies_late)
        : copies_late(copies_late), threads(32 * warps), own_fibers(std::move(shared_fibers)), fibers(*own_fibers),
          all(fibers, count * 32 * warps) {}

    // `work(tiles)` by every thread. False where some wait for good.
    template <class Work>
    bool run(Work work);

    const bool copies_late;
    const uint32_t threads;  // of a block
    const std::shared_ptr<Fibers> own_fibers;
    Fibers& fibers;
    Fibers::Barrier all;
    std::deque<TileBlock> blocks;
    TileFaults faults;
};

inline TileBlock::TileBlock(TileCluster& cluster, uint32_t number, uint32_t rank, uint32_t warps, size_t shared_bytes)
    : cluster(cluster), number(number), rank(rank), shared_bytes(shared_bytes), memory(shared_bytes + 1023, 0xff),
      begin(memory.data() + (0 - reinterpret_cast<uintptr_t>(memory.data())) % 1024) {
    for (uint32_t i = 0; i < warps; ++i) this->warps.emplace_back(cluster.fibers, 32);
}

inline TileBlock::TileBlock(TileCluster& cluster, uint32_t number, uint32_t warps, void* shared, size_t shared_bytes)
    : cluster(cluster), number(number), rank(0), shared_bytes(shared_bytes),
      begin(static_cast<unsigned char*>(shared)) {
    for (uint32_t i = 0; i < warps; ++i) this->warps.emplace_back(cluster.fibers, 32);
}

class HostTiles {
  public:
    HostTiles(TileBlock& block, uint32_t thread) : block_(block), thread_(thread) {}

    uint32_t thread() const { return thread_; }
    uint32_t warp() const { return thread_ / 32; }
    uint32_t block() const { return block_.number; }
    void* shared() { return block_.shared(); }
    void let_next_in() {}
    void await_previous() { awaited_ = true; }
    void sync() { block_.cluster.all.arrive_and_wait(); }
    void fetch_map(const HostMap*) {}

    void make_barrier(uint64_t* barrier, uint32_t count) {
        auto& made = block_.barriers.try_emplace(barrier, block_.cluster.fibers).first->second;
        made.count = made.pending = count;
    }
    void make_barriers(uint64_t* barriers, uint32_t number, uint32_t count) {
        for (uint32_t i = 0; i < number; ++i) make_barrier(barriers + i, count);
    }
    void expect(uint64_t* barrier, uint32_t bytes) {
        find(block_, barrier).bytes += bytes;
        arrive(barrier);
    }
    void arrive(uint64_t* barrier) { arrive_at(barrier, block_.rank); }
    void arrive_at(uint64_t* barrier, uint32_t rank) {
        TileBlock& block = block_.cluster.blocks.at(rank);
        TileBlock::Barrier& there = find(block, like(barrier, block));
        if (there.pending == 0)
            faults().arrivals += 1;
        else
            there.pending -= 1;
        complete(there);
    }
    void await(uint64_t* barrier, uint32_t parity) {
        TileBlock::Barrier& there = find(block_, barrier);
        while (true) {
            for (const TileBlock::Box& box : std::exchange(there.late, {})) land(box, there);
            if (there.phase % 2 != parity) return;
            there.event.wait();
        }
    }

    void copy_once(unsigned char* to, const HostMap* map, uint32_t inner, uint32_t row, uint64_t* barrier) {
        copy(block_, to, map, inner, row, barrier);
    }
    void copy_often(unsigned char* to, const HostMap* map, uint32_t inner, uint32_t row, uint64_t* barrier) {
        copy(block_, to, map, inner, row, barrier);
    }
    void copy_to_all(unsigned char* to, const HostMap* map, uint32_t inner, uint32_t row, uint64_t* barrier) {
        for (TileBlock& block : block_.cluster.blocks)
            copy(block, like(to, block), map, inner, row, like(barrier, block));
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
        if (block_.cluster.copies_late)
            work();
        else
            open_.push_back(work);
    }

    void store(float* to, float value) { *to = value; }
    void store(uint16_t* to, float value) { store_feature(to, value); }

  private:
    TileFaults& faults() { return block_.cluster.faults; }

    // The same place of another block.
    template <class Value>
    Value* like(Value* place, TileBlock& block) {
        auto* at = reinterpret_cast<unsigned char*>(place);
        return reinterpret_cast<Value*>(block.shared() + (at - block_.shared()));
    }

    TileBlock::Barrier& find(TileBlock& block, const uint64_t* barrier) {
        const auto found = block.barriers.find(barrier);
        if (found != block.barriers.end()) return found->second;
        faults().outside += 1;
        return block.barriers.try_emplace(barrier, block_.cluster.fibers).first->second;
    }

    void complete(TileBlock::Barrier& barrier) {
        if (barrier.pending > 0 || barrier.bytes != 0) return;
        barrier.pending = barrier.count;
        barrier.phase += 1;
        barrier.event.tell();
    }

    void copy(TileBlock& block, unsigned char* to, const HostMap* map, uint32_t inner, uint32_t row,
              uint64_t* barrier) {
        if (map->published && !awaited_) faults().early_reads += 1;
        if ((to - block.shared()) % 1024 != 0) faults().misaligned += 1;
        if (!block.holds(to, 128 * size_t{map->box_rows})) {
            faults().outside += 1;
            return;
        }
        TileBlock::Barrier& there = find(block, barrier);
        const TileBlock::Box box{to, map, inner, row};
        if (!block_.cluster.copies_late) {
            land(box, there);
            return;
        }
        there.late.push_back(box);
        there.event.tell();  // who waits already makes it
    }

    // Chunk c of row r lies where chunk c ^ r % 8 would without the swizzle.
    void land(const TileBlock::Box& box, TileBlock::Barrier& barrier) {
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

    // `matrix` may begin some chunks into its rows.
    float element(const unsigned char* matrix, uint32_t row, uint32_t k) {
        const size_t begin = static_cast<size_t>(matrix - block_.shared()), byte = begin % 128 + 2 * k;
        if ((begin - begin % 128) % 1024 != 0) faults().misaligned += 1;
        const unsigned char* at = matrix - begin % 128 + 128 * row + 16 * (byte / 16 ^ row % 8) + byte % 16;
        if (!block_.holds(at, 2)) {
            faults().outside += 1;
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
bool TileCluster::run(Work work) {
    try {
        fibers.run(threads * static_cast<uint32_t>(blocks.size()), [&](uint32_t thread) {
            HostTiles tiles(blocks[thread / threads], thread % threads);
            work(tiles);
        });
    } catch (const std::runtime_error&) {
        return false;
    }
    return true;
}

}  // namespace blink
