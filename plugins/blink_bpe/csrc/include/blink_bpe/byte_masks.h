// Classifies text 64 bytes at a time: a bit a byte, by the vector instructions that the machine has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace blink::bpe {

// 64 bytes of text; bit i is of byte i. All bytes of a character have the same bits.
struct Block {
    uint64_t letter, number, space;
    uint64_t other;  // none of the three; while bytes are classified: not ASCII
};

// Classifies the ASCII bytes of `count` blocks, and marks the others.
using Classify = void (*)(const char* text, Block* blocks, size_t count);

inline void classify_plain(const char* text, Block* blocks, size_t count) {
    for (size_t n = 0; n < count; ++n) {
        Block block{};
        for (size_t i = 0; i < 64; ++i) {
            const auto byte = static_cast<uint8_t>(text[n * 64 + i]);
            block.letter |= uint64_t{static_cast<uint8_t>((byte | 0x20) - 'a') < 26} << i;
            block.number |= uint64_t{static_cast<uint8_t>(byte - '0') < 10} << i;
            block.space |= uint64_t{byte == ' ' || static_cast<uint8_t>(byte - '\t') < 5} << i;
            block.other |= uint64_t{byte >= 0x80} << i;
        }
        blocks[n] = block;
    }
}

#if defined(__x86_64__)
// Bytes in [first, first + size), compared as signed ones: the range is moved to the lowest values.
__attribute__((target("avx2"))) inline __m256i in_range(__m256i bytes, char first, char size) {
    const __m256i moved = _mm256_add_epi8(bytes, _mm256_set1_epi8(static_cast<char>(-128 - first)));
    return _mm256_cmpgt_epi8(_mm256_set1_epi8(static_cast<char>(-128 + size)), moved);
}

__attribute__((target("avx2"))) inline void classify_avx2(const char* text, Block* blocks, size_t count) {
    for (size_t n = 0; n < count; ++n) {
        Block block{};
        for (size_t half = 0; half < 64; half += 32) {
            const auto* from = reinterpret_cast<const __m256i*>(text + n * 64 + half);
            const __m256i bytes = _mm256_loadu_si256(from);
            const __m256i lower = _mm256_or_si256(bytes, _mm256_set1_epi8(0x20));
            const __m256i blank = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(' '));
            auto bits = [&](__m256i mask) __attribute__((target("avx2"))) {
                return uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(mask))} << half;
            };
            block.letter |= bits(in_range(lower, 'a', 26));
            block.number |= bits(in_range(bytes, '0', 10));
            block.space |= bits(_mm256_or_si256(blank, in_range(bytes, '\t', 5)));
            block.other |= bits(bytes);
        }
        blocks[n] = block;
    }
}
#elif defined(__aarch64__)
// A bit a byte of 64 comparisons' results: each byte keeps its own bit, neighbours are added up.
inline uint64_t bits_of(const uint8x16_t (&masks)[4]) {
    static constexpr uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t bits = vld1q_u8(kBits);
    const uint8x16_t low = vpaddq_u8(vandq_u8(masks[0], bits), vandq_u8(masks[1], bits));
    const uint8x16_t high = vpaddq_u8(vandq_u8(masks[2], bits), vandq_u8(masks[3], bits));
    const uint8x16_t both = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(both, both)), 0);
}

inline void classify_neon(const char* text, Block* blocks, size_t count) {
    auto below = [](uint8x16_t bytes, uint8_t first, uint8_t size) {
        return vcltq_u8(vsubq_u8(bytes, vdupq_n_u8(first)), vdupq_n_u8(size));
    };
    for (size_t n = 0; n < count; ++n) {
        uint8x16_t letter[4], number[4], space[4], other[4];
        for (size_t quarter = 0; quarter < 4; ++quarter) {
            const uint8x16_t bytes = vld1q_u8(reinterpret_cast<const uint8_t*>(text) + n * 64 + quarter * 16);
            letter[quarter] = below(vorrq_u8(bytes, vdupq_n_u8(0x20)), 'a', 26);
            number[quarter] = below(bytes, '0', 10);
            space[quarter] = vorrq_u8(vceqq_u8(bytes, vdupq_n_u8(' ')), below(bytes, '\t', 5));
            other[quarter] = vcgeq_u8(bytes, vdupq_n_u8(0x80));
        }
        blocks[n] = {bits_of(letter), bits_of(number), bits_of(space), bits_of(other)};
    }
}
#endif

struct Classifier {
    const char* name;
    Classify classify;
};

// The fastest that this machine can run.
inline Classifier best_classifier() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return {"avx2", classify_avx2};
#elif defined(__aarch64__)
    return {"neon", classify_neon};  // part of every 64-bit ARM
#endif
    return {"plain", classify_plain};
}

}  // namespace blink::bpe
