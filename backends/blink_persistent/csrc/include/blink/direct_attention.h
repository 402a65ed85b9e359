// Attention of one query a row over paged KV that goes from memory straight into registers, in the
// fragments that it is multiplied in. So a block needs little shared memory, and is there, its first
// entries on their way, while the projection's blocks still fill their multiprocessors.
//
// Rotation of the new token's heads, its append to the KV and the sum over splits are part of it.
// One source for the GPU (lanes_gpu.h) and, lane by lane, for the host that tests it
// (lanes_host.h). Beside what primed_product.h asks for, a Port must offer:
//
//   sync_warp()                     the threads of a warp
//   exchange(value, lane), exchange_xor(value, mask)
//                                   another lane's value; all lanes of the warp take part
//   fetch(global)                   a value that the kernel ahead, or another block, wrote
//   arrive(counter)                 atomic, all threads of the block: its number before; what was
//                                   written before is seen by who arrives later
//   load_ahead(global)              16 bytes that no kernel under way writes
//   transpose(word)                 movmatrix: of 8x8 elements, two of a row in a lane's word
//   enter_cluster(), await_cluster()
//                                   the halves of a barrier of all threads of a cluster's blocks
//   open_mailbox(mailbox, bytes)    by one thread, before it enters: so many bytes are to come
//   send(shared, mailbox, rank, value), await_mailbox(mailbox)
//                                   to the same places in another block of the cluster; until all is there
#pragma once

#include "group_mixture.h"
#include "new_token.h"
#include "split_sum.h"

namespace blink {

// A block computes one split of one row's group, up to 8 heads; a warp takes 16 entries at a time.
// The last split has the new token. Where `kClustered`, a row's splits, if there are several, are the
// blocks of a cluster, each of which sums a share of the mixture.
//
// Fragments are those of primed_product.h: scores are queries, 16 rows of which 8 are used, times 8
// entries; the mixture is transposed values, 16 elements of a head, times 8 heads. Lane 4 * g + t
// holds 16 bytes of values of entry g as it does of keys; a word of them, transposed among the lanes,
// is two entries of one element.
template <class Port, uint32_t kWarps, uint32_t kHeadDim, bool kClustered>
class DirectAttention {
  public:
    static constexpr uint32_t kThreads = 32 * kWarps;
    static constexpr uint32_t kRowChunks = kHeadDim / 8;
    static constexpr uint32_t kWindows = kHeadDim / 32;
    static constexpr uint32_t kMostBlocks = 16;  // of a cluster
    using Mixture = GroupMixture<Port, kWarps, kHeadDim, kHeadDim + 1>;
    static_assert(kHeadDim == 64 || kHeadDim == 128);

    // Dynamic shared memory of a block, for groups of so many heads.
    BLINK_DEV static uint32_t shared_bytes(uint32_t heads) {
        const uint32_t received = heads * (kHeadDim + 2 * kMostBlocks) + (kMostBlocks - 1) * 32;
        return 16 * (kMostGroup + 2) * kRowChunks + 8 +
               4 * (Mixture::shared_floats(heads) + (kClustered ? received : 0));
    }

    BLINK_DEV DirectAttention(Port& port, const AttentionCall& a)
        : port_(port), a_(a), warp_(port.thread() / 32), lane_(port.thread() % 32), split_(port.block() % a.splits),
          group_{port.block() / a.splits / a.kv_heads, port.block() / a.splits % a.kv_heads, a.heads / a.kv_heads},
          heads_(static_cast<Chunk*>(port.shared())),
          mailbox_(reinterpret_cast<uint64_t*>(heads_ + (kMostGroup + 2) * kRowChunks)),
          mixture_(port, group_.heads, a.scale, reinterpret_cast<float*>(mailbox_ + 1)),
          tallies_(reinterpret_cast<float*>(mailbox_ + 1) + Mixture::shared_floats(group_.heads)),
          received_(tallies_ + 2 * group_.heads * a.splits) {}

