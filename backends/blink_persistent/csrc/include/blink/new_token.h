// A row's new token, as the projection left it: its heads are summed from their parts, normed,
// turned and rounded, its key and value appended.
#pragma once

#include "attention_call.h"

namespace blink {

// Of a lane, two elements of each half of a head: the head's norm, if it has one, and the rotation of
// each element with that in the other half. By all lanes of a warp.
template <uint32_t kHeadDim, class Port>
BLINK_DEV inline void turn_head(Port& port, const uint16_t* gain, float epsilon, const float (&cos)[2],
                                const float (&sin)[2], float (&low)[2], float (&high)[2]) {
    constexpr uint32_t kHalf = kHeadDim / 2;
    const uint32_t lane = port.thread() % 32;
    const bool used = 2 * lane < kHalf;
    if (gain != nullptr) {
        float square = used ? low[0] * low[0] + low[1] * low[1] + high[0] * high[0] + high[1] * high[1] : 0.0f;
        for (uint32_t mask = 16; mask > 0; mask /= 2) square += port.exchange_xor(square, mask);
        const float scale = inverse_root(square / kHeadDim + epsilon);
        const uint16_t* const own = gain + (used ? 2 * lane : 0);
        for (uint32_t j = 0; j < 2; ++j) {
            low[j] *= scale * float_of(own[j]);
            high[j] *= scale * float_of(own[kHalf + j]);
        }
    }
    for (uint32_t j = 0; j < 2; ++j) {
        const float first = low[j], second = high[j];
        low[j] = first * cos[j] - second * sin[j];
        high[j] = second * cos[j] + first * sin[j];
    }
}

// `heads` [kMostGroup + 2, kHeadDim] in shared memory, by `key_place`: the group's queries, zeros
// to kMostGroup, the key, the value. `kRounded`: the projection may be the library's, too.
template <class Port, uint32_t kWarps, uint32_t kHeadDim, bool kRounded>
class NewToken {
  public:
    BLINK_DEV NewToken(Port& port, const AttentionCall& a, const AttentionGroup& group, Chunk* heads)
        : port_(port), a_(a), group_(group), heads_(heads), warp_(port.thread() / 32), lane_(port.thread() % 32) {}

    // Where the new token is, by what its lanes' elements turn, and zeros for heads that the group
    // does not have.
    BLINK_DEV void locate(uint32_t position) {
        const uint64_t at = static_cast<uint64_t>(position) * kHalf + (2 * lane_ < kHalf ? 2 * lane_ : 0);
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
            cos_[j] = a_.cos[at + j];
            sin_[j] = a_.sin[at + j];
        }
        entry_ = group_.entry(a_, position);
        for (uint32_t i = group_.heads * kRowChunks + port_.thread(); i < kMostGroup * kRowChunks; i += 32 * kWarps)
            port_.write(heads_ + i, Chunk{});
    }

    // A warp a head: the group's queries, and where the new token is, its key and its value.
    BLINK_DEV void project(bool has_new) {
        const uint32_t count = group_.heads + (has_new ? 2 : 0);
        for (uint32_t head = warp_; head < count; head += 2 * kWarps) {
            if (head + kWarps < count)
                project_heads<2>(head);
            else
                project_heads<1>(head);
        }
    }

  private:
    static constexpr uint32_t kHalf = kHeadDim / 2;
    static constexpr uint32_t kRowChunks = kHeadDim / 8;
    static constexpr uint32_t kAtOnce = 4;  // parts that are loaded before any is added

    // Where a head begins in the projection: one of the group's, its key's, its value's.
    BLINK_DEV uint32_t place_of(uint32_t head) const {
        const uint32_t shared = a_.heads + group_.kv_head + (head == group_.heads + 1 ? a_.kv_heads : 0);
        return (head < group_.heads ? group_.kv_head * group_.heads + head : shared) * kHeadDim;
    }

    // Heads `first` and, of two, `first` + kWarps: the parts of both are loaded before either is turned.
    template <uint32_t kCount>
    BLINK_DEV void project_heads(uint32_t first) {
        float low[kCount][2], high[kCount][2];
        load(first, low, high);
#pragma unroll
        for (uint32_t n = 0; n < kCount; ++n) {
            const uint32_t head = first + n * kWarps;
            if (head <= group_.heads)
                turn_head<kHeadDim>(port_, head < group_.heads ? a_.q_norm : a_.k_norm, a_.epsilon, cos_, sin_, low[n],
                                    high[n]);
            if (2 * lane_ < kHalf) keep(head < group_.heads ? head : kMostGroup + head - group_.heads, low[n], high[n]);
        }
    }

