// Scheduler, engine and four frontends on threads of their own, for sanitizers: every answer is
// checked against the plain rule, frontends cancel, release early, die and are succeeded.
//
//   stress fixed|movable|mixed
#include "scripted_ring.h"

namespace {

using namespace blink;

constexpr uint32_t kFrontends = 4, kSlots = 5, kRequests = 120;
constexpr int kPatienceMs = 20000;

struct Asked {
    std::vector<int32_t> answer;
    uint32_t ticket = 0;
    uint32_t generated = 0;
    bool busy = false;
    bool cancelled = false;
};

class Frontend {
  public:
    Frontend(ScriptedRing& ring, uint32_t range, int doorbell, int bell)
        : ring_(ring), range_(range), doorbell_(doorbell), bell_(bell), random_(range + 1) {}

    void run() {
        for (uint32_t left = kRequests; left > 0 || busy_ > 0;) {
            for (uint32_t place = 0; place < kSlots; ++place) {
                if (asked_[place].busy)
                    follow(place);
                else if (left > 0)
                    submit(place), left -= 1;
            }
            if (left == kRequests / 2) die_and_be_succeeded();
            wait();
        }
    }

  private:
    uint32_t slot(uint32_t place) const { return range_ * kRangeGranule + place * 63; }

    void submit(uint32_t place) {
        Asked& asked = asked_[place];
        const std::vector<int32_t> prompt = random_prompt(random_);
        const uint32_t max_tokens = 1 + random_() % 30;
        asked = {scripted_answer(prompt, max_tokens), ticket_after(asked.ticket), 0, true, false};
        ring_.submit(slot(place), asked.ticket, prompt, max_tokens);
        busy_ += 1;
        if (random_() % 8 == 0) end(place);  // before it is claimed
        ring_bell(doorbell_);
    }

    // cancel = release = submit: what a frontend may write at any time, and a dead one's heir must.
    void end(uint32_t place) {
        asked_[place].cancelled = true;
        HostPort::store_release(&ring_.view.words[slot(place)].cancel, asked_[place].ticket);
        HostPort::store_release(&ring_.view.words[slot(place)].release, asked_[place].ticket);
        ring_bell(doorbell_);
    }

    void follow(uint32_t place) {
        Asked& asked = asked_[place];
        const std::optional<StatusWord> status = ring_.accepted(slot(place), asked.ticket);
        if (!status) {
            CHECK(asked.generated == 0, "slot %u lost its ticket", slot(place));
            return;
        }
        if (status->state == SlotState::kEmpty) {
            asked.busy = false;
            busy_ -= 1;
            return;
        }
        CHECK(status->generated >= asked.generated, "slot %u: generated fell", slot(place));
        CHECK(status->generated <= asked.answer.size(), "slot %u: too many tokens", slot(place));
        for (; asked.generated < status->generated; ++asked.generated)
            CHECK(ring_.output(slot(place))[asked.generated] == asked.answer[asked.generated], "slot %u: token %u",
                  slot(place), asked.generated);
        if (status->state == SlotState::kDecodeCompleted)
            complete(place, *status);
        else if (random_() % 64 == 0)
            end(place);
    }

    void complete(uint32_t place, const StatusWord& status) {
        const Asked& asked = asked_[place];
        const bool whole = status.generated == asked.answer.size();
        CHECK(whole || (asked.cancelled && status.reason == Reason::kCancelled),
              "slot %u: ended with %u of %zu, reason %u", slot(place), status.generated, asked.answer.size(),
              static_cast<unsigned>(status.reason));
        if (random_() % 4 == 0) HostPort::store_release(&ring_.view.words[slot(place)].cancel, asked.ticket);  // late
        HostPort::store_release(&ring_.view.words[slot(place)].release, asked.ticket);
        ring_bell(doorbell_);
    }

