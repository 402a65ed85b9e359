// What a block of the kernel for all layers (layers_step.h) knows of its share of the rows' pages: it
// is the same in all layers.
#pragma once

#include "even_share.h"
#include "layers_call.h"

namespace blink {

// In shared memory.
template <class Port>
struct LayersRoom {
    using Share = EvenShare<Port>;
    static constexpr uint32_t kKnownPages = 192;
    static constexpr uint32_t kBegin = 2;  // pages that take as long as a piece's queries and sum

    int32_t lengths[16];          // of rows
    ShareState share;             // as it begins in each layer
    uint32_t known[kKnownPages];  // rows of the block's first pages in their maps
    uint32_t pages;               // that the block copies, of keys and of values each
    uint32_t whole;               // groups that no other block has a part of
    uint32_t parted;              // the others, of which there are at most two
    uint32_t groups[2];           // their numbers
    GroupBlocks blocks[2];        // that have them
    uint32_t before[2];           // how many were done before this one

    BLINK_DEV Share walk(uint32_t kv_heads) const { return Share(lengths, kv_heads, share); }

    // By a warp, before others. Where all rows have as many pages, blocks have as many pieces each, and
    // there is nothing to make up for.
    BLINK_DEV void divide(Port& port, const AttentionCall& a) {
        const uint32_t lane = port.thread() % 32;
        const int32_t length = lane < a.rows ? a.lengths[lane] : 0;
        if (lane < a.rows) lengths[lane] = length;
        const auto count = static_cast<float>(Share::pages_of(static_cast<uint32_t>(length)));
        const bool differs = count != port.exchange(count, 0);
        const Share own(port, a, port.count(lane < a.rows && differs) == 0 ? 0 : kBegin);
        if (lane == 0) share = own.state();
    }

    // By a warp, after that.
    BLINK_DEV void find(Port& port, const AttentionCall& a) {
        const uint32_t lane = port.thread() % 32;
        uint32_t found = 0, wholes = 0, parts = 0;
        Share own = walk(a.kv_heads);
        for (Piece piece; own.next(piece); found += piece.old_pages()) {
            for (uint32_t i = lane; i < piece.old_pages() && found + i < kKnownPages; i += 32)
                known[found + i] = map_row(a, piece, i);
            const GroupBlocks with = own.blocks_of(piece);
            if (with.one()) {
                ++wholes;
            } else {
                if (lane == 0) {
                    groups[parts] = piece.row * a.kv_heads + piece.kv_head;
                    blocks[parts] = with;
                }
                ++parts;
            }
        }
        if (lane != 0) return;
        pages = found;
        whole = wholes;
        parted = parts;
    }

    // Of the block's page `number`, in the maps of the KV.
    BLINK_DEV uint32_t map_row_of(const AttentionCall& a, uint32_t number) const {
        if (number < kKnownPages) return known[number];
        Share own = walk(a.kv_heads);
        Piece piece{};
        while (own.next(piece) && number >= piece.old_pages()) number -= piece.old_pages();
        return map_row(a, piece, number);
    }

  private:
    BLINK_DEV static uint32_t map_row(const AttentionCall& a, const Piece& piece, uint32_t page) {
        const AttentionGroup group{piece.row, piece.kv_head, 0};
        return static_cast<uint32_t>(group.entry(a, (piece.first + page) * kPage));
    }
};

}  // namespace blink
