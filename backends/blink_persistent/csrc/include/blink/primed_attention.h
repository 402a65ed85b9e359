// Attention of one query a row over paged KV, whose entries are on their way before the kernel
// ahead, the projection of queries, keys and values, has ended. Rotation of the new token's heads,
// its append to the KV and the sum over splits are part of it.
//
// One source for the GPU (lanes_gpu.h) and, lane by lane, for the host that tests it
// (lanes_host.h). Beside what primed_product.h asks for, a Port must offer:
//
//   sync_warp()                     the threads of a warp
//   exchange(value, lane), exchange_xor(value, mask)
//                                   another lane's value; all lanes of the warp take part
//   read_transposed(row)            ldmatrix.x4.trans
//   fetch(global)                   a value that the kernel ahead, or another block, wrote
//   arrive(counter)                 atomic, all threads of the block: its number before; what was
//                                   written before is seen by who arrives later
#pragma once

#include "new_token.h"
#include "split_sum.h"

namespace blink {

// A block computes one split of one row's group, up to 8 heads, with a warp's own tiles of 16
// entries, kStages of them in shared memory or on their way. The last split has the new token.
//
// Fragments are those of primed_product.h: scores are queries, 16 rows of which 8 are used, times
// 8 entries; the mixture is transposed values, 16 elements of a head, times 8 heads.
template <class Port, uint32_t kWarps, uint32_t kHeadDim, uint32_t kStages>
class PrimedAttention {
  public:
    static constexpr uint32_t kThreads = 32 * kWarps;
    static constexpr uint32_t kRowChunks = kHeadDim / 8;
    static constexpr uint32_t kTileChunks = 16 * kRowChunks;  // of keys, or of values
    static constexpr uint32_t kWarpChunks = kStages * 2 * kTileChunks;
    static constexpr uint32_t kSharedBytes = 16 * (kWarps * kWarpChunks + (kMostGroup + 2) * kRowChunks);
    static_assert(kHeadDim == 64 || kHeadDim == 128);

    BLINK_DEV PrimedAttention(Port& port, const AttentionCall& a)
        : port_(port), a_(a), warp_(port.thread() / 32), lane_(port.thread() % 32), split_(port.block() % a.splits),
          group_{port.block() / a.splits / a.kv_heads, port.block() / a.splits % a.kv_heads, a.heads / a.kv_heads},
          stages_(static_cast<Chunk*>(port.shared()) + warp_ * kWarpChunks),
          heads_(static_cast<Chunk*>(port.shared()) + kWarps * kWarpChunks) {}

    BLINK_DEV void run() {
        port_.let_next_in();
        const uint32_t length = static_cast<uint32_t>(a_.lengths[group_.row]);
        const uint32_t old = length > 0 ? length - 1 : 0;
        const uint32_t share = (old + 16 * kWarps * a_.splits - 1) / (16 * kWarps * a_.splits) * 16 * kWarps;
        const uint32_t begin = least(split_ * share, old), end = least(begin + share, old);
        NewToken<Port, kWarps, kHeadDim> token(port_, a_, group_, heads_);
        const bool has_new = length > 0 && split_ == a_.splits - 1;
        uint32_t ahead = begin + 16 * warp_;
        for (uint32_t stage = 0; stage < kStages; ++stage, ahead += 16 * kWarps) load(stage, ahead, end);
        token.locate(old);
        port_.await_previous();
        token.project(has_new);
        port_.sync();
        read_queries();
        uint32_t stage = 0;
        for (uint32_t at = begin + 16 * warp_; at < end; at += 16 * kWarps, ahead += 16 * kWarps) {
            port_.template wait_copies<kStages - 1>();
            port_.sync_warp();
            attend(stage, end - at);
            port_.sync_warp();
            load(stage, ahead, end);
            stage = stage + 1 == kStages ? 0 : stage + 1;
        }
        if (has_new && warp_ == 0) attend_new();
        join_warps();
    }

  private:
    BLINK_DEV static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

    BLINK_DEV Chunk* tile(uint32_t stage, bool values) const {
        return stages_ + (2 * stage + (values ? 1 : 0)) * kTileChunks;
    }