    // Tickets go on from `submit`, once every slot is {submit, EMPTY}.
    void die_and_be_succeeded() {
        for (uint32_t place = 0; place < kSlots; ++place)
            if (asked_[place].busy) end(place);
        while (busy_ > 0) {
            for (uint32_t place = 0; place < kSlots; ++place)
                if (asked_[place].busy) follow(place);
            if (busy_ > 0) wait();
        }
        for (uint32_t place = 0; place < kSlots; ++place)
            asked_[place].ticket = HostPort::load_acquire(&ring_.view.words[slot(place)].submit);
    }

    void wait() {
        if (busy_ > 0) CHECK(wait_for_bell(bell_, kPatienceMs), "frontend %u waits in vain", range_);
    }

    ScriptedRing& ring_;
    uint32_t range_;
    int doorbell_, bell_;
    std::mt19937 random_;
    Asked asked_[kSlots];
    uint32_t busy_ = 0;
};

void serve_launches(HostScheduler& scheduler, ScriptedEngine& engine, const HostEngine& tables) {
    while (scheduler.condition() != SchedulerCondition::kStopped) {
        const std::optional<uint32_t> graph = scheduler.next_launch(1000);
        if (!graph) continue;
        engine.step(tables.graphs[*graph]);
        scheduler.complete(tables.graphs[*graph].phase, 0);
    }
}

// Parks and resumes after every few steps.
void park_now_and_then(HostScheduler& scheduler, RingHeader& header, const std::atomic<bool>& done) {
    const auto steps = [&header] { return std::atomic_ref(header.steps).load(std::memory_order_relaxed); };
    for (uint64_t next = 0; !done; next = steps() + 8) {
        while (!done && steps() < next) std::this_thread::yield();
        scheduler.command(Command::kPark);
        while (scheduler.condition() != SchedulerCondition::kParked) std::this_thread::yield();
        scheduler.command(Command::kRun);
        while (scheduler.condition() != SchedulerCondition::kRunning) std::this_thread::yield();
    }
}

void run(Rows rows) {
    ScriptedRing ring(kFrontends);
    HostEngine tables;
    make_tables(tables, rows);
    ScriptedEngine engine(tables.tables, kRule);
    const int doorbell = eventfd(0, EFD_NONBLOCK);
    std::vector<int> bells;
    for (uint32_t range = 0; range < kFrontends; ++range) bells.push_back(eventfd(0, EFD_NONBLOCK));
    HostScheduler scheduler(ring.memory(), tables.tables, {doorbell, bells}, 0);
    std::thread engine_thread([&] { serve_launches(scheduler, engine, tables); });
    scheduler.start();
    std::atomic<bool> done{false};
    std::thread operator_thread([&] { park_now_and_then(scheduler, *ring.view.header, done); });
    std::vector<std::thread> frontends;
    for (uint32_t range = 0; range < kFrontends; ++range)
        frontends.emplace_back([&, range] { Frontend(ring, range, doorbell, bells[range]).run(); });
    for (std::thread& frontend : frontends) frontend.join();
    done = true;
    operator_thread.join();
    scheduler.close();
    scheduler.stop();
    engine_thread.join();
    const RingHeader& header = *ring.view.header;
    CHECK(header.claims == kFrontends * kRequests && header.claims == header.completions, "%lu claims, %lu completions",
          header.claims, header.completions);
    CHECK(header.rows_used == 0 && header.blocks_used == 0 && header.waiting == 0, "something is left");
    CHECK((header.mixed_launches > 0) == (rows == Rows::kMixed), "%lu mixed steps", header.mixed_launches);
    CHECK(header.steps == header.decode_launches + header.prefill_launches + header.mixed_launches, "steps are lost");
    std::printf("%lu steps, %lu mixed, %lu preemptions, %lu moves, %lu parks\n", header.steps, header.mixed_launches,
                header.preemptions, header.row_moves, header.parks);
    close(doorbell);
    for (const int bell : bells) close(bell);
}

}  // namespace

int main(int argc, char** argv) {
    const std::optional<Rows> rows = rows_asked(argc, argv);
    if (!rows) return 2;
    run(*rows);
}
