// Rows and KV blocks: giving back, moving, growing, preempting. Part of scheduler.h.
#pragma once

#include "scheduler.h"

namespace blink {

// Completes requests that ended, by their step or by a cancel; called between two steps.
template <class Port>
BLINK_DEV void Scheduler<Port>::retire() {
    if (!s.row_ended) return;
    for (uint32_t row = port.row_lane(); row < s.row_limit; row += port.lanes()) {
        const uint32_t slot = s.row_slots[row];
        if (slot != kNoSlot && request(slot).ending != Reason::kNone) complete(slot, request(slot).ending);
    }
    port.sync();
    if (leader()) {
        s.row_ended = false;
        s.retiring_count = 0;
        for (uint32_t row = 0; row < s.row_limit; ++row) {
            const uint32_t slot = s.row_slots[row];
            if (slot == kNoSlot || request(slot).ending == Reason::kNone) continue;
            count_end(slot, request(slot).ending);
            free_row(slot);
        }
    }
    port.sync();
    return_blocks();
    close_holes();
}

// Takes a request off its row; its blocks go back in return_blocks. Leader only.
template <class Port>
BLINK_DEV void Scheduler<Port>::free_row(uint32_t slot) {
    Request& r = request(slot);
    const uint32_t row = static_cast<uint32_t>(r.row);
    s.retiring[s.retiring_count++] = row;
    s.row_slots[row] = kNoSlot;
    s.rows_used -= 1;
    if (r.decoding) {
        s.decoding_count -= 1;
        r.kept = buffers(Phase::kDecode).sampling[row].kept;
    }
    if (s.partial == slot) s.partial = kNoSlot;
    r.decoding = false;
    r.row = kNoRow;
    r.computed = 0;
    while (s.row_limit > 0 && s.row_slots[s.row_limit - 1] == kNoSlot) s.row_limit -= 1;
}

// Blocks of the rows in `retiring` return to the free stack; the rows become inactive.
template <class Port>
BLINK_DEV void Scheduler<Port>::return_blocks() {
    const PhaseBuffers& decode = buffers(Phase::kDecode);
    for (uint32_t i = 0; i < s.retiring_count; ++i) {
        const uint32_t row = s.retiring[i];
        int32_t* table = s.row_blocks + static_cast<uint64_t>(row) * engine.max_blocks;
        uint32_t held = 0;  // a row's table ends with its first null block
        for (uint32_t b = port.lane(); b < engine.max_blocks; b += port.lanes()) held += table[b] != kNullBlock;
        held = port.sum(held);
        const uint32_t first = s.free_count;
        for (uint32_t b = port.lane(); b < held; b += port.lanes()) {
            s.free_blocks[first + b] = table[held - 1 - b];
            table[held - 1 - b] = kNullBlock;
        }
        port.sync();
        if (leader()) {
            s.free_count = first + held;
            decode.lengths[row] = 0;
            decode.start_positions[row] = 0;
            decode.sampling[row].flags = 0;
            decode.block_tables[static_cast<uint64_t>(row) * engine.max_blocks] = kNullBlock;
        }
        port.sync();
    }
}

// Moves the last busy rows into holes, where the engine's KV memory does not belong to the row.
template <class Port>
BLINK_DEV void Scheduler<Port>::close_holes() {
    if (engine.rows_movable == 0) return;
    if (leader()) {
        s.move_count = 0;
        for (uint32_t hole = 0; hole < s.row_limit; ++hole) {
            if (s.row_slots[hole] != kNoSlot) continue;
            const uint32_t last = s.row_limit - 1;
            s.moves[s.move_count++] = {last, hole};
            s.row_slots[hole] = s.row_slots[last];
            request(s.row_slots[hole]).row = static_cast<int32_t>(hole);
            s.row_slots[last] = kNoSlot;
            while (s.row_limit > 0 && s.row_slots[s.row_limit - 1] == kNoSlot) s.row_limit -= 1;
            trace(TraceKind::kMove, last, hole);
            s.counters.row_moves += 1;
        }
    }
    port.sync();
    const PhaseBuffers& decode = buffers(Phase::kDecode);
    for (uint32_t i = 0; i < s.move_count; ++i) {
        const RowMove move = s.moves[i];
        const uint64_t from = static_cast<uint64_t>(move.from) * engine.max_blocks;
        const uint64_t to = static_cast<uint64_t>(move.to) * engine.max_blocks;
        for (uint32_t b = port.lane(); b < engine.max_blocks; b += port.lanes()) {
            s.row_blocks[to + b] = s.row_blocks[from + b];
            decode.block_tables[to + b] = decode.block_tables[from + b];
            s.row_blocks[from + b] = kNullBlock;
            decode.block_tables[from + b] = kNullBlock;
        }
        if (leader()) {
            decode.sampling[move.to] = decode.sampling[move.from];
            decode.sampling[move.from].flags = 0;
            decode.lengths[move.from] = 0;
            decode.start_positions[move.from] = 0;
        }
        port.sync();
    }
}

// Gives every decoding row the block its next token needs, preempting the youngest where there
// are too few. False where nothing is left to decode.
template <class Port>
BLINK_DEV bool Scheduler<Port>::reserve_blocks() {
    if (engine.rows_movable == 0) return true;
    const PhaseBuffers& decode = buffers(Phase::kDecode);
    while (s.decoding_count > 0) {
        uint32_t needed = 0;
        for (uint32_t row = port.row_lane(); row < s.row_limit; row += port.lanes()) needed += grows(s.row_slots[row]);
        needed = port.sum(needed);
        if (needed == 0) return true;
        if (needed <= s.free_count) break;
        preempt_youngest();
    }
    for (uint32_t base = 0; base < s.row_limit; base += port.lanes()) {
        const uint32_t row = base + port.lane();
        const uint32_t slot = row < s.row_limit ? s.row_slots[row] : kNoSlot;
        const bool needs = grows(slot);
        if (!port.any(needs)) continue;
        const uint32_t top = s.free_count;
        const uint32_t index = port.scan(needs);
        if (needs) {
            Request& r = request(slot);
            const int32_t block = s.free_blocks[top - 1 - index];
            const uint64_t entry = static_cast<uint64_t>(row) * engine.max_blocks + r.blocks;
            s.row_blocks[entry] = block;
            decode.block_tables[entry] = block;
            r.blocks += 1;
        }
        if (port.lane() == port.lanes() - 1) s.free_count = top - index - needs;
        port.sync();
    }
    return s.decoding_count > 0;
}

// Needs the request on a row a block for its next token?
template <class Port>
BLINK_DEV bool Scheduler<Port>::grows(uint32_t slot) const {
    if (slot == kNoSlot) return false;
    const StepWords now(request(slot));
    return now.decoding & (now.computed >= now.blocks * engine.block_size);
}

// Pauses the request with the lowest claim to its row: its blocks are freed, and it waits at the
// head of its queue to be computed anew. Alone, it exceeds the pool and ends.
template <class Port>
BLINK_DEV void Scheduler<Port>::preempt_youngest() {
    if (leader()) {
        s.retiring_count = 0;
        uint32_t victim = kNoSlot;
        for (uint32_t row = 0; row < s.row_limit; ++row) {
            const uint32_t slot = s.row_slots[row];
            if (slot == kNoSlot) continue;
            if (victim == kNoSlot || request(slot).record.priority > request(victim).record.priority ||
                (request(slot).record.priority == request(victim).record.priority &&
                 request(slot).number > request(victim).number))
                victim = slot;
        }
        Request& r = request(victim);
        const bool alone = s.rows_used == 1;
        free_row(victim);
        r.blocks = 0;
        if (alone) {
            count_end(victim, Reason::kKvExhausted);
            complete(victim, Reason::kKvExhausted);
        } else {
            trace(TraceKind::kPreempt, victim, r.ticket);
            s.counters.preemptions += 1;
            if (r.generated > 0) publish(victim, SlotState::kDecodePaused);
            push_waiting(victim, true);
        }
    }
    port.sync();
    return_blocks();
    close_holes();
}

// Idle, unless a paused request has grown past the whole pool: it can never run again. What
// completed in this pass may have been released before: that asks for another look.
template <class Port>
BLINK_DEV Outcome Scheduler<Port>::nothing_runs() {
    const uint32_t slot = first_waiting();
    if (slot == kNoSlot) return s.completed_any ? Outcome::kProgress : Outcome::kIdle;
    port.sync();  // every lane has read the queue
    if (leader()) {
        remove_waiting(slot);
        count_end(slot, Reason::kKvExhausted);
        complete(slot, Reason::kKvExhausted);
    }
    port.sync();
    return Outcome::kProgress;
}

}  // namespace blink
