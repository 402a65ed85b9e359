// A product of a few rows with a large matrix, whose first weights are on their way before the
// kernel ahead has ended.
//
// One source for the GPU (lanes_gpu.h) and, lane by lane, for the host that tests it
// (lanes_host.h). What a Port must offer:
//
//   thread(), block()               of the block's threads; the block's number
//   shared()                        the block's shared memory, aligned to 128 bytes
//   let_next_in(), await_previous() the halves of programmatic dependent launch
//   copy(shared, global), commit(), wait_copies<N>()
//                                   16 bytes, asynchronous; all but the thread's last N groups
//   load(global)                    16 bytes that the kernel ahead wrote
//   read(shared), write(shared, v)  16 bytes
//   multiply(sums, a, b)            mma.m16n8k16, bfloat16 with float32 sums
//   sync()                          all threads of the block
#pragma once

#include "lanes.h"

namespace blink {

// Of a kernel. Shapes: x [rows, depth], weight [size, depth], or [2 * size, depth] where gated,
// both bfloat16; out [depth / share, rows, size].
struct Product {
    const uint16_t* x;
    const uint16_t* weight;
    void* out;
    uint32_t rows;    // up to 8 * kRowTiles
    uint32_t size;    // output features, at least those of a tile
    uint32_t depth;   // inner elements, a multiple of `share`
    uint32_t share;   // of a split, a multiple of kDepth
    uint32_t blocks;  // of a split; the grid has so many times the splits
};

// Where chunk `chunk` of row `row` lies in a tile of rows of so many chunks: eight lanes that read two
// rows at once find them in different banks.
template <uint32_t kRowChunks>
BLINK_DEV inline uint32_t tile_place(uint32_t row, uint32_t chunk) {
    return row * kRowChunks + (chunk ^ (row % 2 * 4));
}

// Fragments: lane 4 * g + t of a warp holds elements 8 * t to 8 * t + 7 of a window of 32 inner
// elements, of weight rows g and g + 8 and of activation row g. A multiplication sums over inner
// elements in any order, so these feed two mma.m16n8k16 as they lie in memory.
//
// A step is kWindows windows of the activations and of kWarps * kTiles tiles of 16 weight rows;
// kStages steps are in shared memory or on their way. Where gated, a tile is 8 rows of the gate and
// the 8 of the same features of up, so that one lane holds both.
template <class Port, uint32_t kWarps, uint32_t kTiles, uint32_t kRowTiles, uint32_t kWindows, uint32_t kStages,
          bool kGated, class Out>
class PrimedProduct {
  public:
    static constexpr uint32_t kThreads = 32 * kWarps;
    static constexpr uint32_t kDepth = 32 * kWindows;  // inner elements of a step
    static constexpr uint32_t kRowChunks = kDepth / 8;
    static constexpr uint32_t kTileChunks = 16 * kRowChunks;
    static constexpr uint32_t kStageChunks = kWarps * kTiles * kTileChunks;
    static constexpr uint32_t kInputChunks = 8 * kRowTiles * kRowChunks;
    static constexpr uint32_t kSharedBytes = 16 * kStages * (kStageChunks + kInputChunks);
    static constexpr uint32_t kFeatures = kGated ? 8 : 16;  // of a tile
    static_assert((kWindows == 2 || kWindows == 4) && kStages >= 2);

    BLINK_DEV PrimedProduct(Port& port, const Product& product)
        : port_(port), product_(product), warp_(port.thread() / 32), lane_(port.thread() % 32),
          weights_(static_cast<Chunk*>(port.shared())), inputs_(weights_ + kStages * kStageChunks),
          split_(port.block() / product.blocks) {
        const uint32_t block = port.block() % product.blocks;
        const uint32_t tiles = (product.size + kFeatures - 1) / kFeatures;  // by so few blocks: 32 bits
        first_ = tiles * block / product.blocks;
        last_ = tiles * (block + 1) / product.blocks;
        passes_ = (last_ - first_ + kWarps * kTiles - 1) / (kWarps * kTiles);
    }