    // Two elements of each half of each head.
    template <uint32_t kCount>
    BLINK_DEV void load(uint32_t first, float (&low)[kCount][2], float (&high)[kCount][2]) {
        const uint32_t i = 2 * lane_ < kHalf ? 2 * lane_ : 0;
        uint32_t places[kCount];
#pragma unroll
        for (uint32_t n = 0; n < kCount; ++n) places[n] = place_of(first + n * kWarps) + i;
        const uint32_t width = (a_.heads + 2 * a_.kv_heads) * kHeadDim;
        const uint64_t row = static_cast<uint64_t>(group_.row) * width;
        if (kRounded && a_.rounded != nullptr)
            widen(a_.rounded + row, places, low, high);
        else
            sum_parts(a_.qkv + row, a_.part_rows * width, places, low, high);
        if (a_.bias == nullptr) return;
#pragma unroll
        for (uint32_t n = 0; n < kCount; ++n) {
            for (uint32_t j = 0; j < 2; ++j) {
                low[n][j] += float_of(a_.bias[places[n] + j]);
                high[n][j] += float_of(a_.bias[places[n] + kHalf + j]);
            }
        }
    }

    // Of a row that the library rounded.
    template <uint32_t kCount>
    BLINK_DEV void widen(const uint16_t* row, const uint32_t (&places)[kCount], float (&low)[kCount][2],
                         float (&high)[kCount][2]) {
        uint32_t loaded[kCount][2];
#pragma unroll
        for (uint32_t n = 0; n < kCount; ++n)
#pragma unroll
            for (uint32_t half = 0; half < 2; ++half)
                loaded[n][half] = port_.fetch(reinterpret_cast<const uint32_t*>(row + places[n] + half * kHalf));
#pragma unroll
        for (uint32_t n = 0; n < kCount; ++n) {
            for (uint32_t j = 0; j < 2; ++j) {
                low[n][j] = float_of(loaded[n][0] >> 16 * j);
                high[n][j] = float_of(loaded[n][1] >> 16 * j);
            }
        }
    }

    // The parts of a row, in the same order as elsewhere.
    template <uint32_t kCount>
    BLINK_DEV void sum_parts(const float* from, uint32_t stride, const uint32_t (&places)[kCount],
                             float (&low)[kCount][2], float (&high)[kCount][2]) {
#pragma unroll
        for (uint32_t n = 0; n < kCount; ++n) low[n][0] = low[n][1] = high[n][0] = high[n][1] = 0.0f;
#pragma unroll 1
        for (uint32_t part = 0; part < a_.parts; part += kAtOnce) {
            uint64_t loaded[kAtOnce][kCount][2];
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; ++k) {
#pragma unroll
                for (uint32_t n = 0; n < kCount; ++n)
#pragma unroll
                    for (uint32_t half = 0; half < 2; ++half)
                        loaded[k][n][half] = part + k < a_.parts ? pair(from + places[n] + half * kHalf) : 0;
                from += stride;
            }
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; ++k) {
#pragma unroll
                for (uint32_t n = 0; n < kCount; ++n) {
                    add(low[n], loaded[k][n][0]);
                    add(high[n], loaded[k][n][1]);
                }
            }
        }
    }

    BLINK_DEV uint64_t pair(const float* from) { return port_.fetch(reinterpret_cast<const uint64_t*>(from)); }

    BLINK_DEV static void add(float (&sums)[2], uint64_t values) {
        sums[0] += from_bits(static_cast<uint32_t>(values));
        sums[1] += from_bits(static_cast<uint32_t>(values >> 32));
    }

    // In row `row` of the heads: queries, then from kMostGroup on the key and the value, which are
    // appended to the pages too.
    BLINK_DEV void keep(uint32_t row, const float (&low)[2], const float (&high)[2]) {
        const uint32_t words[2] = {pack_bfloat16(low[0], low[1]), pack_bfloat16(high[0], high[1])};
        uint16_t* pages = row == kMostGroup ? a_.keys : a_.values;
        auto* page = reinterpret_cast<uint32_t*>(pages + entry_ * kHeadDim);
        for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t element = half * kHalf + 2 * lane_;
            heads_[key_place<kHeadDim>(row, element / 8)].word[element % 8 / 2] = words[half];
            if (row >= kMostGroup) page[element / 2] = words[half];
        }
    }

    Port& port_;
    const AttentionCall& a_;
    const AttentionGroup group_;
    Chunk* const heads_;
    const uint32_t warp_, lane_;
    uint64_t entry_;
    float cos_[2], sin_[2];
};

}  // namespace blink
