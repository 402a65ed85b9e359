// What the kernels of attention and their parts share: parameters, and places.
#pragma once

#include "lanes.h"

namespace blink {

constexpr uint32_t kMostGroup = 8;  // heads of a group

// Of a kernel. Heads of one group share a key and a value.
struct AttentionCall {
    const float* qkv;         // [parts, part_rows, (heads + 2 * kv_heads) * head_dim], without the bias
    const uint16_t* rounded;  // instead: bfloat16 [rows, (heads + 2 * kv_heads) * head_dim], or null
    const uint16_t* bias;     // bfloat16 [(heads + 2 * kv_heads) * head_dim], or null
    const uint16_t* q_norm;   // bfloat16 [head_dim], or null
    const uint16_t* k_norm;   // the same
    const float* cos;         // [context, head_dim / 2]
    const float* sin;         // the same
    const int32_t* lengths;   // [rows], the new token included; 0: an inactive row
    const int32_t* tables;    // [rows, max_blocks]
    uint16_t* keys;           // bfloat16 [blocks, kv_heads, block_size, head_dim]
    uint16_t* values;         // the same
    float* partial;           // [rows * heads, splits, head_dim]
    float* log_sums;          // [rows * heads, splits], to base 2
    uint32_t* arrived;        // [rows * kv_heads], zero, and left so
    uint16_t* out;            // bfloat16 [rows, heads * head_dim]
    float scale;              // of the scores, times log2(e)
    float epsilon;
    uint32_t parts, part_rows;  // of `qkv`, which begins with the first row: they may be some of a part's
    uint32_t rows, heads, kv_heads, max_blocks, block_size, splits;
};

// One row's heads that share a key and a value.
struct AttentionGroup {
    uint32_t row, kv_head;
    uint32_t heads;

    // Of a position of the row, in the pages.
    BLINK_DEV uint64_t entry(const AttentionCall& a, uint32_t position) const {
        const auto block = static_cast<uint64_t>(a.tables[row * a.max_blocks + position / a.block_size]);
        return (block * a.kv_heads + kv_head) * a.block_size + position % a.block_size;
    }
};

// Where chunk `chunk` of row `row` of queries, or of the new key or value, lies: so that 8 lanes that
// read two rows at once find them in different banks.
template <uint32_t kHeadDim>
BLINK_DEV inline uint32_t key_place(uint32_t row, uint32_t chunk) {
    return row * (kHeadDim / 8) + (chunk ^ (row % 2 * 4));
}

}  // namespace blink
