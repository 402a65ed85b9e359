// The scheduler's lanes as threads: what a thread block does on a GPU, under ThreadSanitizer.
//
// One script of submits, cancels and releases is played to a scheduler of one lane and to one of
// several. Both must do the same, event for event, and no two lanes may race.
//
//   lanes fixed|movable|mixed
#include <pthread.h>

#include "scripted_ring.h"

namespace {

using namespace blink;

constexpr uint32_t kRanges = 2, kSlots = 24, kPasses = 600;
constexpr uint32_t kBoundary[] = {0, 255, 256, 511};  // where scans begin and end

// What the lanes of one thread block share. The barrier sleeps, so that few cores are enough.
struct Block {
    explicit Block(uint32_t lanes) : values(lanes) { pthread_barrier_init(&barrier, nullptr, lanes); }
    ~Block() { pthread_barrier_destroy(&barrier); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    pthread_barrier_t barrier;
    std::vector<uint32_t> values;
};

class LanesPort : public HostPort {
  public:
    LanesPort(LaunchMailbox& mailbox, Block& block, uint32_t lane)
        : HostPort(mailbox, {}), block_(block), lane_(lane) {}

    uint32_t lane() const { return lane_; }
    uint32_t row_lane() const { return lanes() - 1 - lane_; }  // any order of the lanes
    uint32_t lanes() const { return static_cast<uint32_t>(block_.values.size()); }
    void sync() { pthread_barrier_wait(&block_.barrier); }
    bool any(bool value) { return sum(value) != 0; }
    uint32_t sum(uint32_t value) { return gather(value, lanes()); }
    uint32_t scan(uint32_t value) { return gather(value, lane_); }
    static uint32_t scan_share(uint32_t) { return 128; }
    static uint64_t now_ns() { return 1; }

  private:
    // The sum of the first `count` lanes' values.
    uint32_t gather(uint32_t value, uint32_t count) {
        block_.values[lane_] = value;
        sync();
        uint32_t total = 0;
        for (uint32_t i = 0; i < count; ++i) total += block_.values[i];
        sync();
        return total;
    }

    Block& block_;
    uint32_t lane_;
};

// All frontends and the engine, in an order that depends on the seed alone.
class Script {
  public:
    Script(ScriptedRing& ring, const HostEngine& tables)
        : ring_(ring), tables_(tables), engine_(tables.tables, kRule), asked_(kSlots) {}

    // Between two passes: what every slot's owner wants, then perhaps the end of the running step.
    void play(LaunchMailbox& mailbox, bool submits) {
        for (uint32_t place = 0; place < kSlots; ++place) {
            Asked& asked = asked_[place];
            if (!asked.busy && submits && random_() % 8 == 0) submit(place);
            if (asked.busy) follow(place);
        }
        if (!flight_) flight_ = mailbox.take(0);
        if (flight_ && random_() % 3 != 0) finish_part();
    }

    bool busy() const {
        return std::any_of(asked_.begin(), asked_.end(), [](const Asked& asked) { return asked.busy; });
    }

  private:
    struct Asked {
        std::vector<int32_t> answer;
        uint32_t ticket = 0;
        bool busy = false;
        bool valid = true;
        bool cancelled = false;
    };

    static uint32_t slot(uint32_t place) { return place < 4 ? kBoundary[place] : place * 21; }

    void submit(uint32_t place) {
        Asked& asked = asked_[place];
        std::vector<int32_t> prompt = random_prompt(random_);
        const uint32_t max_tokens = 1 + random_() % 25;
        asked = {scripted_answer(prompt, max_tokens), asked.ticket + 1, true, random_() % 16 != 0, false};
        if (!asked.valid) prompt.back() = -1;
        ring_.submit(slot(place), asked.ticket, prompt, max_tokens);
    }

    void follow(uint32_t place) {
        Asked& asked = asked_[place];
        FrontendWords& words = ring_.view.words[slot(place)];
        if (random_() % 256 == 0) {
            words.cancel = asked.ticket;
            asked.cancelled = true;
        }
        const std::optional<StatusWord> status = ring_.accepted(slot(place), asked.ticket);
        if (!status) return;
        if (status->state == SlotState::kEmpty) {
            asked.busy = false;
        } else if (status->state == SlotState::kDecodeCompleted) {
            check(place, *status);
            words.release = asked.ticket;
        }
    }