    BLINK_DEV void run() {
        port_.let_next_in();
        Step ahead;
#pragma unroll 1
        for (uint32_t i = 0; i < kEarlyStages; ++i) load(ahead, false);
        port_.await_previous();
        load_first_inputs();
#pragma unroll 1
        for (uint32_t i = kEarlyStages; i < kStages; ++i) load(ahead, false);
        clear();
        Step step;
        for (bool first = true; step.pass < passes_; first = false) {
            port_.template wait_copies<kStages - 2>();
            port_.sync();
            // All warps are done with the step before, so its stage is free.
            if (!first) load(ahead, true);
            multiply(step.stage);
            const uint32_t pass = step.pass;
            step.advance(product_.share);
            if (step.pass != pass) store_outputs(pass);
        }
    }

  private:
    // Asked for before the kernel ahead has ended: all would hold up its own reads and writes.
    static constexpr uint32_t kEarlyStages = kStages - kStages / 3;
    static constexpr uint32_t kInputsEach = (kInputChunks + kThreads - 1) / kThreads;  // chunks of a thread
    static constexpr uint32_t kStagesAtOnce = kInputsEach >= 8             ? 1
                                              : kStages * kInputsEach <= 8 ? kStages
                                                                           : 8 / kInputsEach;
    static constexpr uint32_t kWindowsAtOnce = kTiles * kRowTiles < 16 ? kWindows : 1;  // more would spill registers
    // A pass is all of the split's inner elements of as many tiles as the block computes at once.
    struct Step {
        uint32_t pass = 0;
        uint32_t inner = 0;  // within the split
        uint32_t stage = 0;

        BLINK_DEV void advance(uint32_t share) {
            stage = stage + 1 == kStages ? 0 : stage + 1;
            inner += kDepth;
            if (inner < share) return;
            inner = 0;
            pass += 1;
        }
    };

    BLINK_DEV uint32_t tile_of(uint32_t pass, uint32_t tile) const {
        return first_ + (pass * kWarps + warp_) * kTiles + tile;
    }

    // The warp's own tiles and a part of the activations. A group is committed also where nothing
    // is left to load.
    BLINK_DEV void load(Step& step, bool with_inputs) {
        if (step.pass < passes_) {
            const uint32_t inner = split_ * product_.share + step.inner;
            Chunk* stage = weights_ + step.stage * kStageChunks + warp_ * kTiles * kTileChunks;
#pragma unroll
            for (uint32_t i = 0; i < kTiles; ++i)
                if (tile_of(step.pass, i) < last_) load_tile(tile_of(step.pass, i), inner, stage + i * kTileChunks);
            if (with_inputs)
                each_input(step, [this](uint32_t, Chunk* to, const uint16_t* from, bool known) {
                    if (known) port_.copy(to, from);
                });
        }
        port_.commit();
        step.advance(product_.share);
    }

    // Those of all stages, by plain loads: a copy would be complete only after the weights before
    // it. Rows that the product does not have stay zero.
    BLINK_DEV void load_first_inputs() {
        Step step, written;
#pragma unroll 1
        for (uint32_t begin = 0; begin < kStages; begin += kStagesAtOnce) {
            Chunk loaded[kStagesAtOnce][kInputsEach];
#pragma unroll
            for (uint32_t i = 0; i < kStagesAtOnce; ++i) {
                const bool needed = begin + i < kStages && step.pass < passes_;
                each_input(step, [this, needed, &loaded, i](uint32_t n, Chunk*, const uint16_t* from, bool known) {
                    loaded[i][n] = known && needed ? port_.load(from) : Chunk{};
                });
                step.advance(product_.share);
            }
#pragma unroll
            for (uint32_t i = 0; i < kStagesAtOnce && begin + i < kStages; ++i) {
                each_input(written, [this, &loaded, i](uint32_t n, Chunk* to, const uint16_t*, bool) {
                    port_.write(to, loaded[i][n]);
                });
                written.stage += 1;
            }
        }
    }

    template <class Visit>
    BLINK_DEV void each_input(const Step& step, Visit visit) {
        Chunk* inputs = inputs_ + step.stage * kInputChunks;
        const uint16_t* x = product_.x + split_ * product_.share + step.inner;
#pragma unroll
        for (uint32_t n = 0; n < kInputsEach; ++n) {
            const uint32_t at = n * kThreads + port_.thread();
            if (at >= kInputChunks) continue;
            const uint32_t row = at / kRowChunks, chunk = at % kRowChunks;
            const uint64_t from = static_cast<uint64_t>(row) * product_.depth + 8 * chunk;
            visit(n, inputs + tile_place<kRowChunks>(row, chunk), x + from, row < product_.rows);
        }
    }

