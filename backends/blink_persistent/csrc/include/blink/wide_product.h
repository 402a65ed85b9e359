// A product of up to 64 rows with a large matrix for the tensor cores of Hopper GPUs, whose first
// weights are on their way before the kernel ahead has ended.
//
// One source for the GPU (tiles_gpu.h) and, thread by thread, for the host that tests it
// (tiles_host.h). What a Port must offer:
//
//   thread(), warp(), block()       of the block's; the block's number
//   shared()                        the block's shared memory, aligned to 1,024 bytes
//   let_next_in(), await_previous() the halves of programmatic dependent launch
//   sync()                          all threads of the block
//   fetch_map(map)                  it will be used soon
//   make_barriers(barriers, number, count), expect(barrier, bytes), await(barrier, parity), arrive(barrier)
//                                   mbarriers, by one thread, which may use them before others meet it
//   copy_once(to, map, inner, row, barrier), copy_often(...)
//                                   the map's box, 64 inner elements of some rows; rows beyond the
//                                   last are 0
//   begin_multiply(), multiply(sums, a, b, add), commit_multiply(), await_multiplied<N>(sums)
//                                   wgmma.m64nNk16 of a warpgroup; all but the last N groups
//   store(out, value)               as the type of out
#pragma once

#include "lanes.h"

namespace blink {

// Of a kernel. Shapes: x [rows, depth], weight [size, depth], or [2 * size, depth] where gated,
// both bfloat16; out [depth / share, rows, size].
struct WideProductCall {
    void* out;
    uint32_t rows;    // up to kRows
    uint32_t size;    // output features
    uint32_t share;   // inner elements of a split, a multiple of kDepth
    uint32_t blocks;  // of a split; the grid has so many times the splits
    uint32_t first;   // stages of weights that are on their way at a time until all are asked for once
};

// A tile is kTileRows rows of the weight, where gated half of them the gate's and then up's of the
// same features. A stage is kWindows windows of 64 inner elements of a tile and of the activations;
// kStages of them are in shared memory or on their way. Rows of a window are 128 bytes, in the
// swizzle of that size, and lie together in eights.
//
// One thread copies weights, one activations; kGroups warpgroups multiply, each parts of 64 weight rows, where gated
// one of the gate and one of up. The last part may reach into what lies behind the tile: those sums are not stored.
//
// Weights come in while the kernel ahead still runs, a few stages at a time: all of them would be some
// 25 MB for the whole GPU, behind which every other read and write, those of the kernel ahead and the
// activations too, would wait for 5 us. So few keep the memory busy as well.
template <class Port, uint32_t kTileRows, uint32_t kRows, uint32_t kWindows, uint32_t kStages, uint32_t kGroups,
          bool kGated, class Out>
class WideProduct {
  public:
    static constexpr uint32_t kThreads = 128 * kGroups + 64;
    static constexpr uint32_t kFeatures = kGated ? kTileRows / 2 : kTileRows;  // of a tile
    static constexpr uint32_t kDepth = 64 * kWindows;                          // inner elements of a step
    static constexpr uint32_t kBoxes = (kGated ? 2 : 1) * ((kFeatures + 255) / 256);
    static constexpr uint32_t kBoxRows = kTileRows / kBoxes;
    static constexpr uint32_t kParts = kGated ? 2 : (kFeatures + 64 * kGroups - 1) / (64 * kGroups);
    static constexpr uint32_t kGroupRows = kGated ? 64 : 64 * kParts;
    static constexpr uint32_t kTileBytes = 128 * kTileRows, kInputBytes = 128 * kRows;  // of a window
    static constexpr uint32_t kStageBytes = kWindows * (kTileBytes + kInputBytes);
    static constexpr uint32_t kBarrierBytes = 1024;
    static constexpr uint32_t kReached = (kGated ? kFeatures : 0) + kGroups * kGroupRows;  // rows of the last window
    static constexpr uint32_t kBehind = kTileRows + kWindows * kRows;                      // that it has
    static constexpr uint32_t kSharedBytes =
        kBarrierBytes + kStages * kStageBytes + (kReached > kBehind ? 128 * (kReached - kBehind) : 0);
    static_assert(kBoxRows % 8 == 0 && kBoxRows * kBoxes == kTileRows && kRows % 8 == 0);
    static_assert(kFeatures <= kGroups * kGroupRows && 24 * kStages <= kBarrierBytes && kStages >= 2);

