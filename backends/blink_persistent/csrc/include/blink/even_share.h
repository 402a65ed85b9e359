// Which pages of the KV each block attends to, where blocks share those of all rows evenly.
//
// What a Port must offer, beside lanes_gpu.h's thread(), block() and exchange(value, lane):
//
//   blocks()                        how many there are
//   count(condition)                the warp's lanes for which it holds
#pragma once

#include "attention_call.h"

namespace blink {

constexpr uint32_t kPage = 64;  // entries that are copied and released together

// Where chunk `chunk` of an entry lies in its page: 64 elements of all entries lie together.
BLINK_DEV inline uint32_t page_place(uint32_t entry, uint32_t chunk) {
    return chunk / 8 * (8 * kPage) + 8 * entry + ((chunk ^ entry) & 7);
}

// Of two bfloat16 of entries `entry` and the next: those before entry `known`.
BLINK_DEV inline uint32_t mask_of(uint32_t entry, uint32_t known) {
    return (entry < known ? 0xffffu : 0u) | (entry + 1 < known ? 0xffff0000u : 0u);
}

// A contiguous part of a group's pages.
struct Piece {
    uint32_t row, kv_head;
    uint32_t length;        // of the row, the new token included
    uint32_t first, count;  // pages of the group
    uint32_t pages;         // that the group has
    uint32_t begin;         // of the group's pages, in all of the work

    BLINK_DEV uint32_t old() const { return length > 0 ? length - 1 : 0; }
    BLINK_DEV bool has_new() const { return length > 0 && first + count == pages; }
    BLINK_DEV uint32_t old_pages() const { return old() > 0 ? count : 0; }  // of these pages
};

// Those that have a group's pages.
struct GroupBlocks {
    uint32_t first, last;

    BLINK_DEV bool one() const { return first == last; }
    // Where a block leaves its part: of its two groups that others have too, the one that it begins
    // and does not end is the second.
    BLINK_DEV uint32_t slot_of(uint32_t block) const { return 2 * block + (block == first ? 1 : 0); }
};

struct ShareState {
    uint32_t begin;                          // work that stands for a group's queries and its sum
    uint32_t total;                          // of all blocks
    uint32_t blocks;                         // that have any
    uint32_t at, end;                        // of the block's
    uint32_t row, row_begin, length, pages;  // where it is; pages of each of the row's groups
};

// The work of up to 64 rows, one group after the other, of which each block has a contiguous, even
// share. A group is its pages, and before them `begin` that stand for its queries and its sum. One
// without entries has a page: somebody has to write what comes of it.
template <class Port>
class EvenShare {
  public:
    // By all lanes of a warp.
    BLINK_DEV EvenShare(Port& port, const AttentionCall& a, uint32_t begin)
        : lengths_(a.lengths), kv_heads_(a.kv_heads) {
        const uint32_t lane = port.thread() % 32;
        state_.begin = begin;
        const uint32_t work[2] = {known_work(2 * lane, a.rows), known_work(2 * lane + 1, a.rows)};
        uint32_t sum = work[0] + work[1];
#pragma unroll
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t before = exchange(port, sum, lane < step ? lane : lane - step);
            sum += lane < step ? 0 : before;
        }
        state_.total = a.kv_heads * exchange(port, sum, 31);
        state_.blocks = port.blocks() < state_.total ? port.blocks() : state_.total;
        state_.at = begin_of(port.block());
        state_.end = begin_of(port.block() + 1);
        const uint32_t even = a.kv_heads * (sum - work[0] - work[1]), odd = even + a.kv_heads * work[0];
        const uint32_t begun = port.count(2 * lane < a.rows && even <= state_.at);
        state_.row = begun + port.count(2 * lane + 1 < a.rows && odd <= state_.at) - 1;
        state_.row_begin = exchange(port, state_.row % 2 == 0 ? even : odd, state_.row / 2);
        enter_row();
    }

    // As another was, of the same lengths.
    BLINK_DEV EvenShare(const int32_t* lengths, uint32_t kv_heads, const ShareState& state)
        : lengths_(lengths), kv_heads_(kv_heads), state_(state) {}
    BLINK_DEV const ShareState& state() const { return state_; }

    // The block's next one, if there is any.
    BLINK_DEV bool next(Piece& piece) {
        if (state_.at == state_.end) return false;
        if (state_.at == state_.row_begin + kv_heads_ * (state_.begin + state_.pages)) {
            ++state_.row;
            state_.row_begin = state_.at;
            enter_row();
        }
        const uint32_t work = state_.begin + state_.pages, kv_head = (state_.at - state_.row_begin) / work;
        const uint32_t begin = state_.row_begin + kv_head * work,
                       end = state_.end - begin < work ? state_.end - begin : work;
        const uint32_t behind = state_.at - begin, first = behind > state_.begin ? behind - state_.begin : 0;
        state_.at = begin + end;
        if (end <= state_.begin) return false;  // the rest of the share: all of the group's pages are the next block's
        piece = {state_.row,          kv_head, state_.length, first, end - state_.begin - first, state_.pages,
                 begin + state_.begin};
        return true;
    }

    // Of each of a row's groups.
    BLINK_DEV static uint32_t pages_of(uint32_t length) { return length <= 1 ? 1 : (length + kPage - 2) / kPage; }

    BLINK_DEV GroupBlocks blocks_of(const Piece& piece) const {
        return {block_of(piece.begin), block_of(piece.begin + piece.pages - 1)};
    }

  private:
    // That has this part of the work.
    BLINK_DEV uint32_t block_of(uint32_t place) const { return ((place + 1) * state_.blocks - 1) / state_.total; }

    BLINK_DEV static uint32_t exchange(Port& port, uint32_t value, uint32_t lane) {
        return bits_of(port.exchange(from_bits(value), lane));
    }

    BLINK_DEV uint32_t begin_of(uint32_t block) const {
        return (block < state_.blocks ? block : state_.blocks) * state_.total / state_.blocks;
    }

    BLINK_DEV uint32_t known_work(uint32_t row, uint32_t rows) const {
        return row < rows ? state_.begin + pages_of(static_cast<uint32_t>(lengths_[row])) : 0;
    }

    BLINK_DEV void enter_row() {
        state_.length = static_cast<uint32_t>(lengths_[state_.row]);
        state_.pages = pages_of(state_.length);
    }

    const int32_t* const lengths_;
    const uint32_t kv_heads_;
    ShareState state_;
};

}  // namespace blink
