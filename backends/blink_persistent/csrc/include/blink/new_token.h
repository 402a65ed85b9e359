// A row's new token, as the projection left it: its heads are summed from their parts, normed,
// turned and rounded, its key and value appended.
#pragma once

#include "attention_call.h"

namespace blink {

// `heads` [kMostGroup + 2, kHeadDim] in shared memory, by `key_place`: the group's queries, zeros
// to kMostGroup, the key, the value.
template <class Port, uint32_t kWarps, uint32_t kHeadDim>
class NewToken {
  public:
    BLINK_DEV NewToken(Port& port, const AttentionCall& a, const AttentionGroup& group, Chunk* heads)
        : port_(port), a_(a), group_(group), heads_(heads), warp_(port.thread() / 32), lane_(port.thread() % 32) {}

    // Where the new token is, and by what its lanes' elements turn.
    BLINK_DEV void locate(uint32_t position) {
        const uint64_t at = static_cast<uint64_t>(position) * kHalf + (2 * lane_ < kHalf ? 2 * lane_ : 0);
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
            cos_[j] = a_.cos[at + j];
            sin_[j] = a_.sin[at + j];
        }
        entry_ = group_.entry(a_, position);
    }

    // A warp a head: the group's queries, and where the new token is, its key and its value.
    BLINK_DEV void project(bool has_new) {
        for (uint32_t i = port_.thread(); i < kMostGroup * kRowChunks; i += 32 * kWarps)
            if (i >= group_.heads * kRowChunks) port_.write(heads_ + i, Chunk{});
        // Two heads' parts are loaded before either is turned.
        const uint32_t count = group_.heads + (has_new ? 2 : 0);
        for (uint32_t first = warp_; first < count; first += 2 * kWarps) {
            const uint32_t number = first + kWarps < count ? 2 : 1;
            float low[2][2], high[2][2];
            sum_parts(first, number, low, high);
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i) {
                const uint32_t head = first + i * kWarps;
                if (i >= number) continue;
                if (head <= group_.heads) turn(head < group_.heads ? a_.q_norm : a_.k_norm, low[i], high[i]);
                if (2 * lane_ < kHalf)
                    keep(head < group_.heads ? head : kMostGroup + head - group_.heads, low[i], high[i]);
            }
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

    // Two elements of each half of heads `first` and, where `number` is 2, `first` + kWarps; their
    // parts in the same order as elsewhere.
    BLINK_DEV void sum_parts(uint32_t first, uint32_t number, float (&low)[2][2], float (&high)[2][2]) {
        const uint32_t width = (a_.heads + 2 * a_.kv_heads) * kHeadDim;
        const uint32_t i = 2 * lane_ < kHalf ? 2 * lane_ : 0;
        const uint32_t places[2] = {place_of(first) + i, place_of(number == 2 ? first + kWarps : first) + i};
        const float* from = a_.qkv + static_cast<uint64_t>(group_.row) * width;
        const uint64_t stride = static_cast<uint64_t>(a_.rows) * width;
#pragma unroll
        for (uint32_t n = 0; n < 2; ++n) low[n][0] = low[n][1] = high[n][0] = high[n][1] = 0.0f;
#pragma unroll 1
        for (uint32_t part = 0; part < a_.parts; part += kAtOnce) {
            uint64_t loaded[kAtOnce][2][2];
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; ++k) {
#pragma unroll
                for (uint32_t n = 0; n < 2; ++n)
#pragma unroll
                    for (uint32_t half = 0; half < 2; ++half)
                        loaded[k][n][half] =
                            part + k < a_.parts && n < number ? pair(from + places[n] + half * kHalf) : 0;
                from += stride;
            }
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; ++k) {
#pragma unroll
                for (uint32_t n = 0; n < 2; ++n) {
                    add(low[n], loaded[k][n][0]);
                    add(high[n], loaded[k][n][1]);
                }
            }
        }
        if (a_.bias == nullptr) return;
#pragma unroll
        for (uint32_t n = 0; n < 2; ++n) {
            for (uint32_t j = 0; j < 2; ++j) {
                low[n][j] += float_of(a_.bias[places[n] + j]);
                high[n][j] += float_of(a_.bias[places[n] + kHalf + j]);
            }
        }
    }

    BLINK_DEV uint64_t pair(const float* from) { return port_.fetch(reinterpret_cast<const uint64_t*>(from)); }

    BLINK_DEV static void add(float (&sums)[2], uint64_t values) {
        sums[0] += from_bits(static_cast<uint32_t>(values));
        sums[1] += from_bits(static_cast<uint32_t>(values >> 32));
    }

    // The head's norm, if it has one, and the rotation of each element with that in the other half.
    BLINK_DEV void turn(const uint16_t* gain, float (&low)[2], float (&high)[2]) {
        const bool used = 2 * lane_ < kHalf;
        const uint32_t i = used ? 2 * lane_ : 0;
        if (gain != nullptr) {
            float square = used ? low[0] * low[0] + low[1] * low[1] + high[0] * high[0] + high[1] * high[1] : 0.0f;
            for (uint32_t mask = 16; mask > 0; mask /= 2) square += port_.exchange_xor(square, mask);
            const float scale = 1.0f / sqrtf(square / kHeadDim + a_.epsilon);
            for (uint32_t j = 0; j < 2; ++j) {
                low[j] *= scale * float_of(gain[i + j]);
                high[j] *= scale * float_of(gain[i + kHalf + j]);
            }
        }
        for (uint32_t j = 0; j < 2; ++j) {
            const float first = low[j], second = high[j];
            low[j] = first * cos_[j] - second * sin_[j];
            high[j] = second * cos_[j] + first * sin_[j];
        }
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
