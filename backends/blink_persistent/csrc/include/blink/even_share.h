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

// A contiguous part of a group's pages.
struct Piece {
    uint32_t row, kv_head;
    uint32_t length;        // of the row, the new token included
    uint32_t first, count;  // pages of the group
    uint32_t pages;         // that the group has
    uint32_t begin;         // of the group's pages, in all of the work

    BLINK_DEV uint32_t old() const { return length > 0 ? length - 1 : 0; }
    BLINK_DEV bool is_last() const { return first + count == pages; }
};

// The work of up to 64 rows, one group after the other, of which each block has a contiguous, even
// share. A group is its pages, and before them kBegin that stand for its queries and its sum: these
// take about 3.7 us on an H200, a page 0.9 to 1.9. One without entries has a page: somebody has to
// write what comes of it.
template <class Port>
class EvenShare {
  public:
    static constexpr uint32_t kBegin = 4;

    // By all lanes of a warp.
    BLINK_DEV EvenShare(Port& port, const AttentionCall& a) : a_(a) {
        const uint32_t lane = port.thread() % 32;
        const uint32_t work[2] = {known_work(2 * lane), known_work(2 * lane + 1)};
        uint32_t sum = work[0] + work[1];
#pragma unroll
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t before = exchange(port, sum, lane < step ? lane : lane - step);
            sum += lane < step ? 0 : before;
        }
        total_ = a.kv_heads * exchange(port, sum, 31);
        blocks_ = port.blocks() < total_ ? port.blocks() : total_;
        at_ = begin_of(port.block());
        end_ = begin_of(port.block() + 1);
        const uint32_t even = a.kv_heads * (sum - work[0] - work[1]), odd = even + a.kv_heads * work[0];
        const uint32_t begun = port.count(2 * lane < a.rows && even <= at_);
        row_ = begun + port.count(2 * lane + 1 < a.rows && odd <= at_) - 1;
        row_begin_ = exchange(port, row_ % 2 == 0 ? even : odd, row_ / 2);
        enter_row();
    }

    // The block's next one, if there is any.
    BLINK_DEV bool next(Piece& piece) {
        if (at_ == end_) return false;
        if (at_ == row_begin_ + a_.kv_heads * (kBegin + pages_)) {
            ++row_;
            row_begin_ = at_;
            enter_row();
        }
        const uint32_t work = kBegin + pages_, kv_head = (at_ - row_begin_) / work;
        const uint32_t begin = row_begin_ + kv_head * work, end = end_ - begin < work ? end_ - begin : work;
        const uint32_t first = at_ - begin < kBegin ? 0 : at_ - begin - kBegin;
        at_ = begin + end;
        if (end <= kBegin) return false;  // the rest of the share: all of the group's pages are the next block's
        piece = {row_, kv_head, length_, first, end - kBegin - first, pages_, begin + kBegin};
        return true;
    }

    // That has this part of the work.
    BLINK_DEV uint32_t block_of(uint32_t place) const { return ((place + 1) * blocks_ - 1) / total_; }

  private:
    BLINK_DEV static uint32_t exchange(Port& port, uint32_t value, uint32_t lane) {
        return bits_of(port.exchange(from_bits(value), lane));
    }

    BLINK_DEV uint32_t begin_of(uint32_t block) const { return (block < blocks_ ? block : blocks_) * total_ / blocks_; }

    BLINK_DEV static uint32_t pages_of(uint32_t length) { return length <= 1 ? 1 : (length + kPage - 2) / kPage; }

    BLINK_DEV uint32_t known_work(uint32_t row) const {
        return row < a_.rows ? kBegin + pages_of(static_cast<uint32_t>(a_.lengths[row])) : 0;
    }

    BLINK_DEV void enter_row() {
        length_ = static_cast<uint32_t>(a_.lengths[row_]);
        pages_ = pages_of(length_);
    }

    const AttentionCall& a_;
    uint32_t total_;                             // of all blocks
    uint32_t blocks_;                            // that have any
    uint32_t at_, end_;                          // of the block's
    uint32_t row_, row_begin_, length_, pages_;  // where it is; pages of each of the row's groups
};

}  // namespace blink
