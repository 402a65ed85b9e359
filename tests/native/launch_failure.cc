// Launches that are refused for a while, then for good: what only a GPU's launch can do.
#include "scripted_ring.h"

namespace {

using namespace blink;

// Refuses each launch `retries` times, and every launch after the first `launches` for good.
class RefusingPort : public HostPort {
  public:
    RefusingPort(LaunchMailbox& mailbox, uint32_t retries, uint32_t launches)
        : HostPort(mailbox, {}), retries_(retries), launches_(launches) {}

    LaunchResult launch(uint32_t graph) {
        if (launches_ == 0) return LaunchResult::kFailed;
        if (refused_++ < retries_) return LaunchResult::kRetry;
        refused_ = 0;
        launches_ -= 1;
        return HostPort::launch(graph);
    }

  private:
    uint32_t retries_, launches_, refused_ = 0;
};

void check_status(ScriptedRing& ring, uint32_t slot, SlotState state, Reason reason, uint32_t generated) {
    const std::optional<StatusWord> status = ring.accepted(slot, 1);
    CHECK(status, "slot %u was not claimed", slot);
    CHECK(status->state == state && status->reason == reason && status->generated == generated,
          "slot %u: state %u, reason %u, %u tokens", slot, static_cast<unsigned>(status->state),
          static_cast<unsigned>(status->reason), status->generated);
}

}  // namespace

int main() {
    constexpr uint32_t kRetries = 3, kLaunches = 4;
    ScriptedRing ring(1);
    HostEngine tables;
    make_tables(tables, Rows::kMovable);
    ScriptedEngine engine(tables.tables, ScriptedRule{101, 2, 0});
    StateMemory memory(ring.view.slot_count, tables.tables);
    LaunchMailbox mailbox;
    RefusingPort port(mailbox, kRetries, kLaunches);
    const ControlWords control{};
    Scheduler<RefusingPort> scheduler(port, ring.view, tables.tables, *memory.state, &control);

    ring.submit(0, 1, {5, 6, 7}, 50);
    ring.submit(1, 1, {8, 9}, 50);
    Outcome outcome = Outcome::kProgress;
    while (outcome == Outcome::kProgress) {
        outcome = scheduler.pass();
        if (const std::optional<uint32_t> graph = mailbox.take(0)) {
            engine.step(tables.graphs[*graph]);
            const PhaseBuffers& step = tables.tables.buffers[static_cast<uint32_t>(tables.graphs[*graph].phase)];
            HostPort::store_release(step.completion, *step.completion + 1);
        }
    }
    CHECK(outcome == Outcome::kFailed, "outcome %u", static_cast<unsigned>(outcome));
    for (const uint32_t slot : {0u, 1u}) {  // what was published stays
        check_status(ring, slot, SlotState::kDecodeCompleted, Reason::kEngineError, kLaunches);
        ring.view.words[slot].release = 1;
    }
    const SchedulerState& s = *memory.state;
    CHECK(s.rows_used == 0 && s.decoding_count == 0, "rows are kept");
    CHECK(s.free_count == tables.tables.block_count - 1, "blocks are kept");
    CHECK(ring.view.header->launch_retries == kRetries * kLaunches, "%lu retries", ring.view.header->launch_retries);
    CHECK(scheduler.pass() == Outcome::kFailed && scheduler.pass() == Outcome::kFailed, "it goes on");
    check_status(ring, 0, SlotState::kEmpty, Reason::kNone, 0);  // releases are obeyed still
    ring.submit(2, 1, {5}, 5);
    CHECK(scheduler.pass() == Outcome::kFailed && !mailbox.take(0), "it launches again");
}
