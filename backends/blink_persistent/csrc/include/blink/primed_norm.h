// The sum of a product's parts with the residual stream, and its RMS norm: small enough in threads,
// registers and shared memory to wait beside the product.
//
// One source for the GPU (lanes_gpu.h) and, lane by lane, for the host that tests it.
#pragma once

#include "lanes.h"

namespace blink {

struct NormCall {
    const float* delta;    // [parts, rows, size]
    const uint16_t* gain;  // bfloat16 [size]
    float* residual;       // [rows, size]
    uint16_t* out;         // bfloat16 [rows, size]
    float epsilon;
    uint32_t parts, rows, size;  // size: a multiple of 4
};

// A block a row; a thread has kEach times 4 elements, at most.
template <class Port, uint32_t kWarps, uint32_t kEach>
class PrimedNorm {
  public:
    static constexpr uint32_t kThreads = 32 * kWarps;
    static constexpr uint32_t kSharedBytes = 4 * kWarps;

    BLINK_DEV PrimedNorm(Port& port, const NormCall& n) : port_(port), n_(n) {}

    BLINK_DEV void run() {
        port_.let_next_in();
        uint64_t gains[kEach];
        each([&](uint32_t i, uint32_t at) { gains[i] = *reinterpret_cast<const uint64_t*>(n_.gain + at); });
        port_.await_previous();
        const uint64_t row = static_cast<uint64_t>(port_.block()) * n_.size;
        float x[kEach][4];
        each([&](uint32_t i, uint32_t at) { put(x[i], port_.load(halves(n_.residual + row + at))); });
        each([&](uint32_t i, uint32_t at) { add_parts(x[i], row + at); });
        float square = 0.0f;
        each([&](uint32_t i, uint32_t at) {
            Chunk sums;
            for (uint32_t j = 0; j < 4; ++j) {
                square += x[i][j] * x[i][j];
                sums.word[j] = bits_of(x[i][j]);
            }
            *reinterpret_cast<Chunk*>(n_.residual + row + at) = sums;
        });
        const float scale = 1.0f / sqrtf(total(square) / static_cast<float>(n_.size) + n_.epsilon);
        each([&](uint32_t i, uint32_t at) {
            float y[4];
            for (uint32_t j = 0; j < 4; ++j) y[j] = x[i][j] * scale * float_of(gains[i] >> 16 * j & 0xffff);
            const uint64_t low = pack_bfloat16(y[0], y[1]), high = pack_bfloat16(y[2], y[3]);
            *reinterpret_cast<uint64_t*>(n_.out + row + at) = high << 32 | low;
        });
    }

  private:
    static constexpr uint32_t kAtOnce = 4;  // parts that are loaded before any is added

    // `visit(i, at)` for the thread's elements from `at` on.
    template <class Visit>
    BLINK_DEV void each(Visit visit) {
#pragma unroll
        for (uint32_t i = 0; i < kEach; ++i) {
            const uint32_t at = 4 * (i * kThreads + port_.thread());
            if (at < n_.size) visit(i, at);
        }
    }

    // In their order, as other kernels add them.
    BLINK_DEV void add_parts(float (&x)[4], uint64_t place) {
        const uint64_t stride = static_cast<uint64_t>(n_.rows) * n_.size;
        const float* delta = n_.delta + place;
#pragma unroll 1
        for (uint32_t part = 0; part < n_.parts; part += kAtOnce) {
            Chunk loaded[kAtOnce];
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; ++k) {
                loaded[k] = part + k < n_.parts ? port_.load(halves(delta)) : Chunk{};
                delta += stride;
            }
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; ++k)
                for (uint32_t j = 0; j < 4; ++j) x[j] += from_bits(loaded[k].word[j]);
        }
    }

    BLINK_DEV static const uint16_t* halves(const float* from) { return reinterpret_cast<const uint16_t*>(from); }

    BLINK_DEV static void put(float (&values)[4], const Chunk& chunk) {
        for (uint32_t j = 0; j < 4; ++j) values[j] = from_bits(chunk.word[j]);
    }

    // Over the block's threads, told to all.
    BLINK_DEV float total(float value) {
        auto* warps = static_cast<float*>(port_.shared());
        for (uint32_t mask = 16; mask > 0; mask /= 2) value += port_.exchange_xor(value, mask);
        if (port_.thread() % 32 == 0) warps[port_.thread() / 32] = value;
        port_.sync();
        float sum = 0.0f;
        for (uint32_t warp = 0; warp < kWarps; ++warp) sum += warps[warp];
        return sum;
    }

    Port& port_;
    const NormCall& n_;
};

}  // namespace blink
