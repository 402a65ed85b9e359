// A scheduler's trace, for the native module.
#pragma once

#include <tuple>
#include <vector>

#include "blink/scheduler_state.h"

namespace blink {

// (kind, a, b, c) of the events since the last call.
inline std::vector<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>> drain_trace(SchedulerState& state) {
    std::vector<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>> events;
    for (uint32_t i = 0; i < state.trace_count; ++i)
        events.emplace_back(static_cast<uint32_t>(state.trace[i].kind), state.trace[i].a, state.trace[i].b,
                            state.trace[i].c);
    state.trace_count = 0;
    return events;
}

}  // namespace blink
