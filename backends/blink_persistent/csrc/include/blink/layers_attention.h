// Attention of one query a row over paged KV, as a phase of the kernel for all layers (layers_step.h).
// Blocks have even shares of all rows' pages, which come as stages of the kernel's ring.
//
// Behind weights every read and write of a few bytes takes a microsecond or two. So what is the same
// in all layers is found once, the heads of several pieces of a share are projected at a time, and a
// block tells the others once, at the end, of all that it has done.
//
// Eight warps share each page: a warp has the scores of 8 entries, and after that 16 elements of the
// mixture, so that nothing has to be summed over warps.
//
// Fragments: scores are queries, 16 rows of which a group's are used, times 8 entries; the mixture is
// transposed values, 16 elements of a head, times 8 heads.
#pragma once

#include "layers_room.h"
#include "new_token.h"
#include "split_sum.h"

namespace blink {

// What eight warps work on, in shared memory.
struct AttentionRoom {
    static constexpr uint32_t kHeadDim = 128, kPitch = kPage / 8 + 1;
    static constexpr uint32_t kPieces = 3;          // whose heads are projected at a time
    static constexpr uint32_t kGroup = 4;           // queries of a piece
    static constexpr uint32_t kHeads = kGroup + 2;  // behind them the new key and the new value

    struct alignas(16) Maxima {
        float of_warp[8];
    };

    Chunk heads[kPieces][kHeads * kHeadDim / 8];  // by `key_place`
    Chunk weights[8 * kPitch];                    // of a page's entries, of each head
    Maxima maxima[8];                             // of a page's scores, of each head
    float turns[kPieces][kHeadDim];               // cosines, then sines, of the new token's position
    uint16_t gains[2][kHeadDim];                  // of the heads' norms: queries', keys'
    Piece pieces[kPieces];
    uint32_t entries[kPieces];  // the new token's, of all in the KV
    uint32_t count;             // of pieces
    ShareState share;           // behind them
};
static_assert(sizeof(AttentionRoom) <= kAttentionBytes);

// Of one layer, by the first 256 threads. kTogether: a block's two groups are summed by half of them
// each, a few parts at a time; else one after the other, by all, of up to 16 parts at a time.
template <class Port, bool kTogether>
class LayerAttention {
  public:
    static constexpr uint32_t kWarps = 8, kThreads = 32 * kWarps, kHeadDim = AttentionRoom::kHeadDim;
    static constexpr uint32_t kGroup = AttentionRoom::kGroup, kHeads = AttentionRoom::kHeads;
    static_assert(kHeadDim == 16 * kWarps && kPage == 8 * kWarps);
    using Share = typename LayersRoom<Port>::Share;

    BLINK_DEV LayerAttention(Port& port, const LayersCall& call, uint32_t layer, uint32_t thread,
                             LayersRoom<Port>& block, AttentionRoom& room)
        : port_(port), call_(call), a_(call.attention), block_(block), room_(room), layer_(layer), warp_(thread / 32),
          lane_(thread % 32) {}

    // The next pieces, up to kPieces: how many. By one thread for all: they would have no registers for it.
    BLINK_DEV uint32_t take(bool first) {
        sync();  // others may still read of those before
        if (port_.thread() == 0) {
            Share share(block_.lengths, a_.kv_heads, first ? block_.share : room_.share);
            uint32_t count = 0;
            while (count < AttentionRoom::kPieces && share.next(room_.pieces[count])) ++count;
            room_.count = count;
            room_.share = share.state();
        }
        sync();
        return room_.count;
    }

    // What is known of the pieces' new tokens before queries, keys and values of the layer are there.
    BLINK_DEV void locate(uint32_t count) {
        if (count == 0) return;
        for (uint32_t i = thread(); i < count * kHeadDim; i += kThreads) {
            const uint64_t turn = static_cast<uint64_t>(room_.pieces[i / kHeadDim].old()) * kHalf + i % kHalf;
            room_.turns[i / kHeadDim][i % kHeadDim] = (i % kHeadDim < kHalf ? a_.cos : a_.sin)[turn];
        }
        if (call_.head_gains != nullptr)
            room_.gains[thread() / kHeadDim][thread() % kHeadDim] = call_.head_gains[2 * layer_ * kHeadDim + thread()];
        if (thread() >= count || !room_.pieces[thread()].has_new()) return;
        const Piece& piece = room_.pieces[thread()];
        const AttentionGroup group{piece.row, piece.kv_head, kGroup};
        room_.entries[thread()] = static_cast<uint32_t>(group.entry(a_, piece.old()));
    }

