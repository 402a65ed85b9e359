// Attention of one query a row over paged KV, for rows enough that their KV takes as long as the
// memory does. Blocks stay for the whole kernel and have even shares of it: pages go on through a
// ring in shared memory, from before the wait for the kernel ahead to the end.
//
// Rotation of the new token's heads, its append to the KV and the sum over blocks are part of it.
// One source for the GPU (pages_gpu.h) and, lane by lane, for the host that tests it
// (pages_host.h). Beside what even_share.h, new_token.h and split_sum.h ask for, a Port must offer:
//
//   let_next_in(), await_previous() the halves of programmatic dependent launch
//   sync(), sync_some<kThreads>()   all threads of the block; its first so many
//   make_barrier(barrier, count), expect(barrier, bytes), await(barrier, parity), arrive(barrier)
//                                   an mbarrier
//   begin_copies()                  what the copies read may have been written by other means
//   copy_once(to, map, inner, row, barrier)
//                                   the map's box, 64 inner elements of some rows, swizzled by 128 bytes
//   read_matrices(row), read_transposed(row)
//                                   ldmatrix.x4, and its .trans
//   multiply(sums, a, b)            mma.m16n8k16
//   add(counter)                    atomic, by one thread: its number before; what was written before,
//                                   by whoever met this thread, is seen by who adds later
#pragma once

#include "even_share.h"
#include "group_mixture.h"
#include "new_token.h"
#include "split_sum.h"

namespace blink {

// kWarps warps multiply, in teams of four that take pages in turn, a warp 16 entries of each; one
// more copies. kPairs pages of keys, each with its values, are in shared memory or on their way.
//
// Of AttentionCall `splits` is not used, and `partial` is [blocks, 2, kMostGroup, kHeadDim],
// `log_sums` [blocks, 2, kMostGroup]: of the group that a block goes on with, and of the one that
// others go on with.
//
// Fragments: scores are queries, 16 rows of which 8 are used, times 8 entries; the mixture is
// transposed values, 16 elements of a head, times 8 heads. Scores come out as the operand that the
// values need.
template <class Port, uint32_t kWarps, uint32_t kHeadDim, uint32_t kPairs>
class EvenAttention {
  public:
    static constexpr uint32_t kTeam = kPage / 16;
    static constexpr uint32_t kTeams = kWarps / kTeam;
    static_assert(kPairs % kTeams == 0, "a team must see all that happens to its pairs' barriers");
    static constexpr uint32_t kConsumers = 32 * kWarps;
    static constexpr uint32_t kThreads = kConsumers + 32;
    static constexpr uint32_t kRowChunks = kHeadDim / 8;
    static constexpr uint32_t kPageChunks = kPage * kRowChunks;
    static constexpr uint32_t kHeadsChunks = (kMostGroup + 2) * kRowChunks;
    using Share = EvenShare<Port>;
    // Pages that take as long as a group's queries and sum: 3.7 us on an H200, a page 0.9 to 1.9.
    static constexpr uint32_t kBegin = 4;
    using Mixture = GroupMixture<Port, kWarps, kHeadDim, kHeadDim + 4>;
    static_assert(kWarps % kTeam == 0 && 4 * kPairs <= 32 && (kHeadDim == 64 || kHeadDim == 128));

    // Of a block, for groups of so many heads.
    BLINK_DEV static constexpr uint32_t shared_bytes(uint32_t heads) {
        return 16 * (2 * kPairs * kPageChunks + 2 * kHeadsChunks) + 8 * 4 * kPairs +
               4 * (4 + Mixture::shared_floats(heads));
    }

    BLINK_DEV EvenAttention(Port& port, const AttentionCall& a)
        : port_(port), a_(a), warp_(port.thread() / 32), lane_(port.thread() % 32), group_heads_(a.heads / a.kv_heads),
          pages_(static_cast<Chunk*>(port.shared())), all_heads_(pages_ + 2 * kPairs * kPageChunks),
          full_(reinterpret_cast<uint64_t*>(all_heads_ + 2 * kHeadsChunks)), empty_(full_ + 2 * kPairs),
          before_(reinterpret_cast<uint32_t*>(empty_ + 2 * kPairs)),
          mixture_(port, group_heads_, a.scale, reinterpret_cast<float*>(before_ + 4)) {}

    // `keys`, `values`: maps of all entries, [entries, kHeadDim], with boxes of a page or, if it is
    // smaller, a block of the KV.
    template <class Map>
    BLINK_DEV void run(const Map* keys, const Map* values) {
        // By a lane each: what makes one known takes as long as for all of them.
        if (warp_ == 0 && lane_ < 4 * kPairs) port_.make_barrier(full_ + lane_, lane_ < 2 * kPairs ? 1 : kTeam);
        port_.let_next_in();
        Share share(port_, a_, kBegin);
        port_.sync();
        if (warp_ < kWarps)
            attend(share);
        else if (lane_ == 0)
            copy(share, keys, values);
    }