    // The warp's tile from entry `at` on. What is behind `end` is zero: its weight is, too.
    BLINK_DEV void load(uint32_t stage, uint32_t at, uint32_t end) {
        if (at < end) {
            const uint64_t first = group_.entry(a_, at);
#pragma unroll
            for (uint32_t i = lane_; i < kTileChunks; i += 32) {
                const uint32_t row = i / kRowChunks, chunk = i % kRowChunks;
                load_chunk(tile(stage, false) + key_place<kHeadDim>(row, chunk), a_.keys, first, row, chunk,
                           at + row < end);
                load_chunk(tile(stage, true) + value_place<kHeadDim>(row, chunk), a_.values, first, row, chunk,
                           at + row < end);
            }
        }
        port_.commit();
    }

    BLINK_DEV void load_chunk(Chunk* to, const uint16_t* pages, uint64_t first, uint32_t row, uint32_t chunk,
                              bool known) {
        if (known)
            port_.copy(to, pages + (first + row) * kHeadDim + 8 * chunk);
        else
            port_.write(to, Chunk{});
    }

    BLINK_DEV void read_queries() {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
#pragma unroll
        for (uint32_t window = 0; window < kHeadDim / 32; ++window)
            queries_[window] = port_.read(heads_ + key_place<kHeadDim>(g, 4 * window + t));
        best_ = -infinity();
        total_ = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < kHeadDim / 4; ++i) mixed_[i / 4][i % 4] = 0.0f;
    }

    // The new token's key and value as the only entry of a tile.
    BLINK_DEV void attend_new() {
        port_.template wait_copies<0>();
        port_.sync_warp();
        for (uint32_t i = lane_; i < kTileChunks; i += 32) {
            const uint32_t row = i / kRowChunks, chunk = i % kRowChunks;
            const Chunk *key = heads_ + key_place<kHeadDim>(kMostGroup, chunk),
                        *value = heads_ + key_place<kHeadDim>(kMostGroup + 1, chunk);
            port_.write(tile(0, false) + key_place<kHeadDim>(row, chunk), row == 0 ? *key : Chunk{});
            port_.write(tile(0, true) + value_place<kHeadDim>(row, chunk), row == 0 ? *value : Chunk{});
        }
        port_.sync_warp();
        attend(0, 1);
    }