    BLINK_DEV void run() {
        port_.let_next_in();
        const bool clustered = kClustered && a_.splits > 1;  // one block alone is launched without a cluster
        if (clustered) {
            if (port_.thread() == 0) port_.open_mailbox(mailbox_, bytes_received());
            port_.sync_warp();
            port_.enter_cluster();
        }
        const auto length = static_cast<uint32_t>(a_.lengths[group_.row]);
        const uint32_t old = length > 0 ? length - 1 : 0;
        const uint32_t share = (old + 16 * a_.splits - 1) / (16 * a_.splits) * 16;
        const uint32_t begin = least(split_ * share, old), end = least(begin + share, old);
        NewToken<Port, kWarps, kHeadDim, false> token(port_, a_, group_, heads_);
        uint32_t at = begin + 16 * warp_;
        Chunk keys[kWindows][2], values[kWindows][2];
        load(a_.keys, at, end, keys);
        load(a_.values, at, end, values);
        token.locate(old);
        has_new_ = length > 0 && split_ == a_.splits - 1;
        port_.await_previous();
        token.project(has_new_);
        port_.sync();
        mixture_.clear();
        for (; at < end; at += 16 * kWarps) {
            port_.sync_warp();  // queries are read again: kept, they would take registers of the entries
            float scores[2][4] = {};
            multiply(keys, scores);
            load(a_.keys, at + 16 * kWarps, end, keys);
            uint32_t weights[2];
            float fades[2];
            mixture_.weigh(scores, end - at, weights, fades);
            mix(values, fades, weights);
            load(a_.values, at + 16 * kWarps, end, values);
        }
        if (has_new_) mixture_.score_new(heads_);
        mixture_.hand_in(element_of);
        port_.sync();
        if (clustered)
            sum_in_cluster();
        else
            sum_alone();
    }

  private:
    BLINK_DEV static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

    // The warp's entries from `at` on. In place of what is behind `end`, whose weight is zero, the
    // last one before it.
    BLINK_DEV void load(const uint16_t* pages, uint32_t at, uint32_t end, Chunk (&entries)[kWindows][2]) {
        if (at >= end) return;
        const uint64_t first = group_.entry(a_, at);
        const uint32_t g = lane_ / 4, t = lane_ % 4, last = end - at - 1;
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
            const uint16_t* from = pages + (first + least(8 * half + g, last)) * kHeadDim + 8 * t;
#pragma unroll
            for (uint32_t window = 0; window < kWindows; ++window)
                entries[window][half] = port_.load_ahead(from + 32 * window);
        }
    }