    // Queries, and the new keys and values, which are appended too. All that a warp has of them is
    // asked for before any is used.
    BLINK_DEV void project(uint32_t count) {
        constexpr uint32_t kCount = (AttentionRoom::kPieces * kHeads + kWarps - 1) / kWarps;
        uint64_t halves[kCount][2];  // two elements of each
#pragma unroll
        for (uint32_t i = 0; i < kCount; ++i) {
            const uint32_t number = warp_ + i * kWarps;
#pragma unroll
            for (uint32_t half = 0; half < 2; ++half)
                halves[i][half] = exists(count, number)
                                      ? port_.fetch(reinterpret_cast<const uint64_t*>(projected(number) + half * kHalf))
                                      : 0;
        }
        sync();  // `locate` is done
#pragma unroll
        for (uint32_t i = 0; i < kCount; ++i) {
            const uint32_t number = warp_ + i * kWarps, head = number % kHeads, piece = number / kHeads;
            if (!exists(count, number)) continue;
            float low[2], high[2], cos[2], sin[2];
#pragma unroll
            for (uint32_t j = 0; j < 2; ++j) {
                low[j] = from_bits(static_cast<uint32_t>(halves[i][0] >> 32 * j));
                high[j] = from_bits(static_cast<uint32_t>(halves[i][1] >> 32 * j));
                cos[j] = room_.turns[piece][2 * lane_ + j];
                sin[j] = room_.turns[piece][kHalf + 2 * lane_ + j];
            }
            const uint16_t* const gain = call_.head_gains == nullptr ? nullptr : room_.gains[is_key(head) ? 1 : 0];
            if (head <= kGroup) turn_head<kHeadDim>(port_, gain, a_.epsilon, cos, sin, low, high);
            const uint32_t words[2] = {pack_bfloat16(low[0], low[1]), pack_bfloat16(high[0], high[1])};
#pragma unroll
            for (uint32_t half = 0; half < 2; ++half) {
                const uint32_t element = half * kHalf + 2 * lane_;
                room_.heads[piece][key_place<kHeadDim>(head, element / 8)].word[element % 8 / 2] = words[half];
            }
            if (is_new(head)) append(piece, is_key(head) ? 0 : 1, words);
        }
        sync();
    }

    // The new token is the first entry where the block has it.
    BLINK_DEV Piece begin(uint32_t number) {
        const Piece piece = room_.pieces[number];
        const Chunk* const heads = room_.heads[number];
        const uint32_t g = lane_ / 4, t = lane_ % 4;
#pragma unroll
        for (uint32_t i = 0; i < kRowChunks; ++i)
            queries_[i] = g < kGroup ? heads[key_place<kHeadDim>(g, i)].word[t] : 0;
        best_ = -infinity();
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) mixed_[i] = totals_[i] = 0.0f;
        if (piece.has_new()) take_new(heads);
        return piece;
    }

