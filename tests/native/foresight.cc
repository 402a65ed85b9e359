// What the scheduler foresees while a graph runs: when it is due, and what is launched next.
#include "scripted_ring.h"

namespace {

using namespace blink;

constexpr uint64_t kPassNs = 1000, kPrefillNs = 90'000, kDecodeNs = 300'000;

// A port whose clock goes by passes, and which notes what it is told to expect.
class NotingPort : public HostPort {
  public:
    explicit NotingPort(LaunchMailbox& mailbox) : HostPort(mailbox, {}) {}

    uint64_t now_ns() const { return clock; }
    void rest(uint64_t due_ns) { due.push_back(due_ns); }
    void expect(uint32_t graph) { expected = graph; }
    uint32_t load(const uint16_t* word) {
        lookups += 1;
        return HostPort::load(word);
    }

    uint64_t clock = 1'000'000;
    std::vector<uint64_t> due;  // as asked for in the running step
    std::optional<uint32_t> expected;
    uint32_t lookups = 0;
};

// Polls as a GPU's does.
class PollingPort : public NotingPort {
  public:
    using NotingPort::NotingPort;
    static constexpr bool kPollsAhead = true;
};

// Five rows at most: graph 0 holds all of them, graph 1 prefills, graph 2 holds two rows.
constexpr uint32_t kLarge = 0, kSmall = 2;

template <class Port = NotingPort>
class Steps {
  public:
    Steps() : ring_(1) {
        make_tables(tables_, Rows::kMovable);
        tables_.graphs.push_back({Phase::kDecode, 2, 2});
        tables_.finish();
        memory_ = std::make_unique<StateMemory>(ring_.view.slot_count, tables_.tables);
        engine_ = std::make_unique<ScriptedEngine>(tables_.tables, ScriptedRule{101, 2, 0});
        port_ = std::make_unique<Port>(mailbox_);
        scheduler_ = std::make_unique<Scheduler<Port>>(*port_, ring_.view, tables_.tables, *memory_->state, &control_);
        ring_.submit(0, 1, {5, 6, 7}, 50);
    }

    // Passes until a graph is launched; which.
    uint32_t launched() {
        for (;;) {
            const Outcome outcome = pass();
            const bool sees_end = Port::kPollsAhead && outcome == Outcome::kBusy;
            CHECK(outcome == Outcome::kProgress || sees_end, "outcome %u", static_cast<unsigned>(outcome));
            if (const std::optional<uint32_t> graph = mailbox_.take(0)) return *graph;
        }
    }

    // The graph runs and ends, seen by passes; the scheduler has not looked again.
    void run(uint32_t graph) {
        const GraphKey& key = tables_.graphs[graph];
        const uint64_t end = port_->clock + (key.phase == Phase::kPrefill ? kPrefillNs : kDecodeNs);
        port_->due.clear();
        while (port_->clock < end) CHECK(pass() == Outcome::kBusy, "it has ended too early");
        engine_->step(key);
        uint32_t* const completion = tables_.tables.buffers[static_cast<uint32_t>(key.phase)].completion;
        HostPort::store_release(completion, *completion + 1);
    }

    Outcome pass() {
        port_->clock += kPassNs;
        return scheduler_->pass();
    }

    Port& port() { return *port_; }
    const SchedulerState& state() const { return *memory_->state; }
    void ask(Command command) { control_.command = static_cast<uint32_t>(command); }
    void offer_the_small_graph() { tables_.decode_lookup[0] = tables_.decode_lookup[1] = kSmall; }

  private:
    ScriptedRing ring_;
    HostEngine tables_;
    LaunchMailbox mailbox_;
    ControlWords control_{};
    std::unique_ptr<StateMemory> memory_;
    std::unique_ptr<ScriptedEngine> engine_;
    std::unique_ptr<Port> port_;
    std::unique_ptr<Scheduler<Port>> scheduler_;
};

// A graph is due when it has taken as long as the last time, so almost all passes of a long one may rest.
void check_rests() {
    Steps<> steps;
    steps.run(steps.launched());
    steps.run(steps.launched());
    for (uint64_t due : steps.port().due) CHECK(due <= steps.state().flight.started_ns, "due without a precedent");
    for (uint32_t step = 0; step < 5; ++step) {
        const uint32_t graph = steps.launched();
        CHECK(graph == kLarge, "graph %u", graph);
        const uint64_t begun = steps.port().clock;
        steps.run(graph);
        CHECK(steps.port().due.size() == kDecodeNs / kPassNs, "%zu passes may rest", steps.port().due.size());
        for (uint64_t due : steps.port().due)
            CHECK(due >= begun + kDecodeNs && due <= begun + kDecodeNs + 2 * kPassNs, "due after %lu ns", due - begun);
    }
}

// A graph that was seen to have ended is not rested beside, however long it is until it is due.
void check_early_end() {
    Steps<PollingPort> steps;
    for (uint32_t step = 0; step < 3; ++step) {
        steps.run(steps.launched());
        const size_t rests = steps.port().due.size();
        CHECK(rests > 0, "it never rests");
        CHECK(steps.pass() == Outcome::kBusy, "it does not poll beside the scan");
        CHECK(steps.port().due.size() == rests, "it rests beside a graph that has ended");
    }
}

// The next decode step's graph is looked up while the one before it runs, never between two.
void check_expected_graph() {
    Steps<> steps;
    for (uint32_t step = 0; step < 3; ++step) steps.run(steps.launched());
    CHECK(steps.port().expected == kLarge, "it expects nothing");
    const uint32_t lookups = steps.port().lookups;
    CHECK(steps.launched() == kLarge && steps.port().lookups == lookups, "it looks up what it expected");
    steps.offer_the_small_graph();
    steps.run(kLarge);
    CHECK(steps.port().lookups == lookups + 1 && steps.port().expected == kSmall, "it looks up once a step");
    CHECK(steps.launched() == kSmall, "it launches what it does not expect");
}

// What a parked scheduler expected is void: the host may have taken that graph back.
void check_park() {
    Steps<> steps;
    for (uint32_t step = 0; step < 3; ++step) steps.run(steps.launched());
    const uint32_t last = steps.launched();
    steps.ask(Command::kPark);
    steps.run(last);
    CHECK(steps.port().expected == kLarge, "it expects nothing");
    CHECK(steps.pass() == Outcome::kPark, "it does not park");
    steps.offer_the_small_graph();
    steps.ask(Command::kRun);
    const uint32_t graph = steps.launched();
    CHECK(graph == kSmall, "graph %u after a park", graph);
}

}  // namespace

int main() {
    check_rests();
    check_early_end();
    check_expected_graph();
    check_park();
    std::puts("right");
}
