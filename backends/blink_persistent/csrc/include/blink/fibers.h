// Threads of one block as fibers of one host thread, resumed in an order that a seed decides: for
// tests of what is written for a GPU's block. Nothing is concurrent, so nothing has to be atomic;
// what reads too early finds what was there before.
#pragma once

#include <ucontext.h>

#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "types.h"

namespace blink {

class Fibers {
  public:
    // Those that have arrived wait until as many as it is made for have.
    class Barrier {
      public:
        Barrier(Fibers& fibers, uint32_t count) : fibers_(fibers), count_(count) {}

        void arrive_and_wait() {
            if (waiting_.size() + 1 < count_) {
                waiting_.push_back(fibers_.current_);
                fibers_.leave();
                return;
            }
            fibers_.runnable_.insert(fibers_.runnable_.end(), waiting_.begin(), waiting_.end());
            waiting_.clear();
        }

      private:
        Fibers& fibers_;
        const uint32_t count_;
        std::vector<uint32_t> waiting_;
    };

    // Those that wait go on when it is next told.
    class Event {
      public:
        explicit Event(Fibers& fibers) : fibers_(fibers) {}

        void wait() {
            waiting_.push_back(fibers_.current_);
            fibers_.leave();
        }

        void tell() {
            fibers_.runnable_.insert(fibers_.runnable_.end(), waiting_.begin(), waiting_.end());
            waiting_.clear();
        }

      private:
        Fibers& fibers_;
        std::vector<uint32_t> waiting_;
    };

    explicit Fibers(uint32_t seed) : random_(seed) {}

    // Where all wait, `work` has to make something happen, or to say that nothing can.
    void when_all_wait(std::function<bool()> work) { when_all_wait_.push_back(std::move(work)); }

    // As the seed decides.
    uint32_t any() { return random_(); }

    // `work(thread)` by `count` fibers; returns when all are done. Throws where some wait for good.
    void run(uint32_t count, const std::function<void(uint32_t)>& work) {
        work_ = &work;
        fibers_.resize(count);
        for (uint32_t i = 0; i < count; ++i) start(i);
        uint32_t ended = 0;
        while (ended < count) {
            while (runnable_.empty())
                if (!any_when_all_wait()) throw std::runtime_error("fibers wait for what does not come");
            std::swap(runnable_[random_() % runnable_.size()], runnable_.back());
            current_ = runnable_.back();
            runnable_.pop_back();
            swapcontext(&main_, &fibers_[current_].context);
            ended += fibers_[current_].ended ? 1u : 0u;
        }
    }

  private:
    // Of those that have something to do, as the seed decides.
    bool any_when_all_wait() {
        const size_t count = when_all_wait_.size(), first = count > 0 ? random_() % count : 0;
        for (size_t i = 0; i < count; ++i)
            if (when_all_wait_[(first + i) % count]()) return true;
        return false;
    }

    static constexpr size_t kStackBytes = 64 * 1024;

    struct Fiber {
        ucontext_t context;
        std::unique_ptr<char[]> stack;
        bool ended = false;
    };

    void start(uint32_t number) {
        Fiber& fiber = fibers_[number];
        fiber.stack.reset(new char[kStackBytes]);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = &main_;
        const auto self = reinterpret_cast<uintptr_t>(this);
        makecontext(&fiber.context, reinterpret_cast<void (*)()>(enter), 3, static_cast<uint32_t>(self >> 32),
                    static_cast<uint32_t>(self), number);
        runnable_.push_back(number);
    }

    static void enter(uint32_t high, uint32_t low, uint32_t number) {
        auto* self = reinterpret_cast<Fibers*>(static_cast<uintptr_t>(high) << 32 | low);
        (*self->work_)(number);
        self->fibers_[number].ended = true;
    }

    void leave() {
        ucontext_t& own = fibers_[current_].context;
        swapcontext(&own, &main_);
    }

    std::mt19937 random_;
    std::vector<std::function<bool()>> when_all_wait_;
    const std::function<void(uint32_t)>* work_ = nullptr;
    ucontext_t main_;
    std::vector<Fiber> fibers_;
    std::vector<uint32_t> runnable_;
    uint32_t current_ = 0;
};

}  // namespace blink
