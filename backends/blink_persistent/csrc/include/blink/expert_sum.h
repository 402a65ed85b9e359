// Down of the experts that serve a step's only token, times their shares, summed over them: a warp of
// a block has one expert, all of them the same features.
#pragma once

#include "expert_choice.h"
#include "primed_product.h"

namespace blink {

// Blocks of 16 features, with as many warps as experts are chosen. Each warp has a ring of its own of
// tiles of 16 rows by kDepth inner elements.
//
// The scores are there when a block begins (expert_gate.h), so it chooses, and asks for its first
// weights, while gate and up are still computed.
template <class Port, uint32_t kWarps, uint32_t kStages>
class ExpertSum {
  public:
    static constexpr uint32_t kThreads = 32 * kWarps;
    static constexpr uint32_t kDepth = 128, kRowChunks = kDepth / 8, kTileChunks = 16 * kRowChunks;

    BLINK_DEV static uint32_t shared_bytes(uint32_t depth) {
        return 16 * kWarps * (kStages * kTileChunks + depth / 8) + 4 * 16 * kWarps;
    }

    BLINK_DEV static void run(Port& port, const ExpertCall& call) {
        const uint32_t warp = port.thread() / 32, lane = port.thread() % 32, g = lane / 4, t = lane % 4;
        const Choice choice = choose_expert(port, call, warp, kThreads);
        const uint32_t input_chunks = call.depth / 8;
        auto* const rings = static_cast<Chunk*>(port.shared());
        auto* const all_inputs = rings + kWarps * kStages * kTileChunks;
        auto* const sums = reinterpret_cast<float*>(all_inputs + kWarps * input_chunks);
        Chunk* const ring = rings + warp * kStages * kTileChunks;
        Chunk* const inputs = all_inputs + warp * input_chunks;
        const uint32_t row = lane / kRowChunks, chunk = lane % kRowChunks, steps = call.depth / kDepth;
        const uint64_t first = static_cast<uint64_t>(choice.expert) * call.size + 16 * port.block() + row;
        const uint16_t* const weights = call.weight + first * call.depth + 8 * chunk;
        const auto load = [&](uint32_t step, uint32_t stage) {
            if (step < steps) {
                const uint16_t* from = weights + step * kDepth;
                Chunk* to = ring + stage * kTileChunks + tile_place<kRowChunks>(row, chunk);
#pragma unroll
                for (uint32_t at = 0; at < kTileChunks; at += 32) {
                    port.copy(to + at, from);
                    from += 32 / kRowChunks * static_cast<uint64_t>(call.depth);
                }
            }
            port.commit();
        };
        port.let_next_in();
#pragma unroll
        for (uint32_t i = 0; i < kStages; ++i) load(i, i);
        port.await_previous();
        for (uint32_t at = lane; at < input_chunks; at += 32)
            port.write(inputs + at, port.load(call.x + warp * call.depth + 8 * at));
        float totals[4] = {};
        uint32_t stage = 0;
#pragma unroll 1
        for (uint32_t step = 0; step < steps; ++step) {
            port.template wait_copies<kStages - 1>();
            port.sync_warp();
            const Chunk* tile = ring + stage * kTileChunks;
#pragma unroll
            for (uint32_t window = 0; window < kDepth / 32; ++window) {
                const uint32_t at = 4 * window + t;
                const Chunk a = port.read(tile + tile_place<kRowChunks>(g, at)),
                            b = port.read(tile + tile_place<kRowChunks>(g + 8, at));
                // One row: of the second operand only the first column is not zero.
                const Chunk loaded = inputs[step * kRowChunks + at], x = g == 0 ? loaded : Chunk{};
                const uint32_t upper[4] = {a.word[0], b.word[0], a.word[1], b.word[1]};
                const uint32_t lower[4] = {a.word[2], b.word[2], a.word[3], b.word[3]};
                port.multiply(totals, upper, x.word);
                port.multiply(totals, lower, x.word + 2);
            }
            port.sync_warp();
            load(step + kStages, stage);
            stage = stage + 1 == kStages ? 0 : stage + 1;
        }
        if (t == 0) {
            sums[16 * warp + g] = choice.share * totals[0];
            sums[16 * warp + g + 8] = choice.share * totals[2];
        }
        port.sync();
        if (port.thread() >= 16) return;
        float sum = 0.0f;
        for (uint32_t i = 0; i < kWarps; ++i) sum += sums[16 * i + port.thread()];
        static_cast<float*>(call.out)[16 * port.block() + port.thread()] = sum;
    }
};

}  // namespace blink
