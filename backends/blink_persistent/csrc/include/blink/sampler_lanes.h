// What sampler_block.h asks of a Block: the lanes of one thread block, and those of a cluster of them.
//
// One source for the GPU (sampler_port_gpu.h) and, lane by lane, for the host that tests it. What a
// Port must offer, all of it static:
//
//   thread(), sync(), sync_warp()   of a block
//   warp_sum(u64), warp_max(u64), warp_share(u64), warp_value(u64, lane), warp_any(bool)
//                                   by all lanes of a warp, told to all
//   rank(), blocks()                the block's number in its cluster, and their count
//   enter(), await_others()         the halves of a barrier of all threads of a cluster; it orders no
//                                   accesses to the device's memory
//   sync_cluster()                  one that does
//   open_mailbox(mailbox)           by one thread, before it enters
//   expect(mailbox, bytes)          by one thread: so many are to come before it is full once more
//   send(place, mailbox, rank, u64) to the same place in a block of the cluster
//   await_mailbox(mailbox, parity)  until it has been full an odd (0) or even (1) number of times
//   add, set_bits, take             as a Block's
#pragma once

#include "sampler_masses.h"

namespace blink {

constexpr uint32_t kMostSums = 2 * kBars;  // at once

struct Sum {
    template <class Port>
    BLINK_DEV static uint64_t of_warp(uint64_t value) {
        return Port::warp_sum(value);
    }
    BLINK_DEV static uint64_t of(uint64_t a, uint64_t b) { return a + b; }
};

struct Max {
    template <class Port>
    BLINK_DEV static uint64_t of_warp(uint64_t value) {
        return Port::warp_max(value);
    }
    BLINK_DEV static uint64_t of(uint64_t a, uint64_t b) { return a > b ? a : b; }
};

// What a block and a cluster have in common: groups are warps, and `Lanes` combine values of all.
template <class Port, class Lanes>
class WarpGroups {
  public:
    BLINK_DEV static constexpr uint32_t width() { return 32; }
    BLINK_DEV static uint64_t of_first(uint64_t value) { return Port::warp_value(value, 0); }
    BLINK_DEV static Share group_share(uint64_t value) {
        if (!Port::warp_any(value != 0)) return {0, 0};
        return Port::warp_share(value);
    }
    BLINK_DEV static void add(uint32_t* word, uint32_t value) { Port::add(word, value); }
    BLINK_DEV static void add(float* word, float value) { Port::add(word, value); }
    BLINK_DEV static void set_bits(uint32_t* word, uint32_t bits) { Port::set_bits(word, bits); }
    BLINK_DEV static uint32_t take(uint32_t* word) { return Port::take(word); }

    BLINK_DEV uint64_t sum(uint64_t value) { return combined<Sum>(value); }
    BLINK_DEV uint64_t max(uint64_t value) { return combined<Max>(value); }
    template <uint32_t kCount>
    BLINK_DEV void sums(uint64_t (&values)[kCount]) {
        static_cast<Lanes*>(this)->template combine<Sum>(values);
    }

  private:
    template <class Operation>
    BLINK_DEV uint64_t combined(uint64_t value) {
        uint64_t values[1] = {value};
        static_cast<Lanes*>(this)->template combine<Operation>(values);
        return values[0];
    }
};

template <class Port, uint32_t kThreads>
class BlockLanes : public WarpGroups<Port, BlockLanes<Port, kThreads>> {
  public:
    static constexpr uint32_t kBatch = 4;
    static constexpr uint32_t kWarps = kThreads / 32;

    // The words of two successive calls lie apart, so that one barrier is enough.
    struct Shared {
        uint64_t warps[2][kMostSums][kWarps];
    };

    BLINK_DEV explicit BlockLanes(Shared& shared) : shared_(shared) {}

    BLINK_DEV static uint32_t lane() { return Port::thread(); }
    BLINK_DEV static constexpr uint32_t lanes() { return kThreads; }
    BLINK_DEV static void sync() { Port::sync(); }
    BLINK_DEV BlockLanes& local() { return *this; }

    BLINK_DEV Share share(uint64_t value) {
        const Share own = Port::warp_share(value);
        auto& warps = next_words();
        if (Port::thread() % 32 == 0) warps[0][Port::thread() / 32] = own.total;
        Port::sync();
        const Share before = Port::warp_share(Port::thread() % 32 < kWarps ? warps[0][Port::thread() % 32] : 0);
        return {own.below + Port::warp_value(before.below, Port::thread() / 32), before.total};
    }

    // Each value of all warps: `finish(number, value)` by all lanes of one warp.
    template <class Operation, uint32_t kCount, class Finish>
    BLINK_DEV void combine_in_a_warp(const uint64_t (&values)[kCount], Finish finish) {
        static_assert(kCount <= kWarps);
        const auto& warps = of_warps<Operation>(values);
        const uint32_t k = Port::thread() / 32;
        if (k < kCount)
            finish(k,
                   Operation::template of_warp<Port>(Port::thread() % 32 < kWarps ? warps[k][Port::thread() % 32] : 0));
    }

