// Reading the frontends' words: claim, cancel, release. Part of scheduler.h.
#pragma once

#include "scheduler.h"

namespace blink {

constexpr uint32_t kNothing = 0, kClaim = 1, kCancel = 2;

// Reads what the host and the owners of `slots` slots ask for.
template <class Port>
BLINK_DEV void Scheduler<Port>::look(uint32_t slots) {
    const bool turns = looks * slots % ring.slot_count < slots;  // once a turn of the ring
    if (turns) read_control();
    looks += 1;
    scan(slots);
    // After the scan, and not where it could delay the notice of a graph's end.
    if (turns && leader() && (looks == 1 || !port.watches(s.flight.due_ns))) port.ask_control(control);
}

template <class Port>
BLINK_DEV void Scheduler<Port>::read_control() {
    if (leader()) {
        port.store(&ring.header->heartbeat_ns, port.now_ns());
        const ControlWords words = port.control_words(control);
        s.command = static_cast<Command>(words.command);
        s.completed_any = false;
        if (s.accepting && words.close != 0) {
            s.accepting = false;
            port.store_release(&ring.header->accepting, 0u);
        }
    }
    port.sync();
}

// What a slot's owner wrote, and what it was shown: the scheduler's own, a plain read.
struct SlotWords {
    FrontendWords words;
    SlotStatus shown;
};

template <class Port>
BLINK_DEV SlotWords Scheduler<Port>::words_of(uint32_t slot) const {
    return {port.load_words(&ring.words[slot]), ring.status[slot]};
}

// Does the slot's owner ask for anything?
BLINK_HD inline bool asks(const SlotWords& slot) {
    const uint32_t ticket = slot.shown.ticket;
    const SlotState state = unpack_status(slot.shown.word).state;
    const bool claim = ticket_newer(slot.words.submit, ticket);
    const bool release = slot.words.release == ticket, cancel = slot.words.cancel == ticket;
    return state == SlotState::kEmpty ? claim : state == SlotState::kDecodeCompleted ? release : cancel;
}

// What a slot's owner asks for now. A release is obeyed on the spot: it concerns nobody else.
template <class Port>
BLINK_DEV uint32_t Scheduler<Port>::inspect(uint32_t slot) {
    const FrontendWords words = port.load_words(&ring.words[slot]);
    const Request& r = request(slot);
    if (r.state == SlotState::kEmpty) return ticket_newer(words.submit, r.ticket) ? kClaim : kNothing;
    if (r.state == SlotState::kDecodeCompleted) {
        if (words.release == r.ticket) {
            publish(slot, SlotState::kEmpty);
            port.store(&s.dirty[r.range], true);
        }
        return kNothing;
    }
    return words.cancel == r.ticket && r.ending == Reason::kNone ? kCancel : kNothing;
}

// Scans the next slots from a rotating start. Where something was found, a second look numbers it
// in slot order, so that the order of claims does not depend on how many lanes there are.
template <class Port>
BLINK_DEV void Scheduler<Port>::scan(uint32_t slots) {
    const uint32_t start = s.scan_start;
    bool found = false;
    if (slots == ring.slot_count) port.stamp(Moment::kScanning);
    bool polls = Port::kPollsAhead && s.flight.active && leader();
    const Awaited running = awaited();
    for (uint32_t i = port.lane(); i < slots; i += 2 * port.lanes()) {
        // The reads of two slots and the poll cross to memory together.
        const uint32_t other = i + port.lanes() < slots ? i + port.lanes() : i;
        const SlotWords one = words_of((start + i) % ring.slot_count);
        const SlotWords two = words_of((start + other) % ring.slot_count);
        if (polls) ended = poll(running);
        polls = false;
        found |= asks(one) | asks(two);
    }
    found = port.any(found);
    if (slots == ring.slot_count) port.stamp(Moment::kScanned);
    if (leader()) {
        const uint32_t turn = slots < ring.slot_count ? slots : ring.slots_per_range;  // no range is always first
        s.scan_start = (start + turn) % ring.slot_count;
        s.event_count = 0;
    }
    if (!found) return;
    port.acquire();
    port.sync();
    for (uint32_t base = 0; base < slots; base += port.lanes()) {
        const bool inside = base + port.lane() < slots;
        const uint32_t slot = (start + base + port.lane()) % ring.slot_count;
        const uint32_t kind = inside ? inspect(slot) : kNothing;
        if (!port.any(kind != kNothing)) continue;
        const uint32_t first = s.event_count;
        const uint32_t index = first + port.scan(kind != kNothing);
        if (kind != kNothing) s.events[index] = slot * 2 + (kind == kCancel);
        if (port.lane() == port.lanes() - 1) s.event_count = index + (kind != kNothing);
        port.sync();
    }
    port.acquire();
    for (uint32_t i = port.lane(); i < s.event_count; i += port.lanes())
        if (s.events[i] % 2 == 0) claim(s.events[i] / 2, s.next_number + i);
    port.sync();
    enqueue_claimed();
}

// Takes a private copy of the record and shows the slot as claimed. One lane, its own slot.
template <class Port>
BLINK_DEV void Scheduler<Port>::claim(uint32_t slot, uint64_t number) {
    Request& r = request(slot);
    const uint32_t ticket = port.load_words(&ring.words[slot]).submit;
    r = Request{};
    r.record = ring.records[slot];
    r.number = number;
    r.ticket = ticket;
    r.row = kNoRow;
    r.range = ring.range_of(slot);
    ring.timings[slot] = SlotTiming{port.now_ns(), 0, 0, 0};
    port.store(&ring.status[slot].ticket, ticket);
    port.store(&ring.status[slot].epoch, ring.header->epoch);
    const Reason refused = s.accepting ? refuse(r) : Reason::kClosed;
    if (refused != Reason::kNone) {
        r.ending = refused;
        complete(slot, refused);
    } else {
        publish(slot, SlotState::kPrefillPending);
    }
}

// Bounds of everything a record points at: a frontend's mistake must not become the scheduler's.
template <class Port>
BLINK_DEV Reason Scheduler<Port>::refuse(const Request& r) const {
    const RequestRecord& record = r.record;
    const auto fits = [](uint64_t offset, uint64_t words, uint64_t arena) { return offset + words <= arena; };
    const auto finite = [](float value) { return value - value == 0.0f; };
    const bool valid =
        record.prompt_length > 0 && record.prompt_length < engine.context_length && record.max_tokens > 0 &&
        record.max_tokens <= engine.context_length && record.priority < kPriorities &&
        record.logprobs <= kMaxTopLogprobs + 1 && fits(record.prompt_offset, record.prompt_length, ring.prompt_words) &&
        fits(record.output_offset, record.max_tokens, ring.output_words) &&
        fits(record.logprobs_offset, static_cast<uint64_t>(record.max_tokens) * logprob_words(record.logprobs),
             ring.output_words) &&
        fits(record.stop_offset, record.stop_count, ring.aux_words) &&
        fits(record.bias_offset, 2ull * record.bias_count, ring.aux_words) &&
        fits(record.grammar_offset, record.grammar_words, ring.aux_words) && record.temperature >= 0.0f &&
        record.top_p > 0.0f && record.repetition_penalty > 0.0f && finite(record.temperature) && finite(record.min_p) &&
        finite(record.repetition_penalty) && finite(record.presence_penalty) && finite(record.frequency_penalty);
    if (!valid) return Reason::kInvalidRecord;
    const uint32_t blocks = (record.prompt_length + engine.block_size - 1) / engine.block_size;
    if (engine.rows_movable != 0 && blocks > engine.block_count - 1) return Reason::kKvExhausted;
    return Reason::kNone;
}

// Joins the claimed to the waiting queue in the order of their numbers, and obeys cancels.
template <class Port>
BLINK_DEV void Scheduler<Port>::enqueue_claimed() {
    if (leader()) {
        for (uint32_t i = 0; i < s.event_count; ++i) {
            const uint32_t slot = s.events[i] / 2;
            Request& r = request(slot);
            if (s.events[i] % 2 == 0) {
                trace(TraceKind::kClaim, slot, r.ticket);
                s.counters.claims += 1;
                if (r.state == SlotState::kPrefillPending)
                    push_waiting(slot, false);
                else
                    count_end(slot, r.ending);
                s.scan_start = (slot + 1) % ring.slot_count;
            } else if (r.waiting) {
                remove_waiting(slot);
                count_end(slot, Reason::kCancelled);
                complete(slot, Reason::kCancelled);
            } else {
                r.ending = Reason::kCancelled;  // its row is given back at the step boundary
                s.row_ended = true;
            }
        }
        s.next_number += s.event_count;
    }
    port.sync();
}

}  // namespace blink