    BLINK_DEV void attend(uint32_t stage, uint32_t known) {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
        float scores[2][4] = {};
#pragma unroll
        for (uint32_t window = 0; window < kHeadDim / 32; ++window) {
            const Chunk& q = queries_[window];
            const uint32_t first[4] = {q.word[0], 0, q.word[1], 0}, second[4] = {q.word[2], 0, q.word[3], 0};
#pragma unroll
            for (uint32_t half = 0; half < 2; ++half) {
                const Chunk key = port_.read(tile(stage, false) + key_place<kHeadDim>(8 * half + g, 4 * window + t));
                port_.multiply(scores[half], first, key.word);
                port_.multiply(scores[half], second, key.word + 2);
            }
        }
        // Of head g: entries 2 * t and 2 * t + 1, and those 8 further.
        float now = best_;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            float& score = scores[i / 2][i % 2];
            score = i / 2 * 8 + 2 * t + i % 2 < known ? score * a_.scale : -infinity();
            now = fmaxf(now, score);
        }
        now = fmaxf(now, port_.exchange_xor(now, 1));
        now = fmaxf(now, port_.exchange_xor(now, 2));
        const float fade = exp2f(best_ - now);
        uint32_t weights[2];
        total_ *= fade;
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            const float first = exp2f(scores[half][0] - now), second = exp2f(scores[half][1] - now);
            total_ += first + second;
            weights[half] = pack_bfloat16(first, second);
        }
        best_ = now;
        mix(tile(stage, true), fade, weights);
    }

    // Of heads 2 * t and 2 * t + 1: elements g and g + 8 of every 16.
    BLINK_DEV void mix(const Chunk* values, float fade, const uint32_t (&weights)[2]) {
        const uint32_t t = lane_ % 4;
        const float fades[2] = {port_.exchange(fade, 8 * t), port_.exchange(fade, 8 * t + 4)};
        const uint32_t entry = lane_ / 16 * 8 + lane_ % 8, odd = lane_ / 8 % 2;
#pragma unroll
        for (uint32_t i = 0; i < kHeadDim / 16; ++i) {
            const Chunk part = port_.read_transposed(values + value_place<kHeadDim>(entry, 2 * i + odd));
#pragma unroll
            for (uint32_t j = 0; j < 4; ++j) mixed_[i][j] *= fades[j % 2];
            port_.multiply(mixed_[i], part.word, weights);
        }
    }

    // What a warp hands in: best and total of each head, then the mixture [8, kHeadDim].
    static constexpr uint32_t kHandedIn = kMostGroup * (kHeadDim + 2);
    static_assert(4 * kHandedIn <= 16 * kWarpChunks);

    BLINK_DEV float* handed_in(uint32_t warp) {
        return reinterpret_cast<float*>(static_cast<Chunk*>(port_.shared()) + warp * kWarpChunks);
    }

    BLINK_DEV void join_warps() {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
        total_ += port_.exchange_xor(total_, 1);
        total_ += port_.exchange_xor(total_, 2);
        port_.template wait_copies<0>();
        port_.sync_warp();
        float* own = handed_in(warp_);
        if (t == 0) own[2 * g] = best_, own[2 * g + 1] = total_;
#pragma unroll
        for (uint32_t i = 0; i < kHeadDim / 4; ++i) {
            const uint32_t head = 2 * t + i % 2, element = i / 4 * 16 + i % 4 / 2 * 8 + g;
            own[2 * kMostGroup + head * kHeadDim + element] = mixed_[i / 4][i % 4];
        }
        port_.sync();
        for (uint32_t i = port_.thread(); i < group_.heads * kHeadDim; i += kThreads) join(i / kHeadDim, i % kHeadDim);
        if (a_.splits == 1) return;
        if (port_.arrive(a_.arrived + group_.row * a_.kv_heads + group_.kv_head) != a_.splits - 1) return;
        const uint64_t first = static_cast<uint64_t>(group_.row) * a_.heads + group_.kv_head * group_.heads;
        for (uint32_t i = 4 * port_.thread(); i < group_.heads * kHeadDim; i += 4 * kThreads)
            sum_splits<Port, kHeadDim>(port_, a_, first + i / kHeadDim, i % kHeadDim);
        if (port_.thread() == 0) a_.arrived[group_.row * a_.kv_heads + group_.kv_head] = 0;
    }

    // A total is 0 where there was no entry. One that is NaN must not be taken for that.
    BLINK_DEV void join(uint32_t head, uint32_t element) {
        float best = -infinity(), total = 0.0f, value = 0.0f;
        for (uint32_t warp = 0; warp < kWarps; ++warp) best = fmaxf(best, handed_in(warp)[2 * head]);
        for (uint32_t warp = 0; warp < kWarps; ++warp) {
            const float* own = handed_in(warp);
            if (own[2 * head + 1] == 0.0f) continue;
            const float weight = exp2f(own[2 * head] - best);
            total += weight * own[2 * head + 1];
            value += weight * own[2 * kMostGroup + head * kHeadDim + element];
        }
        value = total == 0.0f ? 0.0f : value / total;
        const uint64_t at = static_cast<uint64_t>(group_.row) * a_.heads + group_.kv_head * group_.heads + head;
        if (a_.splits == 1) {
            store_feature(a_.out + at * kHeadDim + element, value);
            return;
        }
        a_.partial[(at * a_.splits + split_) * kHeadDim + element] = value;
        if (element == 0) a_.log_sums[at * a_.splits + split_] = total == 0.0f ? -infinity() : best + log2f(total);
    }

    Port& port_;
    const AttentionCall& a_;
    const uint32_t warp_, lane_, split_;
    const AttentionGroup group_;
    Chunk* const stages_;
    Chunk* const heads_;  // queries, [8, kHeadDim], then the new key and value
    Chunk queries_[kHeadDim / 32];
    float best_, total_;  // of head g
    float mixed_[kHeadDim / 16][4];
};

}  // namespace blink