    void check(uint32_t place, const StatusWord& status) const {
        const Asked& asked = asked_[place];
        CHECK(std::equal(ring_.output(slot(place)), ring_.output(slot(place)) + status.generated, asked.answer.begin()),
              "slot %u: wrong tokens", slot(place));
        const bool cancelled = asked.cancelled && status.reason == Reason::kCancelled;
        const bool refused = !asked.valid && status.reason == Reason::kInvalidRecord && status.generated == 0;
        CHECK(cancelled || refused || (asked.valid && status.generated == asked.answer.size()), "slot %u: ended for %u",
              slot(place), static_cast<unsigned>(status.reason));
    }

    // Ends the running step, or one part of a mixed one, which may end in either order.
    void finish_part() {
        const GraphKey& key = tables_.graphs[*flight_];
        const uint32_t first = first_part(key.phase), parts = end_part(key.phase) - first;
        if (ended_ == 0) swapped_ = parts == 2 && random_() % 2 == 0;
        const uint32_t part = first + (swapped_ ? 1 - ended_ : ended_);
        engine_.step(part_of(key, static_cast<Phase>(part)));
        uint32_t* const completion = tables_.tables.buffers[part].completion;
        HostPort::store_release(completion, *completion + 1);
        if (++ended_ < parts) return;
        flight_.reset();
        ended_ = 0;
    }

    ScriptedRing& ring_;
    const HostEngine& tables_;
    ScriptedEngine engine_;
    std::mt19937 random_{7};
    std::vector<Asked> asked_;
    std::optional<uint32_t> flight_;
    uint32_t ended_ = 0;  // parts of it
    bool swapped_ = false;
};

std::vector<TraceEvent> trace_of(uint32_t lanes, Rows rows) {
    ScriptedRing ring(kRanges);
    HostEngine tables;
    make_tables(tables, rows);
    StateMemory memory(ring.view.slot_count, tables.tables);
    SchedulerState* const state = memory.state;
    Script script(ring, tables);
    LaunchMailbox mailbox;
    Block block(lanes);
    const ControlWords control{};
    std::vector<Outcome> outcomes(lanes);
    bool over = false;
    const auto run_lane = [&](uint32_t lane) {
        LanesPort port(mailbox, block, lane);
        Scheduler<LanesPort> scheduler(port, ring.view, tables.tables, *state, &control);
        for (uint32_t pass = 0; !over; ++pass) {
            outcomes[lane] = scheduler.pass();
            port.sync();
            if (lane == 0) {
                for (const Outcome outcome : outcomes) CHECK(outcome == outcomes[0], "lanes disagree in pass %u", pass);
                script.play(mailbox, pass < kPasses);
                over = pass >= kPasses && !script.busy();
                CHECK(pass < 4 * kPasses, "requests never end");
            }
            port.sync();
        }
    };
    std::vector<std::thread> threads;
    for (uint32_t lane = 1; lane < lanes; ++lane) threads.emplace_back(run_lane, lane);
    run_lane(0);
    for (std::thread& thread : threads) thread.join();
    CHECK(state->rows_used == 0 && state->waiting_count == 0, "something is left");
    CHECK(rows == Rows::kFixed || state->free_count == tables.tables.block_count - 1, "blocks are lost");
    return {state->trace, state->trace + state->trace_count};
}

}  // namespace

int main(int argc, char** argv) {
    const std::optional<Rows> rows = rows_asked(argc, argv);
    if (!rows) return 2;
    const std::vector<TraceEvent> expected = trace_of(1, *rows);
    for (const uint32_t lanes : {2u, 5u}) {
        const std::vector<TraceEvent> trace = trace_of(lanes, *rows);
        const auto [one, other] = std::mismatch(expected.begin(), expected.end(), trace.begin(), trace.end(),
                                                [](const TraceEvent& x, const TraceEvent& y) {
                                                    return x.kind == y.kind && x.a == y.a && x.b == y.b && x.c == y.c;
                                                });
        CHECK(one == expected.end() && other == trace.end(), "%u lanes: another event at %td", lanes,
              one - expected.begin());
    }
    size_t kinds[9] = {}, mixed = 0;
    for (const TraceEvent& event : expected) {
        kinds[static_cast<size_t>(event.kind)] += 1;
        mixed += event.kind == TraceKind::kLaunch && event.a == kMixedGraph;
    }
    std::printf("%zu claims, %zu launches, %zu of them mixed, %zu preemptions, %zu moves\n", kinds[1], kinds[3], mixed,
                kinds[5], kinds[6]);
    CHECK((mixed > 0) == (rows == Rows::kMixed), "%zu mixed steps", mixed);
    CHECK(kinds[1] > 100 && (rows == Rows::kFixed || (kinds[5] > 0 && kinds[6] > 0)), "the script is too tame");
}