    template <class Map>
    BLINK_DEV static void run(Port& port, const WideProductCall& call, const Map* weight, const Map* x) {
        WideProduct(port, call).run(weight, x);
    }

  private:
    BLINK_DEV WideProduct(Port& port, const WideProductCall& call)
        : port_(port), call_(call), weights_(reinterpret_cast<uint64_t*>(port.shared())), inputs_(weights_ + kStages),
          empty_(inputs_ + kStages), stages_(static_cast<unsigned char*>(port.shared()) + kBarrierBytes),
          split_(port.block() / call.blocks), block_(port.block() % call.blocks), steps_(call.share / kDepth),
          passes_((call.size + kFeatures * call.blocks - 1) / (kFeatures * call.blocks)) {}

    template <class Map>
    BLINK_DEV void run(const Map* weight, const Map* x) {
        constexpr uint32_t kWeightsThread = 128 * kGroups, kInputsThread = kWeightsThread + 32;
        Step step;
        uint32_t asked = 0;
        if (port_.thread() == kWeightsThread) {
            port_.fetch_map(weight);
            port_.fetch_map(x);
            port_.make_barriers(weights_, 2 * kStages, 1);
            port_.make_barriers(empty_, kStages, 4 * kGroups);
        }
        port_.let_next_in();
        if (port_.thread() == kWeightsThread)
            for (; asked < call_.first && asked < kStages && step.pass < passes_; ++asked) copy_tile(weight, step);
        port_.sync();
        const uint32_t group = port_.warp() / 4;
        if (group < kGroups) {
            port_.await_previous();
            compute(group);
        } else if (port_.thread() == kWeightsThread) {
            copy_weights(weight, step, asked);
        } else if (port_.thread() == kInputsThread) {
            copy_inputs(x);
        }
    }

    // A pass is all of the split's inner elements of one tile.
    struct Step {
        uint32_t pass = 0;
        uint32_t inner = 0;  // steps of the pass
        uint32_t stage = 0;
        uint32_t parity = 0;

        BLINK_DEV void advance(uint32_t steps) {
            stage = stage + 1 == kStages ? 0 : stage + 1;
            parity ^= stage == 0 ? 1u : 0u;
            inner = inner + 1 == steps ? 0 : inner + 1;
            pass += inner == 0 ? 1u : 0u;
        }
    };

    // From step number `asked` on. It never waits for the kernel ahead, which writes no weights.
    template <class Map>
    BLINK_DEV void copy_weights(const Map* weight, Step& step, uint32_t asked) {
        for (; step.pass < passes_; ++asked) {
            if (asked < kStages) port_.await(weights_ + asked - call_.first, 0);
            port_.await(empty_ + step.stage, step.parity ^ 1);
            copy_tile(weight, step);
        }
    }

    template <class Map>
    BLINK_DEV void copy_tile(const Map* weight, Step& step) {
        port_.expect(weights_ + step.stage, kWindows * kTileBytes);
        const uint32_t first = (block_ + step.pass * call_.blocks) * kFeatures;
#pragma unroll
        for (uint32_t i = 0; i < kWindows * kBoxes; ++i) {
            const uint32_t window = i / kBoxes, box = i % kBoxes, row = box * kBoxRows;
            port_.copy_once(place(step.stage) + window * kTileBytes + 128 * row, weight, inner_of(step, window),
                            kGated && row >= kFeatures ? call_.size + first + row - kFeatures : first + row,
                            weights_ + step.stage);
        }
        step.advance(steps_);
    }

    template <class Map>
    BLINK_DEV void copy_inputs(const Map* x) {
        port_.await_previous();
        for (Step step; step.pass < passes_; step.advance(steps_)) {
            port_.await(empty_ + step.stage, step.parity ^ 1);
            port_.expect(inputs_ + step.stage, kWindows * kInputBytes);
#pragma unroll
            for (uint32_t window = 0; window < kWindows; ++window)
                port_.copy_often(inputs_of(step.stage) + window * kInputBytes, x, inner_of(step, window), 0,
                                 inputs_ + step.stage);
        }
    }

