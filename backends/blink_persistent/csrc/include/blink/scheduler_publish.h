// Showing frontends and the host what was done: statuses, bells, the header. Part of scheduler.h.
#pragma once

#include "scheduler.h"

namespace blink {

template <class Port>
BLINK_DEV void Scheduler<Port>::publish(uint32_t slot, SlotState state, Reason reason) {
    Request& r = request(slot);
    r.state = state;
    r.fresh = false;
    const uint32_t generated = state == SlotState::kEmpty ? 0 : r.generated;
    port.store_release(&ring.status[slot].word, pack_status(generated, state, reason, r.ticket));
}

// Shows a request on a row anew, once the next graph is launched: a release costs a microsecond.
template <class Port>
BLINK_DEV void Scheduler<Port>::publish_later(Request& r, SlotState state) {
    r.state = state;
    r.fresh = true;
}

template <class Port>
BLINK_DEV void Scheduler<Port>::publish_fresh() {
    for (uint32_t row = port.row_lane(); row < s.row_limit; row += port.lanes()) {
        const uint32_t slot = s.row_slots[row];
        if (slot == kNoSlot || !request(slot).fresh) continue;
        publish(slot, request(slot).state);
        port.store(&s.dirty[request(slot).range], true);
    }
    port.sync();
}

template <class Port>
BLINK_DEV void Scheduler<Port>::complete(uint32_t slot, Reason reason) {
    port.store(&ring.timings[slot].finished_ns, port.now_ns());
    publish(slot, SlotState::kDecodeCompleted, reason);
    port.store(&s.dirty[request(slot).range], true);
}

template <class Port>
BLINK_DEV void Scheduler<Port>::count_end(uint32_t slot, Reason reason) {
    Request& r = request(slot);
    r.ending = reason;
    s.completed_any = true;
    trace(TraceKind::kEnd, slot, r.ticket, static_cast<uint32_t>(reason));
    s.counters.completions += 1;
}

template <class Port>
BLINK_DEV Outcome Scheduler<Port>::finish_pass(Outcome outcome) {
    if (leader()) {
        if (outcome != Outcome::kBusy && outcome != Outcome::kProgress && outcome != Outcome::kRelaunch) {
            s.landed_ns = 0;
            s.expected_rows = 0;  // the host may change what is launched
        }
        if (outcome != Outcome::kBusy || s.event_count > 0) publish_header();
        if constexpr (Port::kNotifies) notify_owners();
    }
    port.sync();
    return outcome;
}

template <class Port>
BLINK_DEV void Scheduler<Port>::notify_owners() {
    for (uint32_t range = 0; range < ring.range_count; ++range) {
        if (!s.dirty[range]) continue;
        s.dirty[range] = false;
        port.notify(range);
    }
}

template <class Port>
BLINK_DEV void Scheduler<Port>::publish_header() {
    RingHeader& h = *ring.header;
    port.store(&h.waiting, s.waiting_count);
    port.store(&h.rows_used, s.rows_used);
    const bool paged = engine.rows_movable != 0;
    port.store(&h.blocks_used, paged ? engine.block_count - 1 - s.free_count : s.rows_used);
    port.store(&h.running_graph, s.flight.graph);
    port.store(&h.step_started_ns, s.flight.started_ns);
    port.store(&h.window_launches, s.window_launches);
    port.store(&h.steps, s.counters.steps);
    port.store(&h.decode_launches, s.counters.decode_launches);
    port.store(&h.prefill_launches, s.counters.prefill_launches);
    port.store(&h.mixed_launches, s.counters.mixed_launches);
    port.store(&h.tail_launches, s.counters.tail_launches);
    port.store(&h.launch_retries, s.counters.launch_retries);
    port.store(&h.claims, s.counters.claims);
    port.store(&h.completions, s.counters.completions);
    port.store(&h.preemptions, s.counters.preemptions);
    port.store(&h.row_moves, s.counters.row_moves);
    port.store(&h.prompt_tokens, s.counters.prompt_tokens);
    port.store(&h.generated_tokens, s.counters.generated_tokens);
    port.store(&h.gaps, s.counters.gaps);
    port.store(&h.gap_ns, s.counters.gap_ns);
}

}  // namespace blink
