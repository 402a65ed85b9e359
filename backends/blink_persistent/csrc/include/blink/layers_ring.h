// The shared memory of a block of the kernel for all layers (layers_step.h).
#pragma once

#include "layers_attention.h"

namespace blink {

template <class Port, class Cut>
struct LayersRing {
    static constexpr uint32_t kStages = Cut::kStages;
    static_assert(sizeof(LayersRoom<Port>) <= kRoomBytes);

    BLINK_DEV explicit LayersRing(Port& port)
        : stages(static_cast<unsigned char*>(port.shared())),
          weights(reinterpret_cast<uint64_t*>(stages + kStages * Cut::kStageBytes)), inputs(weights + kStages),
          empty(inputs + kStages), met(empty + kStages), known(met + 1), ready(known + 1), found(ready + 1),
          factors(reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(weights) + Cut::kBarrierBytes)),
          exchange(factors + Cut::kFactorBytes / 4),
          block(reinterpret_cast<LayersRoom<Port>*>(reinterpret_cast<unsigned char*>(exchange) + Cut::kExchangeBytes)),
          attention(reinterpret_cast<AttentionRoom*>(reinterpret_cast<unsigned char*>(block) + kRoomBytes)) {}

    // By one thread, before others use them.
    BLINK_DEV void make_barriers(Port& port) const {
        port.make_barriers(weights, 2 * kStages, 1);
        port.make_barriers(empty, kStages, 8);
        port.make_barriers(met, 4, 1);
    }

    // Where a walk along the stages has come to.
    struct Place {
        uint32_t stage = 0;
        uint32_t parity = 0;

        BLINK_DEV void advance() {
            stage = stage + 1 == kStages ? 0 : stage + 1;
            parity ^= stage == 0 ? 1u : 0u;
        }
    };

    BLINK_DEV unsigned char* stage(const Place& place) const { return stages + place.stage * Cut::kStageBytes; }

    // Stages of a product of so many inner elements.
    template <class Product>
    BLINK_DEV static uint32_t steps(uint32_t depth) {
        return (depth + 64 * Product::kWindows - 1) / (64 * Product::kWindows);
    }

    unsigned char* const stages;
    uint64_t* const weights;  // of stages that they have reached
    uint64_t* const inputs;
    uint64_t* const empty;
    uint64_t* const met;    // at the border before a product that a norm precedes
    uint64_t* const known;  // that norm's factors
    uint64_t* const ready;  // queries, keys and values, for attention
    uint64_t* const found;  // once: the block's share
    float* const factors;   // [Cut::kRows]
    float* const exchange;  // [sums of a thread, threads]
    LayersRoom<Port>* const block;
    AttentionRoom* const attention;
};

}  // namespace blink