    // Of head g: entries 2 * t and 2 * t + 1, and those 8 further.
    BLINK_DEV void multiply(const Chunk (&keys)[kWindows][2], float (&scores)[2][4]) {
        const uint32_t g = lane_ / 4, t = lane_ % 4;
        float more[2][4] = {};  // so that a multiplication waits for fewer others
#pragma unroll
        for (uint32_t window = 0; window < kWindows; ++window) {
            const Chunk q = port_.read(heads_ + key_place<kHeadDim>(g, 4 * window + t));
            const uint32_t first[4] = {q.word[0], 0, q.word[1], 0}, second[4] = {q.word[2], 0, q.word[3], 0};
#pragma unroll
            for (uint32_t half = 0; half < 2; ++half) {
                port_.multiply(scores[half], first, keys[window][half].word);
                port_.multiply(more[half], second, keys[window][half].word + 2);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) scores[i / 2][i % 2] += more[i / 2][i % 2];
    }

    // Of heads 2 * t and 2 * t + 1.
    BLINK_DEV void mix(const Chunk (&values)[kWindows][2], const float (&fades)[2], const uint32_t (&weights)[2]) {
#pragma unroll
        for (uint32_t i = 0; i < kHeadDim / 16; ++i) {
            const Chunk(&both)[2] = values[i / 2];
            uint32_t part[4];
#pragma unroll
            for (uint32_t j = 0; j < 4; ++j) part[j] = port_.transpose(both[j / 2].word[i % 2 * 2 + j % 2]);
#pragma unroll
            for (uint32_t j = 0; j < 4; ++j) mixture_.mixed[i][j] *= fades[j % 2];
            port_.multiply(mixture_.mixed[i], part, weights);
        }
    }

    // Of mixed[i][j], of head 2 * t + j % 2.
    BLINK_DEV static uint32_t element_of(uint32_t g, uint32_t i, uint32_t j) {
        return i / 2 * 32 + g / 2 * 8 + i % 2 * 4 + j / 2 * 2 + g % 2;
    }

    // Of the elements that are `lane_` further than a multiple of 32.
    BLINK_DEV HeadSum<kWindows> sum_warps(uint32_t head) const {
        return mixture_.template sum<kWindows>(head, lane_, has_new_, heads_);
    }

    BLINK_DEV uint64_t head_of(uint32_t head) const {
        return static_cast<uint64_t>(group_.row) * a_.heads + group_.kv_head * group_.heads + head;
    }

    // A warp a head; then the last split to arrive adds them all.
    BLINK_DEV void sum_alone() {
        for (uint32_t head = warp_; head < group_.heads; head += kWarps) {
            const auto sum = sum_warps(head);
            const uint64_t at = head_of(head);
            const uint64_t part = at * a_.splits + split_;
#pragma unroll
            for (uint32_t i = 0; i < kWindows; ++i) {
                const uint32_t element = 32 * i + lane_;
                if (a_.splits == 1)
                    store_feature(a_.out + at * kHeadDim + element, sum.mean(i));
                else
                    a_.partial[part * kHeadDim + element] = sum.mean(i);
            }
            if (a_.splits > 1 && lane_ == 0) a_.log_sums[part] = sum.log_sum();
        }
        if (a_.splits == 1) return;
        uint32_t* arrived = a_.arrived + group_.row * a_.kv_heads + group_.kv_head;
        if (port_.arrive(arrived) != a_.splits - 1) return;
        for (uint32_t i = 4 * port_.thread(); i < group_.heads * kHeadDim; i += 4 * kThreads)
            sum_splits<Port, kHeadDim>(port_, a_, head_of(i / kHeadDim), i % kHeadDim);
        if (port_.thread() == 0) *arrived = 0;
    }

    // Slices of 32 elements of a head go to the blocks of a cluster in turn.
    BLINK_DEV uint32_t slices_of(uint32_t block) const {
        return (group_.heads * kWindows + a_.splits - 1 - block) / a_.splits;
    }

    BLINK_DEV uint32_t bytes_received() const { return 4 * a_.splits * (32 * slices_of(split_) + 2 * group_.heads); }

    BLINK_DEV float* received(uint32_t slice, uint32_t split) const {
        return received_ + (slice * a_.splits + split) * 32;
    }

    // Each block gets its slices of every split's mixture, and all their best and total.
    BLINK_DEV void sum_in_cluster() {
        port_.await_cluster();  // all blocks of it have begun
        for (uint32_t head = warp_; head < group_.heads; head += kWarps) {
            const auto sum = sum_warps(head);
#pragma unroll
            for (uint32_t i = 0; i < kWindows; ++i) {
                const uint32_t slice = head * kWindows + i;
                const uint32_t turn = slice < a_.splits ? 0 : slice / a_.splits;
                port_.send(received(turn, split_) + lane_, mailbox_, slice - turn * a_.splits, sum.values[i]);
            }
            if (lane_ >= a_.splits) continue;
            float* own = tallies_ + 2 * (split_ * group_.heads + head);
            port_.send(own, mailbox_, lane_, sum.best);
            port_.send(own + 1, mailbox_, lane_, sum.total);
        }
        port_.await_mailbox(mailbox_);
        for (uint32_t i = warp_; i < slices_of(split_); i += kWarps) sum_slice(i);
    }

    BLINK_DEV void sum_slice(uint32_t number) {
        const uint32_t slice = number * a_.splits + split_, head = slice / kWindows;
        float best[kMostBlocks], total = 0.0f, value = 0.0f, most = -infinity();
#pragma unroll
        for (uint32_t split = 0; split < kMostBlocks; ++split) {
            best[split] = split < a_.splits ? tallies_[2 * (split * group_.heads + head)] : -infinity();
            most = fmaxf(most, best[split]);
        }
#pragma unroll
        for (uint32_t split = 0; split < kMostBlocks; ++split) {
            if (split >= a_.splits) continue;
            const float own = tallies_[2 * (split * group_.heads + head) + 1];
            const float weight = own == 0.0f ? 0.0f : exp2f(best[split] - most);
            total += weight * own;
            value += weight * received(number, split)[lane_];
        }
        const uint64_t element = slice % kWindows * 32 + lane_;
        store_feature(a_.out + head_of(head) * kHeadDim + element, total == 0.0f ? 0.0f : value / total);
    }

    Port& port_;
    const AttentionCall& a_;
    const uint32_t warp_, lane_, split_;
    const AttentionGroup group_;
    Chunk* const heads_;  // queries, [8, kHeadDim], then the new key and value
    uint64_t* const mailbox_;
    Mixture mixture_;
    float* const tallies_;   // best and total by split and head
    float* const received_;  // [slices, splits, 32]
    bool has_new_;
};

}  // namespace blink
