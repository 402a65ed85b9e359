// What even_attention.h asks of a port, on a host: for tests. Lanes as in lanes_host.h; barriers and
// copies, in the same shared memory, as in tiles_host.h.
#pragma once

#include "lanes_host.h"
#include "tiles_host.h"

namespace blink {

// What the threads of one block share.
struct PageBlock {
    // The first `together` of its threads may wait for each other alone.
    PageBlock(uint32_t number, uint32_t blocks, uint32_t warps, uint32_t together, size_t shared_bytes,
              bool copies_late, uint32_t seed)
        : blocks(blocks), together(together), lanes(number, warps, shared_bytes, copies_late, seed),
          tiles(lanes.own_fibers, number, warps, lanes.shared.data(), shared_bytes, copies_late),
          some(lanes.fibers, together) {}

    // `work(pages)` by every thread. False where some wait for good.
    template <class Work>
    bool run(Work work);

    Faults faults() const {
        Faults all = lanes.faults;
        all.add({.outside = tiles.faults.outside,
                 .misaligned = tiles.faults.misaligned,
                 .arrivals = tiles.faults.arrivals});
        return all;
    }

    const uint32_t blocks, together;
    HostBlock lanes;
    TileBlock tiles;
    Fibers::Barrier some;
};

class HostPages : public HostLanes {
  public:
    HostPages(PageBlock& block, uint32_t thread)
        : HostLanes(block.lanes, thread), block_(block), tiles_(block.tiles, thread) {}

    uint32_t blocks() const { return block_.blocks; }
    template <uint32_t kThreads>
    void sync_some() {
        if (kThreads != block_.together || thread() >= kThreads) block_.lanes.faults.outside += 1;
        block_.some.arrive_and_wait();
    }

    void make_barrier(uint64_t* barrier, uint32_t count) { tiles_.make_barrier(barrier, count); }
    void expect(uint64_t* barrier, uint32_t bytes) { tiles_.expect(barrier, bytes); }
    void await(uint64_t* barrier, uint32_t parity) { tiles_.await(barrier, parity); }
    void arrive(uint64_t* barrier) { tiles_.arrive(barrier); }

    void begin_copies() {}
    void copy_once(Chunk* to, const HostMap* map, uint32_t inner, uint32_t row, uint64_t* barrier) {
        tiles_.copy_once(reinterpret_cast<unsigned char*>(to), map, inner, row, barrier);
    }

  private:
    PageBlock& block_;
    HostTiles tiles_;
};

template <class Work>
bool PageBlock::run(Work work) {
    try {
        lanes.fibers.run(static_cast<uint32_t>(32 * lanes.warps.size()), [&](uint32_t thread) {
            HostPages pages(*this, thread);
            work(pages);
        });
    } catch (const std::runtime_error&) {
        return false;
    }
    return true;
}

}  // namespace blink
