// The port of sampler_lanes.h on a host: threads of a row's blocks as fibers, in an order that a seed
// decides. Ends the program where a GPU would hang or would not forgive.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "blink/fibers.h"
#include "blink/sampler_lanes.h"

namespace blink {

class FiberPort {
  public:
    static constexpr uint32_t kThreads = 320;  // a warp for each of the sums that are made at once
    static constexpr uint32_t kWarps = kThreads / 32;

    static uint32_t thread() { return self_->thread; }
    static void sync() { meet(*block().barrier); }
    static void sync_warp() { meet(*block().warps[thread() / 32]); }

    static uint64_t warp_sum(uint64_t value) { return warp_share(value).total; }
    static uint64_t warp_max(uint64_t value) {
        uint64_t most = 0;
        const uint64_t* each = exchange(value);
        for (uint32_t i = 0; i < 32; ++i) most = each[i] > most ? each[i] : most;
        return most;
    }
    static Share warp_share(uint64_t value) {
        Share share{0, 0};
        const uint64_t* each = exchange(value);
        for (uint32_t i = 0; i < 32; ++i) {
            if (i == thread() % 32) share.below = share.total;
            share.total += each[i];
        }
        return share;
    }
    static uint64_t warp_value(uint64_t value, uint32_t lane) { return exchange(value)[lane % 32]; }
    static bool warp_any(bool value) { return warp_max(value) != 0; }

    static uint32_t rank() { return self_->rank; }
    static uint32_t blocks() { return static_cast<uint32_t>(row_->blocks.size()); }
    static void enter() {
        insist(!self_->entered && blocks() > 1, "enters twice, or a cluster that is none");
        self_->entered = true;
    }
    static void await_others() {
        insist(self_->entered, "waits for a barrier that it has not entered");
        meet(*row_->barrier);
        self_->entered = false;
        self_->begun = true;
    }
    static void sync_cluster() {
        enter();
        await_others();
    }

    static void open_mailbox(uint64_t* mailbox) {
        block().mailboxes.emplace(offset(mailbox), Mailbox{.told = Fibers::Event(*row_->fibers)});
    }
    static void expect(uint64_t* mailbox, uint32_t bytes) {
        Mailbox& box = block().mailboxes.at(offset(mailbox));
        insist(!box.expecting, "expects before what it expected has come");
        box.expecting = true;
        box.missing += bytes;
        close_if_full(box);
    }
    static void send(uint64_t* to, uint64_t* mailbox, uint32_t rank, uint64_t value) {
        insist(self_->begun, "sends to a block that may not have begun");
        Block& other = row_->blocks.at(rank);
        other.shared.at(offset(to)) = value;
        Mailbox& box = other.mailboxes.at(offset(mailbox));
        box.missing -= sizeof value;
        close_if_full(box);
    }
    static void await_mailbox(uint64_t* mailbox, uint32_t parity) {
        Mailbox& box = block().mailboxes.at(offset(mailbox));
        for (Thread* const own = self_; box.filled % 2 == parity; self_ = own) box.told.wait();
    }

    template <class Value>
    static void add(Value* word, Value value) {
        *word += value;
    }
    static void set_bits(uint32_t* word, uint32_t bits) { *word |= bits; }
    static uint32_t take(uint32_t* word) { return std::exchange(*word, 0u); }

    // `work(lanes)` by every thread of a cluster of so many blocks; 1 for a block without one.
    template <class Work>
    static void run(uint32_t blocks, uint32_t seed, Work work) {
        using Alone = BlockLanes<FiberPort, kThreads>;
        using Clustered = ClusterLanes<FiberPort, kThreads>;
        Fibers fibers(seed);
        Row row{&fibers, std::make_unique<Fibers::Barrier>(fibers, blocks * kThreads), {}};
        row.blocks.resize(blocks);
        for (Block& block : row.blocks) {
            block.barrier = std::make_unique<Fibers::Barrier>(fibers, kThreads);
            for (uint32_t i = 0; i < kWarps; ++i) block.warps.push_back(std::make_unique<Fibers::Barrier>(fibers, 32));
            block.shared.assign(sizeof(Clustered::Shared) / sizeof(uint64_t), ~uint64_t{0});
        }
        row_ = &row;
        std::vector<Thread> threads(blocks * kThreads);
        fibers.run(blocks * kThreads, [&](uint32_t number) {
            self_ = &threads[number];
            *self_ = {number % kThreads, number / kThreads};
            void* const shared = block().shared.data();
            if (blocks == 1) {
                Alone lanes(*static_cast<Alone::Shared*>(shared));
                work(lanes);
                return;
            }
            Clustered lanes(*static_cast<Clustered::Shared*>(shared));
            lanes.await_others();
            work(lanes);
        });
    }

  private:
    struct Mailbox {
        Fibers::Event told;
        bool expecting = false;
        int64_t missing = 0;  // what has come may be counted before it is expected
        uint32_t filled = 0;  // times
    };

    struct Block {
        std::unique_ptr<Fibers::Barrier> barrier;
        std::vector<std::unique_ptr<Fibers::Barrier>> warps;
        std::vector<uint64_t> shared;
        std::map<size_t, Mailbox> mailboxes;  // by their places
        uint64_t exchanged[2][kThreads];
    };

    struct Row {
        Fibers* fibers;
        std::unique_ptr<Fibers::Barrier> barrier;
        std::vector<Block> blocks;
    };

    struct Thread {
        uint32_t thread = 0, rank = 0;
        uint32_t parity = 0;
        bool entered = false, begun = false;
    };

    static void insist(bool holds, const char* otherwise) {
        if (holds) return;
        std::printf("a thread %s\n", otherwise);
        std::exit(1);
    }

    static Block& block() { return row_->blocks[self_->rank]; }
    static size_t offset(const uint64_t* place) { return place - block().shared.data(); }

    static void meet(Fibers::Barrier& barrier) {
        Thread* const own = self_;
        barrier.arrive_and_wait();
        self_ = own;
    }

    // Of the warp's lanes; those of two successive calls lie apart, so that one barrier is enough.
    static uint64_t* exchange(uint64_t value) {
        uint64_t* all = block().exchanged[self_->parity ^= 1];
        all[thread()] = value;
        sync_warp();
        return all + thread() / 32 * 32;
    }

    static void close_if_full(Mailbox& box) {
        if (!box.expecting || box.missing != 0) return;
        box.expecting = false;
        box.filled += 1;
        box.told.tell();
    }

    static inline Row* row_ = nullptr;
    static inline Thread* self_ = nullptr;
};

}  // namespace blink