    // Of a page's entries, of which `known` or all count.
    BLINK_DEV void score(const unsigned char* keys, uint32_t known) {
        const Chunk* const slice = reinterpret_cast<const Chunk*>(keys);
        float sums[2][4] = {};  // so that a multiplication waits for fewer others
#pragma unroll
        for (uint32_t i = 0; i < kRowChunks / 4; ++i) {
            const Chunk key = port_.read_matrices(slice + page_place(8 * warp_ + lane_ % 8, 4 * i + lane_ / 8));
            multiply_queries(sums[0], 4 * i, key.word);
            multiply_queries(sums[1], 4 * i + 2, key.word + 2);
        }
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j)
            scores_[j] = 8 * warp_ + 2 * (lane_ % 4) + j < known ? (sums[0][j] + sums[1][j]) * a_.scale : -infinity();
    }

    // Scores become weights, in shared memory; earlier ones fade.
    BLINK_DEV void weigh() {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
        float now = fmaxf(scores_[0], scores_[1]);
        now = fmaxf(now, port_.exchange_xor(now, 1));
        now = fmaxf(now, port_.exchange_xor(now, 2));
        if (t == 0) room_.maxima[g].of_warp[warp_] = now;
        sync();
        now = best_;
        const AttentionRoom::Maxima maxima = room_.maxima[g];
#pragma unroll
        for (uint32_t i = 0; i < kWarps; ++i) now = fmaxf(now, maxima.of_warp[i]);
        room_.weights[AttentionRoom::kPitch * g + warp_].word[t] =
            pack_bfloat16(exp2f(scores_[0] - now), exp2f(scores_[1] - now));
        float fades[2];
        give_heads(exp2f(best_ - now), fades);
        best_ = now;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            mixed_[i] *= fades[i % 2];
            totals_[i] *= fades[i % 2];
        }
        sync();
    }

    // What lies behind the last entry may be no number, of which a weight of zero makes none.
    BLINK_DEV void mix(const unsigned char* values, uint32_t known) {
        constexpr uint32_t kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
        const Chunk* const slice = reinterpret_cast<const Chunk*>(values);
        const Chunk* const weights = room_.weights + AttentionRoom::kPitch * (lane_ % 8) + lane_ / 8;
        const uint32_t t = lane_ % 4;
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            const Chunk weight = port_.read_matrices(weights + 4 * half);
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i) {
                const uint32_t first = 32 * half + 16 * i;
                Chunk part = port_.read_transposed(
                    slice + page_place(first + lane_ / 16 * 8 + lane_ % 8, 2 * warp_ + lane_ / 8 % 2));
#pragma unroll
                for (uint32_t j = 0; j < 4; ++j) part.word[j] &= mask_of(first + j / 2 * 8 + 2 * t, known);
                port_.multiply(mixed_, part.word, weight.word + 2 * i);
                port_.multiply(totals_, kOnes, weight.word + 2 * i);
            }
        }
    }

    // To `out`, or where the last of the group's blocks to be done will read it.
    BLINK_DEV void end(const Piece& piece) {
        const GroupBlocks blocks = block_.walk(a_.kv_heads).blocks_of(piece);
        if (blocks.one())
            give_out(out_of(piece.row * a_.kv_heads + piece.kv_head));
        else
            give_part(blocks.slot_of(port_.block()));
    }

    // All pieces: parts are summed where this block is the last that had one. Arrives at the border
    // once for each group that it has written to `out`.
    BLINK_DEV void finish() {
        uint32_t written = block_.whole;
        if (block_.parted > 0) {  // all have met since they stored their parts, to take no more pieces
            if (lane_ == 0 && warp_ < block_.parted)
                block_.before[warp_] = port_.add(a_.arrived + block_.groups[warp_]);
            sync();
            for (uint32_t i = 0; i < block_.parted; ++i) {
                const GroupBlocks blocks = block_.blocks[i];
                if (block_.before[i] != blocks.last - blocks.first) continue;
                ++written;
                if (kTogether && warp_ / (kWarps / 2) != i) continue;
                sum(blocks, out_of(block_.groups[i]), kTogether ? thread() % (kThreads / 2) : thread());
                if (lane_ == 0 && warp_ % (kWarps / 2) == 0) a_.arrived[block_.groups[i]] = 0;
            }
        }
        if (written == 0) return;
        port_.publish();
        sync();
        if (port_.thread() == 0) port_.count_arrivals(call_.arrived, written);
    }

  private:
    static constexpr uint32_t kHalf = kHeadDim / 2, kRowChunks = kHeadDim / 8;

    BLINK_DEV uint32_t thread() const { return 32 * warp_ + lane_; }
    BLINK_DEV void sync() { port_.template sync_some<3, kThreads>(); }

    BLINK_DEV static bool is_key(uint32_t head) { return head == kGroup; }
    BLINK_DEV static bool is_new(uint32_t head) { return head >= kGroup; }

    BLINK_DEV bool exists(uint32_t count, uint32_t number) const {
        const uint32_t piece = number / kHeads;
        return piece < count && (!is_new(number % kHeads) || room_.pieces[piece].has_new());
    }

    // The lane's first elements of one of the pieces' heads.
    BLINK_DEV const float* projected(uint32_t number) const {
        const Piece& piece = room_.pieces[number / kHeads];
        const uint32_t head = number % kHeads;
        const uint32_t of_row =
            is_new(head) ? a_.heads + piece.kv_head + (is_key(head) ? 0 : a_.kv_heads) : piece.kv_head * kGroup + head;
        return a_.qkv + (piece.row * (a_.heads + 2 * a_.kv_heads) + of_row) * kHeadDim + 2 * lane_;
    }

    // To keys (0) or values (1).
    BLINK_DEV void append(uint32_t piece, uint32_t kind, const uint32_t (&words)[2]) const {
        auto* const entry = reinterpret_cast<uint32_t*>(call_.pages[2 * layer_ + kind] +
                                                        static_cast<uint64_t>(room_.entries[piece]) * kHeadDim);
        entry[lane_] = words[0];
        entry[kHalf / 2 + lane_] = words[1];
    }

    BLINK_DEV uint16_t* out_of(uint32_t group) const { return a_.out + group * kGroup * kHeadDim; }

    // By 16 elements of 8 entries, from chunk `chunk` on.
    BLINK_DEV void multiply_queries(float (&sums)[4], uint32_t chunk, const uint32_t* keys) const {
        const uint32_t query[4] = {queries_[chunk], 0, queries_[chunk + 1], 0};
        port_.multiply(sums, query, keys);
    }

    // From the lanes of head g to those that have heads 2 * t and 2 * t + 1.
    BLINK_DEV void give_heads(float value, float (&values)[2]) const {
        values[0] = port_.exchange(value, lane_ % 4 * 8);
        values[1] = port_.exchange(value, lane_ % 4 * 8 + 4);
    }

    // All of the entries that are multiplied are the new one: every lane of a head has its score.
    BLINK_DEV void take_new(const Chunk* heads) {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
        float sums[2][4] = {};
#pragma unroll
        for (uint32_t i = 0; i < kRowChunks; i += 2) {
            const uint32_t key[2] = {heads[key_place<kHeadDim>(kGroup, i)].word[t],
                                     heads[key_place<kHeadDim>(kGroup, i + 1)].word[t]};
            multiply_queries(sums[i / 2 % 2], i, key);
        }
        best_ = (sums[0][0] + sums[1][0]) * a_.scale;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t pair = heads[key_place<kHeadDim>(kGroup + 1, 2 * warp_ + i / 2)].word[g / 2];
            mixed_[i] = float_of(pair >> g % 2 * 16 & 0xffff);
            totals_[i] = 1.0f;
        }
    }

    // A total is 0 where there was no entry. One that is NaN must not be taken for that.
    BLINK_DEV float mean(uint32_t i) const {
        return totals_[i % 2] == 0.0f ? 0.0f : quotient(mixed_[i], totals_[i % 2]);
    }

    BLINK_DEV void give_out(uint16_t* out) {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t head = 2 * t + i % 2;
            if (head < kGroup) port_.store(out + head * kHeadDim + 16 * warp_ + i / 2 * 8 + g, mean(i));
        }
    }

    BLINK_DEV void give_part(uint32_t slot) {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
        float bests[2];
        give_heads(best_, bests);
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t at = slot * kMostGroup + 2 * t + i % 2;
            if (2 * t + i % 2 >= kGroup) continue;
            port_.store(a_.partial + at * kHeadDim + 16 * warp_ + i / 2 * 8 + g, mean(i));
            if (i < 2 && warp_ == 0 && g == 0)
                port_.store(a_.log_sums + at, bests[i] + log2f(totals_[i]));  // -inf without entries
        }
    }

    BLINK_DEV void sum(const GroupBlocks& blocks, uint16_t* out, uint32_t first) {
        constexpr uint32_t kElements = kTogether ? 4 : 2;  // of a thread
        for (uint32_t i = kElements * first; i < kGroup * kHeadDim; i += 2 * kThreads) {
            const uint32_t head = i / kHeadDim;
            const auto place = [blocks, head](uint32_t part) {
                return uint64_t{blocks.slot_of(blocks.first + part)} * kMostGroup + head;
            };
            sum_parts<kHeadDim, kElements, kTogether ? 4 : 16>(port_, a_, blocks.last - blocks.first + 1, place,
                                                               i % kHeadDim, out + i);
        }
    }

    Port& port_;
    const LayersCall& call_;
    const AttentionCall& a_;
    LayersRoom<Port>& block_;
    AttentionRoom& room_;
    const uint32_t layer_, warp_, lane_;
    uint32_t queries_[kRowChunks];  // of head g, elements 2 * t and 2 * t + 1 of each chunk
    float scores_[2];               // of head g, entries 2 * t and 2 * t + 1 of the warp's
    float best_;                    // of head g
    float mixed_[4];                // of heads 2 * t and 2 * t + 1, elements g and g + 8 of the warp's
    float totals_[4];               // of their weights
};

}  // namespace blink
