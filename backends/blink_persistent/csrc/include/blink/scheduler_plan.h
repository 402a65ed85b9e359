// Choosing whose tokens the next step computes: admission, packing, chunks. Part of scheduler.h.
#pragma once

#include "scheduler.h"

namespace blink {

// May a prefill start? Conditions (i) and (ii) of the paper: one waits, and a row and the blocks
// it needs are free. Each row in use keeps a claim to one more block, so that an admission does
// not cause a preemption at once.
template <class Port>
BLINK_DEV bool Scheduler<Port>::prefill_waits() const {
    if (s.partial != kNoSlot) return true;
    const uint32_t slot = first_waiting();
    if (slot == kNoSlot || s.rows_used == engine.max_rows) return false;
    return engine.rows_movable == 0 || blocks_for(request(slot), engine) + s.rows_used <= s.free_count;
}

// Packs sequences, oldest first, until tokens, sequences, rows or blocks run out; while rows decode
// no more than a chunk, for which they wait. At most one request is left computed in part, and it
// continues first.
template <class Port>
BLINK_DEV bool Scheduler<Port>::plan_prefill(bool beside_decode) {
    port.sync();  // every lane has read what an admission changes
    if (leader()) {
        s.plan_count = 0;
        s.plan_tokens = 0;
        s.plan_rows = s.row_limit;
        s.plan_budget = s.decoding_count > 0 ? engine.prefill_chunk : engine.max_prefill_tokens;
        if (beside_decode && engine.max_mixed_tokens < s.plan_budget) s.plan_budget = engine.max_mixed_tokens;
        const uint32_t most = beside_decode ? engine.mixed_sequences : engine.max_sequences;
        bool whole = s.partial == kNoSlot || plan_sequence(s.partial);
        while (whole && s.plan_count < most && prefill_waits()) {
            const uint32_t slot = first_waiting();
            const uint32_t budget = s.plan_budget - s.plan_tokens;
            if (budget < prefill_length(request(slot), engine) && budget < 2) break;
            whole = admit(slot);
        }
    }
    port.sync();
    return s.plan_count > 0;
}

// Gives the request a row and its blocks, and plans its first tokens. Leader only.
template <class Port>
BLINK_DEV bool Scheduler<Port>::admit(uint32_t slot) {
    Request& r = request(slot);
    remove_waiting(slot);
    uint32_t row = engine.rows_movable == 0 ? 0 : s.row_limit;  // movable rows have no holes
    while (s.row_slots[row] != kNoSlot) row += 1;
    s.row_slots[row] = slot;
    s.rows_used += 1;
    if (row >= s.row_limit) s.row_limit = row + 1;
    r.row = static_cast<int32_t>(row);
    r.computed = 0;
    r.blocks = engine.rows_movable == 0 ? 0 : blocks_for(r, engine);
    s.free_count -= r.blocks;
    trace(TraceKind::kAdmit, slot, row);
    if (r.generated == 0) {
        port.store(&ring.timings[slot].prefill_ns, port.now_ns());
        publish_later(r, SlotState::kPrefillProcessing);
    }
    const bool whole = plan_sequence(slot);
    PrefillEntry& entry = s.plan[s.plan_count - 1];
    entry.new_blocks = r.blocks;
    entry.blocks_from = s.free_count;
    return whole;
}

// Plans the next tokens of one request, never leaving a last chunk of a single token.
// True where its prompt is then complete.
template <class Port>
BLINK_DEV bool Scheduler<Port>::plan_sequence(uint32_t slot) {
    const Request& r = request(slot);
    const uint32_t left = prefill_length(r, engine) - r.computed;
    const uint32_t budget = s.plan_budget - s.plan_tokens;
    uint32_t tokens = left < budget ? left : budget;
    if (left - tokens == 1 && tokens > 1) tokens -= 1;
    s.plan[s.plan_count++] = {slot, r.computed, tokens, s.plan_tokens, 0, 0};
    s.plan_tokens += tokens;
    s.partial = tokens < left ? slot : kNoSlot;
    return tokens == left;
}

}  // namespace blink