    // The last tile begins early enough to be whole: features that two tiles have come out alike.
    BLINK_DEV uint32_t feature_of(uint32_t tile) const {
        const uint32_t latest = product_.size - kFeatures;
        return tile * kFeatures < latest ? tile * kFeatures : latest;
    }

    BLINK_DEV void load_tile(uint32_t tile, uint32_t inner, Chunk* to) {
        const uint32_t row = lane_ / kRowChunks, chunk = lane_ % kRowChunks;
        const uint64_t depth = product_.depth;
        const uint16_t* from = product_.weight + (feature_of(tile) + row) * depth + inner + 8 * chunk;
        to += tile_place<kRowChunks>(row, chunk);
#pragma unroll
        for (uint32_t at = 0; at < kTileChunks; at += 32) {
            port_.copy(to + at, from);
            from += 32 / kRowChunks * depth;
            if (kGated && at + 32 == kTileChunks / 2) from += (product_.size - kFeatures) * depth;
        }
    }

    BLINK_DEV void multiply(uint32_t number) {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
        const Chunk* stage = weights_ + number * kStageChunks + warp_ * kTiles * kTileChunks;
        const Chunk* inputs = inputs_ + number * kInputChunks;
#pragma unroll(kWindowsAtOnce)
        for (uint32_t window = 0; window < kWindows; ++window) {
            const uint32_t chunk = 4 * window + t;
            Chunk upper[kTiles], lower[kTiles];
#pragma unroll
            for (uint32_t tile = 0; tile < kTiles; ++tile) {
                upper[tile] = port_.read(stage + tile * kTileChunks + tile_place<kRowChunks>(g, chunk));
                lower[tile] = port_.read(stage + tile * kTileChunks + tile_place<kRowChunks>(g + 8, chunk));
            }
#pragma unroll
            for (uint32_t rows = 0; rows < kRowTiles; ++rows) {
                const Chunk x = port_.read(inputs + tile_place<kRowChunks>(8 * rows + g, chunk));
#pragma unroll
                for (uint32_t tile = 0; tile < kTiles; ++tile) {
                    const Chunk &a = upper[tile], &b = lower[tile];
                    const uint32_t first[4] = {a.word[0], b.word[0], a.word[1], b.word[1]};
                    const uint32_t second[4] = {a.word[2], b.word[2], a.word[3], b.word[3]};
                    port_.multiply(sums_[tile][rows], first, x.word);
                    port_.multiply(sums_[tile][rows], second, x.word + 2);
                }
            }
        }
    }

    BLINK_DEV void clear() {
#pragma unroll
        for (uint32_t i = 0; i < kTiles * kRowTiles * 4; ++i) sums_[i / 4 / kRowTiles][i / 4 % kRowTiles][i % 4] = 0.0f;
    }

    BLINK_DEV void store_outputs(uint32_t pass) {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; ++tile) {
            if (tile_of(pass, tile) >= last_) continue;
            const uint64_t row = static_cast<uint64_t>(split_) * product_.rows + 2 * t;
            Out* out = static_cast<Out*>(product_.out) + row * product_.size + feature_of(tile_of(pass, tile)) + g;
#pragma unroll
            for (uint32_t rows = 0; rows < kRowTiles; ++rows) {
#pragma unroll
                for (uint32_t i = 0; i < 2; ++i)
                    if (8 * rows + 2 * t + i < product_.rows) store(out + i * product_.size, sums_[tile][rows] + i);
                out += 8 * static_cast<uint64_t>(product_.size);
            }
        }
        clear();
    }

    // `sums` and the one two further are of the tile's upper and lower half.
    BLINK_DEV static void store(Out* out, const float* sums) {
        if (kGated) {
            store_feature(out, silu(sums[0]) * sums[2]);
        } else {
            store_feature(out, sums[0]);
            store_feature(out + 8, sums[2]);
        }
    }

    Port& port_;
    const Product& product_;
    const uint32_t warp_, lane_;
    Chunk* const weights_;
    Chunk* const inputs_;
    const uint32_t split_;
    uint32_t first_, last_;  // tiles of this block
    uint32_t passes_;
    float sums_[kTiles][kRowTiles][4];
};

}  // namespace blink
