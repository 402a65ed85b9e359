// What layers_step.h asks of a port, on a host: that of tiles_host.h, for blocks that run at once
// and meet.
#pragma once

#include <array>
#include <utility>

#include "lanes_host.h"
#include "layers_call.h"
#include "tiles_host.h"

namespace blink {

// Of a matrix of which a box has the same rows of some equal parts, and some windows.
struct HostLayerMap {
    HostMap matrix;
    uint32_t parts, windows;
};

// A block: lanes as in lanes_host.h; barriers and copies, in the same shared memory, as in tiles_host.h.
struct LayersBlock {
    LayersBlock(std::shared_ptr<Fibers> fibers, uint32_t number, uint32_t warps, size_t shared_bytes, bool copies_late)
        : lanes(fibers, number, warps, shared_bytes, copies_late),
          tiles(fibers, number, warps, lanes.shared.data(), shared_bytes, copies_late), values(32 * warps) {}

    HostBlock lanes;
    TileBlock tiles;
    std::vector<float> values;  // of threads, for their warps
    std::map<std::pair<uint32_t, uint32_t>, Fibers::Barrier> syncs;
};

// What the blocks share. As the seed decides, one warp of every second block and one whole block are
// slow, or none: behind a wait they go on when nobody else can. That finds what is written while it is
// read, and what is told before it is written.
struct LayersGrid {
    LayersGrid(uint32_t blocks, uint32_t warps, size_t shared_bytes, bool copies_late, uint32_t seed)
        : fibers(std::make_shared<Fibers>(seed)), event(*fibers), slow_warp(seed % (warps + 1)),
          slow_block(slow_warp < warps ? seed % blocks : blocks), slow_event(*fibers) {
        for (uint32_t i = 0; i < blocks; ++i) this->blocks.emplace_back(fibers, i, warps, shared_bytes, copies_late);
        fibers->when_all_wait([this] {
            if (!std::exchange(any_slow, false)) return false;
            slow_event.tell();
            return true;
        });
    }

    bool is_slow(uint32_t block, uint32_t warp) const {
        return block == slow_block || (block % 2 == 1 && warp == slow_warp);
    }
    void be_slow() {
        any_slow = true;
        slow_event.wait();
    }

    std::shared_ptr<Fibers> fibers;
    Fibers::Event event;
    const uint32_t slow_warp, slow_block;
    Fibers::Event slow_event;
    bool any_slow = false;  // waits
    std::deque<LayersBlock> blocks;
};

class HostLayers : public HostTiles {
  public:
    HostLayers(LayersGrid& grid, LayersBlock& block, uint32_t thread)
        : HostTiles(block.tiles, thread), grid_(grid), block_(block), lanes_(block.lanes, thread),
          slow_(grid.is_slow(HostTiles::block(), warp())) {}

    void sync() {
        HostTiles::sync();
        go_on();
    }
    void await(uint64_t* barrier, uint32_t parity) {
        HostTiles::await(barrier, parity);
        go_on();
    }

    float exchange(float value, uint32_t lane) { return lanes_.exchange(value, lane); }
    float exchange_xor(float value, uint32_t mask) { return lanes_.exchange_xor(value, mask); }
    Chunk read_matrices(const Chunk* row) { return lanes_.read_matrices(row); }
    Chunk read_transposed(const Chunk* row) { return lanes_.read_transposed(row); }
    using HostTiles::multiply;
    void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t* b) { lanes_.multiply(sums, a, b); }
    uint32_t add(uint32_t* counter) { return lanes_.add(counter); }
    uint32_t blocks() const { return static_cast<uint32_t>(grid_.blocks.size()); }
    uint32_t count(bool condition) { return lanes_.count(condition); }
    // Of what other blocks wrote, too, for which lanes_host.h has no word.
    Chunk load(const uint16_t* from) { return load_aligned<Chunk>(from); }
    template <class Value>
    Value fetch(const Value* from) {
        return load_aligned<Value>(from);
    }
    void write(Chunk* to, const Chunk& value) { lanes_.write(to, value); }

    void copy_weights(unsigned char* to, const HostLayerMap* map, uint32_t row, uint32_t window, uint64_t* barrier) {
        const HostMap& matrix = map->matrix;
        for (uint32_t i = 0; i < map->windows * map->parts; ++i, to += 128 * matrix.box_rows)
            copy_once(to, &matrix, 64 * (window + i / map->parts), i % map->parts * (matrix.rows / map->parts) + row,
                      barrier);
    }
    void copy_inputs(unsigned char* to, const HostLayerMap* map, uint32_t window, uint64_t* barrier) {
        copy_weights(to, map, 0, window, barrier);
    }
    void fetch_map(const HostLayerMap*) {}
    static const unsigned char* matrix(const unsigned char* place) { return place; }
    static const unsigned char* beyond(const unsigned char* matrix, uint32_t bytes) { return matrix + bytes; }

    template <uint32_t kNumber, uint32_t kThreads>
    void sync_some() {
        block_.syncs.try_emplace({kNumber, kThreads}, *grid_.fibers, kThreads).first->second.arrive_and_wait();
        go_on();
    }
    static uint32_t fresh(uint32_t value) { return value; }
    void sync_warp() { lanes_.sync_warp(); }
    float sum_over(float value, uint32_t first_lane) {
        float* const values = block_.values.data();
        for (uint32_t bit = 1; bit < 32; bit *= 2) {
            if (bit < first_lane) continue;
            values[thread()] = value;
            sync_warp();
            value += values[thread() ^ bit];
            sync_warp();
        }
        return value;
    }

    float load_once(const float* from) { return *from; }
    void load_four(const float* from, float (&values)[4]) {
        const auto four = load_aligned<std::array<float, 4>>(from);
        std::copy_n(four.data(), 4, values);
    }

    // What is not published no copy will ever see.
    using HostTiles::store;
    void store(uint16_t* to, float value) { unpublished_.emplace_back(to, value); }
    void publish() {
        for (const auto& [to, value] : std::exchange(unpublished_, {})) HostTiles::store(to, value);
    }
    void count_arrivals(uint64_t* counter, uint64_t number) {
        *counter += number;
        grid_.event.tell();
    }
    void await_arrivals(const uint64_t* counter, uint64_t count) {
        while (*counter < count) grid_.event.wait();
        go_on();
    }

  private:
    void go_on() {
        if (slow_) grid_.be_slow();
    }

    template <class Value>
    Value load_aligned(const void* from) {
        if (reinterpret_cast<uintptr_t>(from) % sizeof(Value) != 0) block_.tiles.faults.misaligned += 1;
        Value value;
        std::memcpy(&value, from, sizeof value);
        return value;
    }

    LayersGrid& grid_;
    LayersBlock& block_;
    HostLanes lanes_;
    const bool slow_;
    std::vector<std::pair<uint16_t*, float>> unpublished_;
};

}  // namespace blink
