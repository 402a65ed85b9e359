// What the kernel for all layers of a decode step (layers_step.h) is given, and how it is cut.
#pragma once

#include "attention_call.h"

namespace blink {

// What each product of a layer multiplies.
template <class Map>
struct LayerMaps {
    Map qkv, output, gate_up, down;
};

// Of a kernel. hidden = blocks * Cut::kFeatures, intermediate = blocks * Cut::kInnerFeatures.
struct LayersCall {
    const float* gains;          // [layers, 2, hidden]: of the norms before attention and before the MLP
    float* residual;             // [rows, hidden], read and written
    uint16_t* normed;            // bfloat16 [rows, hidden]: residual * gain, without the norm's factor
    uint16_t* inner;             // bfloat16 [rows, intermediate]
    float* squares;              // [hidden / 16, Cut::kRows]: sums of squares of 16 features
    uint64_t* arrived;           // [2]: arrivals at borders, ever; of launches that have ended
    const uint16_t* head_gains;  // bfloat16 [layers, 2, head_dim]: of queries and of keys, or null
    uint16_t* const* pages;      // [layers, 2]: keys, values
    uint32_t* error;             // what a watchdog found, in kernels that have one
    // Of all layers: without keys, values and the heads' gains. `partial` is [blocks, 2, kMostGroup,
    // head_dim], `log_sums` [blocks, 2, kMostGroup]; splits is not used.
    AttentionCall attention;
    uint32_t layers;
    uint32_t blocks;  // the grid
    // Stages on their way at most, 1 to Cut::kStages: of weights asked for before a border; of
    // others; of the first pages.
    uint32_t early, flight, paged;
};

constexpr uint32_t kLayersGroup = 4;                           // heads of a group at most
constexpr uint32_t kRoomBytes = 1024, kAttentionBytes = 8320;  // of what a block knows, and of attention

BLINK_HD constexpr uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// A block's features of one product, and windows of 64 inner elements a stage.
template <uint32_t kFeatures_, uint32_t kWindows_, uint32_t kRows, bool kGated_>
struct LayerProduct {
    static constexpr bool kGated = kGated_;
    static constexpr uint32_t kFeatures = kFeatures_, kWindows = kWindows_;
    static constexpr uint32_t kParts = kGated ? 2 : 1;
    static constexpr uint32_t kTileBytes = 128 * kFeatures * kParts;  // of a window
    static constexpr uint32_t kInputBytes = 128 * kRows;
    static constexpr uint32_t kWeightBytes = kWindows * kTileBytes;  // of a stage
    static constexpr uint32_t kInputsBytes = kWindows * kInputBytes;
    static constexpr uint32_t kStageBytes = kWeightBytes + kInputsBytes;
    static_assert(kFeatures % 16 == 0 && (kGated ? kFeatures <= 128 : kFeatures <= 64));
};

template <uint32_t kRows_, uint32_t kStages_, uint32_t kQkvWindows, uint32_t kOutputWindows, uint32_t kGateUpWindows,
          uint32_t kDownWindows, uint32_t kQkvFeatures, uint32_t kFeatures_, uint32_t kInnerFeatures_>
struct LayersCut {
    static constexpr uint32_t kRows = kRows_, kStages = kStages_;
    static constexpr uint32_t kFeatures = kFeatures_, kInnerFeatures = kInnerFeatures_;
    using Qkv = LayerProduct<kQkvFeatures, kQkvWindows, kRows, false>;
    using Output = LayerProduct<kFeatures, kOutputWindows, kRows, false>;
    using GateUp = LayerProduct<kInnerFeatures, kGateUpWindows, kRows, true>;
    using Down = LayerProduct<kFeatures, kDownWindows, kRows, false>;

    static constexpr uint32_t kStageBytes =
        larger(larger(Qkv::kStageBytes, Output::kStageBytes), larger(GateUp::kStageBytes, Down::kStageBytes));
    static constexpr uint32_t kPageBytes = 2 * 64 * 128;  // keys or values of 64 entries
    static constexpr uint32_t kBarrierBytes = 256, kFactorBytes = 256;
    static constexpr uint32_t kExchangeBytes = 4 * kRows * larger(kQkvFeatures, kFeatures);
    static constexpr uint32_t kSharedBytes =
        kStages * kStageBytes + kBarrierBytes + kFactorBytes + kExchangeBytes + kRoomBytes + kAttentionBytes;
    static constexpr uint32_t kThreads = 256 + 3 * 32;
    static_assert(kPageBytes <= kStageBytes && (kRows == 8 || kRows == 16) && kStages >= 2);
    static_assert(8 * (3 * kStages + 4) <= kBarrierBytes && 4 * kRows <= kFactorBytes);
    // Multiplications reach at most 32 rows behind a tile: into the activations and what follows.
    static_assert(kBarrierBytes + kFactorBytes + kExchangeBytes + 128 * kRows >= 128 * 16);
};

}  // namespace blink
