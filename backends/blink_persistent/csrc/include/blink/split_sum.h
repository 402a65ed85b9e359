// The sum of a head's splits, each of which has left its mixture and the logarithm of its weight.
#pragma once

#include "attention_call.h"

namespace blink {

// Elements `element` to `element` + 3 of head `at`, of all rows', to `out`. A few splits at a time,
// all loaded before any is used.
template <class Port, uint32_t kHeadDim>
BLINK_DEV inline void sum_splits(Port& port, const AttentionCall& a, uint64_t at, uint32_t element) {
    constexpr uint32_t kAtOnce = 8;
    const float* log_sums = a.log_sums + at * a.splits;
    const float* partial = a.partial + at * a.splits * kHeadDim + element;
    float best = -infinity(), total = 0.0f, values[4] = {};
#pragma unroll 1
    for (uint32_t first = 0; first < a.splits; first += kAtOnce) {
        float log_sum[kAtOnce], now = best;
        Chunk part[kAtOnce];
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) {
            const bool known = first + i < a.splits;
            const float* from = partial + static_cast<uint64_t>(first + i) * kHeadDim;
            log_sum[i] = known ? port.fetch(log_sums + first + i) : -infinity();
            part[i] = known ? port.load(reinterpret_cast<const uint16_t*>(from)) : Chunk{};
        }
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) now = fmaxf(now, log_sum[i]);
        const float fade = best > -infinity() ? exp2f(best - now) : 0.0f;
        total *= fade;
        for (uint32_t j = 0; j < 4; ++j) values[j] *= fade;
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) {
            const float weight = log_sum[i] == -infinity() ? 0.0f : exp2f(log_sum[i] - now);
            total += weight;
            for (uint32_t j = 0; j < 4; ++j) values[j] += weight * from_bits(part[i].word[j]);
        }
        best = now;
    }
    const float share = total == 0.0f ? 0.0f : 1.0f / total;
    for (uint32_t j = 0; j < 4; ++j) store_feature(a.out + at * kHeadDim + element + j, share * values[j]);
}

}  // namespace blink