  private:
    // Where a page is in the ring.
    struct Place {
        uint32_t number = 0;
        uint32_t pair = 0;
        uint32_t parity = 0;

        BLINK_DEV void advance() {
            ++number;
            pair = pair + 1 == kPairs ? 0 : pair + 1;
            parity ^= pair == 0 ? 1u : 0u;
        }
    };

    BLINK_DEV static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

    BLINK_DEV Chunk* page(uint32_t stage) const { return pages_ + stage * kPageChunks; }

    // No kernel under way writes entries before the new token's: nothing is waited for.
    template <class Map>
    BLINK_DEV void copy(Share& share, const Map* keys, const Map* values) {
        const uint32_t box_rows = least(kPage, a_.block_size);
        Piece piece;
        Place to;
        port_.begin_copies();
        while (share.next(piece)) {
            const AttentionGroup group{piece.row, piece.kv_head, group_heads_};
            const uint32_t end = least(kPage * (piece.first + piece.count), piece.old());
            for (uint32_t at = kPage * piece.first; at < end; at += kPage, to.advance()) {
                copy_page(group, keys, at, end, box_rows, 2 * to.pair, to.parity);
                copy_page(group, values, at, end, box_rows, 2 * to.pair + 1, to.parity);
            }
        }
    }

    // Boxes that begin behind the row's last entry have no place in its block table.
    template <class Map>
    BLINK_DEV void copy_page(const AttentionGroup& group, const Map* map, uint32_t at, uint32_t end, uint32_t box_rows,
                             uint32_t stage, uint32_t parity) {
        const uint32_t count = least(kPage, end - at), boxes = (count + box_rows - 1) / box_rows;
        port_.await(empty_ + stage, parity ^ 1);
        port_.expect(full_ + stage, boxes * box_rows * 2 * kHeadDim);
#pragma unroll 1
        for (uint32_t i = 0; i < boxes; ++i) {
            const auto row = static_cast<uint32_t>(group.entry(a_, at + i * box_rows));
#pragma unroll
            for (uint32_t part = 0; part < kHeadDim / 64; ++part)
                port_.copy_once(page(stage) + part * 8 * kPage + 8 * i * box_rows, map, 64 * part, row, full_ + stage);
        }
    }

    BLINK_DEV void attend(Share& share) {
        Piece piece;
        Place from;
        bool awaited = false;
        for (uint32_t turn = 0; share.next(piece); turn ^= 1) {
            const AttentionGroup group{piece.row, piece.kv_head, group_heads_};
            heads_ = all_heads_ + turn * kHeadsChunks;  // others may still read those of the piece before
            NewToken<Port, kWarps, kHeadDim, true> token(port_, a_, group, heads_);
            token.locate(piece.old());
            if (!awaited) port_.await_previous();
            awaited = true;
            has_new_ = piece.has_new();
            token.project(has_new_);
            port_.template sync_some<kConsumers>();
            read_queries();
            mixture_.clear();
            const uint32_t end = least(kPage * (piece.first + piece.count), piece.old());
            for (uint32_t at = kPage * piece.first; at < end; at += kPage, from.advance())
                if (from.number % kTeams == warp_ / kTeam) attend(from, at, end);
            if (has_new_) mixture_.score_new(heads_);
            mixture_.hand_in(element_of);
            port_.template sync_some<kConsumers>();
            sum(share, piece);
        }
    }

    BLINK_DEV void read_queries() {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
#pragma unroll
        for (uint32_t i = 0; i < kRowChunks; ++i) queries_[i] = heads_[key_place<kHeadDim>(g, i)].word[t];
    }

    // The warp's 16 entries of the page that begins with entry `at`. It waits also for those of which
    // it has none, since a stage must not be released twice before it is filled.
    BLINK_DEV void attend(const Place& from, uint32_t at, uint32_t end) {
        const uint32_t slice = 16 * (warp_ % kTeam), stage = 2 * from.pair;
        const uint32_t known = at + slice < end ? end - at - slice : 0;
        float scores[2][4] = {};
        port_.await(full_ + stage, from.parity);
        if (known > 0) multiply(page(stage) + 8 * slice, scores);
        release(stage);
        uint32_t weights[2];
        float fades[2];
        if (known > 0) mixture_.weigh(scores, known, weights, fades);
        port_.await(full_ + stage + 1, from.parity);
        if (known >= 16)
            mix<false>(page(stage + 1) + 8 * slice, known, fades, weights);
        else if (known > 0)
            mix<true>(page(stage + 1) + 8 * slice, known, fades, weights);
        release(stage + 1);
    }

    BLINK_DEV void release(uint32_t stage) {
        port_.sync_warp();
        if (lane_ == 0) port_.arrive(empty_ + stage);
    }