    BLINK_DEV void compute(uint32_t group) {
        float sums[kParts][kRows / 2];
        Step step;
        while (step.pass < passes_) {
            const uint32_t pass = step.pass;
            uint32_t before = kStages;
#pragma unroll 1
            while (step.pass == pass) {
                port_.await(inputs_ + step.stage, step.parity);
                port_.await(weights_ + step.stage, step.parity);
                multiply(step, group, sums);
                port_.template await_multiplied<1>(sums);
                if (before < kStages) release(before);
                before = step.stage;
                step.advance(steps_);
            }
            port_.template await_multiplied<0>(sums);
            release(before);
            store(pass, group, sums);
        }
    }

    BLINK_DEV void multiply(const Step& step, uint32_t group, float (&sums)[kParts][kRows / 2]) {
        const unsigned char* tile = place(step.stage) + group * kGroupRows * 128;
        const unsigned char* inputs = inputs_of(step.stage);
        port_.begin_multiply();
#pragma unroll
        for (uint32_t i = 0; i < 4 * kWindows; ++i) {
            const uint32_t window = i / 4, k = 32 * (i % 4);
#pragma unroll
            for (uint32_t part = 0; part < kParts; ++part)
                port_.multiply(sums[part], tile + window * kTileBytes + part * kPartBytes + k,
                               inputs + window * kInputBytes + k, step.inner > 0 || i > 0);
        }
        port_.commit_multiply();
    }

    BLINK_DEV void release(uint32_t stage) {
        if (port_.thread() % 32 == 0) port_.arrive(empty_ + stage);
    }

    // Lane 4 * g + t of the group's warp q has of a part rows 16 * q + g and, 2 further, that and 8,
    // of activations 8 * n + 2 * t and the next.
    BLINK_DEV void store(uint32_t pass, uint32_t group, float (&sums)[kParts][kRows / 2]) {
        const uint32_t warp = port_.thread() / 32 % 4, g = port_.thread() % 32 / 4, t = port_.thread() % 4;
        const uint32_t first = (block_ + pass * call_.blocks) * kFeatures;
#pragma unroll
        for (uint32_t part = 0; part < (kGated ? 1 : kParts); ++part) {
            const uint32_t of_tile = group * kGroupRows + 64 * part + 16 * warp + g, feature = first + of_tile;
            const bool upper = of_tile < kFeatures && feature < call_.size;
            const bool lower = of_tile + 8 < kFeatures && feature + 8 < call_.size;
            const uint64_t row = static_cast<uint64_t>(split_) * call_.rows + 2 * t;
            Out* out = static_cast<Out*>(call_.out) + row * call_.size + feature;
#pragma unroll
            for (uint32_t i = 0; i < kRows / 4; ++i) {
                const uint32_t n = i / 2, at = 4 * n + i % 2;
                if (8 * n + 2 * t + i % 2 < call_.rows) {
                    if (upper) port_.store(out + i % 2 * call_.size, value(sums, part, at));
                    if (lower) port_.store(out + i % 2 * call_.size + 8, value(sums, part, at + 2));
                }
                if (i % 2 == 1) out += 8 * static_cast<uint64_t>(call_.size);
            }
        }
    }

    BLINK_DEV static float value(const float (&sums)[kParts][kRows / 2], uint32_t part, uint32_t at) {
        return kGated ? silu(sums[0][at]) * sums[kParts - 1][at] : sums[part][at];
    }

    BLINK_DEV unsigned char* place(uint32_t stage) const { return stages_ + stage * kStageBytes; }
    BLINK_DEV unsigned char* inputs_of(uint32_t stage) const { return place(stage) + kWindows * kTileBytes; }
    BLINK_DEV uint32_t inner_of(const Step& step, uint32_t window) const {
        return split_ * call_.share + step.inner * kDepth + 64 * window;
    }

    static constexpr uint32_t kPartBytes = 128 * (kGated ? kFeatures : 64);

    Port& port_;
    const WideProductCall& call_;
    uint64_t* const weights_;  // barriers of the stages: weights are there,
    uint64_t* const inputs_;   // activations are,
    uint64_t* const empty_;    // both have been multiplied
    unsigned char* const stages_;
    const uint32_t split_, block_;
    const uint32_t steps_;   // of a pass
    const uint32_t passes_;  // as many for all blocks
};

}  // namespace blink