  private:
    friend class WarpGroups<Port, BlockLanes>;
    using Words = uint64_t[kMostSums][kWarps];

    BLINK_DEV Words& next_words() { return shared_.warps[parity_ ^= 1]; }

    template <class Operation, uint32_t kCount>
    BLINK_DEV const Words& of_warps(const uint64_t (&values)[kCount]) {
        static_assert(kCount <= kMostSums);
        Words& warps = next_words();
#pragma unroll
        for (uint32_t k = 0; k < kCount; ++k) {
            const uint64_t of_warp = Operation::template of_warp<Port>(values[k]);
            if (Port::thread() % 32 == 0) warps[k][Port::thread() / 32] = of_warp;
        }
        Port::sync();
        return warps;
    }

    template <class Operation, uint32_t kCount>
    BLINK_DEV void combine(uint64_t (&values)[kCount]) {
        const Words& warps = of_warps<Operation>(values);
#pragma unroll
        for (uint32_t k = 0; k < kCount; ++k)
            values[k] =
                Operation::template of_warp<Port>(Port::thread() % 32 < kWarps ? warps[k][Port::thread() % 32] : 0);
    }

    Shared& shared_;
    uint32_t parity_ = 0;
};

// Up to 8 blocks, launched as a cluster.
template <class Port, uint32_t kThreads>
class ClusterLanes : public WarpGroups<Port, ClusterLanes<Port, kThreads>> {
  public:
    static constexpr uint32_t kBatch = 8;
    static constexpr uint32_t kMostBlocks = 8;

    struct Shared {
        typename BlockLanes<Port, kThreads>::Shared block;
        uint64_t blocks[2][kMostSums][kMostBlocks];  // what each has sent
        uint64_t mailboxes[2];                       // that tell when all of it is there
    };

    // By all threads; other blocks may not have begun before `await_others`.
    BLINK_DEV explicit ClusterLanes(Shared& shared) : shared_(shared), block_(shared.block) {
        if (Port::thread() == 0)
            for (uint64_t& mailbox : shared_.mailboxes) Port::open_mailbox(&mailbox);
        Port::sync_warp();
        Port::enter();
    }
    BLINK_DEV static void enter() { Port::enter(); }
    BLINK_DEV static void await_others() { Port::await_others(); }

    BLINK_DEV static uint32_t blocks() { return Port::blocks(); }
    BLINK_DEV static uint32_t lane() { return Port::rank() * kThreads + Port::thread(); }
    BLINK_DEV static uint32_t lanes() { return blocks() * kThreads; }
    BLINK_DEV static void sync() { Port::sync_cluster(); }
    BLINK_DEV BlockLanes<Port, kThreads>& local() { return block_; }

    BLINK_DEV Share share(uint64_t value) {
        const Share own = block_.share(value);
        auto& sent = next_words(1);
        if (Port::thread() < blocks()) send(&sent[0][Port::rank()], Port::thread(), own.total);
        await_mail();
        const uint32_t blocks = Port::blocks(), rank = Port::rank();
        Share share{own.below, 0};
#pragma unroll
        for (uint32_t i = 0; i < kMostBlocks; ++i) {
            if (i == rank) share.below += share.total;
            if (i < blocks) share.total += sent[0][i];
        }
        return share;
    }

  private:
    friend class WarpGroups<Port, ClusterLanes>;

    template <class Operation, uint32_t kCount>
    BLINK_DEV void combine(uint64_t (&values)[kCount]) {
        auto& sent = next_words(kCount);
        block_.template combine_in_a_warp<Operation>(values, [&](uint32_t k, uint64_t value) {
            if (Port::thread() % 32 < blocks()) send(&sent[k][Port::rank()], Port::thread() % 32, value);
        });
        await_mail();
        const uint32_t blocks = Port::blocks();
#pragma unroll
        for (uint32_t k = 0; k < kCount; ++k) {
            values[k] = 0;
#pragma unroll
            for (uint32_t i = 0; i < kMostBlocks; ++i)
                if (i < blocks) values[k] = Operation::of(values[k], sent[k][i]);
        }
    }

    using Words = uint64_t[kMostSums][kMostBlocks];

    // Which of the two holds what is sent next, `count` words of each block. No block sends anew to
    // one before all have read it: each waits for all in between.
    BLINK_DEV Words& next_words(uint32_t count) {
        exchanges_ += 1;
        if (Port::thread() == 0) Port::expect(mailbox(), count * blocks() * static_cast<uint32_t>(sizeof(uint64_t)));
        return shared_.blocks[exchanges_ % 2];
    }

    BLINK_DEV void send(uint64_t* to, uint32_t rank, uint64_t value) { Port::send(to, mailbox(), rank, value); }

    // Until all blocks have sent: a barrier, too, that orders no accesses to the device's memory.
    BLINK_DEV void await_mail() { Port::await_mailbox(mailbox(), (exchanges_ - 1) / 2 % 2); }

    BLINK_DEV uint64_t* mailbox() { return &shared_.mailboxes[exchanges_ % 2]; }

    Shared& shared_;
    BlockLanes<Port, kThreads> block_;
    uint32_t exchanges_ = 0;
};

}  // namespace blink