    // Chunk 2 * i or the next of one of 16 entries: a lane's row of four matrices. `slice` begins with
    // an entry of which 8 is a divisor.
    BLINK_DEV const Chunk* row_of(const Chunk* slice, uint32_t i) const {
        return slice + page_place(lane_ / 16 * 8 + lane_ % 8, 2 * i + lane_ / 8 % 2);
    }

    // Of head g: entries 2 * t and 2 * t + 1, and those 8 further.
    BLINK_DEV void multiply(const Chunk* keys, float (&scores)[2][4]) {
        float more[2][4] = {};  // so that a multiplication waits for fewer others
#pragma unroll
        for (uint32_t i = 0; i < kHeadDim / 16; ++i) {
            const Chunk key = port_.read_matrices(row_of(keys, i));
            const uint32_t query[4] = {queries_[2 * i], 0, queries_[2 * i + 1], 0};
#pragma unroll
            for (uint32_t half = 0; half < 2; ++half)
                port_.multiply(i % 2 == 0 ? scores[half] : more[half], query, key.word + 2 * half);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) scores[i / 2][i % 2] += more[i / 2][i % 2];
    }

    // Of heads 2 * t and 2 * t + 1: elements g and g + 8 of every 16. What lies behind the last entry
    // may be no number, of which a weight of zero makes none.
    template <bool kPartly>
    BLINK_DEV void mix(const Chunk* values, uint32_t known, const float (&fades)[2], const uint32_t (&weights)[2]) {
        const uint32_t t = lane_ % 4;
        const uint32_t masks[2] = {mask_of(2 * t, known), mask_of(2 * t + 8, known)};
#pragma unroll
        for (uint32_t i = 0; i < kHeadDim / 16; ++i) {
            Chunk part = port_.read_transposed(row_of(values, i));
#pragma unroll
            for (uint32_t j = 0; j < 4; ++j) {
                if (kPartly) part.word[j] &= masks[j / 2];
                mixture_.mixed[i][j] *= fades[j % 2];
            }
            port_.multiply(mixture_.mixed[i], part.word, weights);
        }
    }

    // Of mixed[i][j], of head 2 * t + j % 2.
    BLINK_DEV static uint32_t element_of(uint32_t g, uint32_t i, uint32_t j) { return 16 * i + j / 2 * 8 + g; }

    // To `out`; of a group that several blocks have, by the last of them to arrive.
    BLINK_DEV void sum(const Share& share, const Piece& piece) {
        const GroupBlocks blocks = share.blocks_of(piece);
        const uint64_t group = static_cast<uint64_t>(piece.row) * a_.kv_heads + piece.kv_head;
        const uint32_t slot = blocks.slot_of(port_.block());
        for (uint32_t i = port_.thread(); i < group_heads_ * kHeadDim; i += kConsumers) {
            const uint32_t head = i / kHeadDim, element = i % kHeadDim;
            const auto sum = mixture_.template sum<1>(head, element, has_new_, heads_);
            if (blocks.one()) {
                store_feature(a_.out + group * group_heads_ * kHeadDim + i, sum.mean(0));
                continue;
            }
            a_.partial[(slot * kMostGroup + head) * kHeadDim + element] = sum.mean(0);
            if (element == 0) a_.log_sums[slot * kMostGroup + head] = sum.log_sum();
        }
        if (blocks.one()) return;
        port_.template sync_some<kConsumers>();
        if (port_.thread() == 0) *before_ = port_.add(a_.arrived + group);
        port_.template sync_some<kConsumers>();
        if (*before_ != blocks.last - blocks.first) return;
        for (uint32_t i = 4 * port_.thread(); i < group_heads_ * kHeadDim; i += 4 * kConsumers) {
            const uint32_t head = i / kHeadDim;
            const auto place = [blocks, head](uint32_t part) {
                return uint64_t{blocks.slot_of(blocks.first + part)} * kMostGroup + head;
            };
            sum_parts<kHeadDim, 4, 8>(port_, a_, blocks.last - blocks.first + 1, place, i % kHeadDim,
                                      a_.out + group * group_heads_ * kHeadDim + i);
        }
        if (port_.thread() == 0) a_.arrived[group] = 0;
    }

    Port& port_;
    const AttentionCall& a_;
    const uint32_t warp_, lane_, group_heads_;
    Chunk* const pages_;      // [kPairs, 2, kPageChunks], keys and values
    Chunk* const all_heads_;  // of two pieces, each: queries, [8, kHeadDim], then the new key and value
    uint64_t* const full_;    // of the ring's pages; behind them, that they are free
    uint64_t* const empty_;
    uint32_t* const before_;  // a counter's number that one thread tells all
    Mixture mixture_;
    Chunk* heads_;
    bool has_new_;
    uint32_t queries_[kRowChunks];  // of head g, elements 2 * t and 2 * t + 1 of each chunk
};

}  // namespace blink
