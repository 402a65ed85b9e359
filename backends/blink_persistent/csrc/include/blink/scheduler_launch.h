// Launching the graph of a step, and renewing the launch window. Part of scheduler.h.
#pragma once

#include "scheduler.h"

namespace blink {

template <class Port>
BLINK_DEV void Scheduler<Port>::launch(Flight next) {
    port.sync();  // every lane's inputs are written
    if (leader()) {
        const bool decode_alone = next.phase == Phase::kDecode;
        for (uint32_t part = 0; part < kPhases; ++part) s.launches[part] += uses(next.phase, static_cast<Phase>(part));
        port.release();
        port.stamp(Moment::kFilled);
        LaunchResult result = port.launch(next.graph);
        for (uint32_t tries = 1; result == LaunchResult::kRetry && tries < kMaxLaunchRetries; ++tries) {
            s.counters.launch_retries += 1;
            result = port.launch(next.graph);
        }
        port.stamp(Moment::kLaunched);
        next.started_ns = port.now_ns();
        next.due_ns = next.started_ns + s.graph_ns[next.graph];
        s.flight = next;
        s.prefilled_last = next.phase == Phase::kPrefill;
        s.window_launches += 1;
        count_launch(next);
        trace(TraceKind::kLaunch, next.graph, decode_alone ? next.rows : s.plan_count,
              decode_alone ? s.decoding_count : s.plan_tokens);
        if (result != LaunchResult::kLaunched) {
            s.failed = 1;
            s.flight.active = false;
            s.row_ended = true;
            for (uint32_t row = 0; row < s.row_limit; ++row)
                if (s.row_slots[row] != kNoSlot) request(s.row_slots[row]).ending = Reason::kEngineError;
        }
    }
    port.sync();
}

template <class Port>
BLINK_DEV void Scheduler<Port>::count_launch(const Flight& launched) {
    switch (launched.phase) {
        case Phase::kDecode: s.counters.decode_launches += 1; break;
        case Phase::kPrefill: s.counters.prefill_launches += 1; break;
        case Phase::kMixed: s.counters.mixed_launches += 1; break;
    }
    if (uses(launched.phase, Phase::kPrefill)) s.counters.prompt_tokens += s.plan_tokens;
    if (s.landed_ns != 0) {
        s.counters.gaps += 1;
        s.counters.gap_ns += launched.started_ns - s.landed_ns;
    }
    const uint32_t shown = launched.graph < kShownGraphs ? launched.graph : kShownGraphs - 1;
    uint32_t* count = &ring.header->graph_launches[shown];
    port.store(count, *count + 1);  // nobody else writes it
}

// All state is in memory that survives: the next instance begins a fresh window.
template <class Port>
BLINK_DEV Outcome Scheduler<Port>::relaunch() {
    if (leader()) {
        trace(TraceKind::kRelaunch);
        s.window_launches = 0;
        s.counters.tail_launches += 1;
    }
    port.sync();
    return Outcome::kRelaunch;
}

}  // namespace blink
