// Taking over a step's results: tokens, who joins decode, who ends. Part of scheduler.h.
#pragma once

#include "scheduler.h"

namespace blink {

// Has the graph that runs ended, as it was when polled last? A barrier.
template <class Port>
BLINK_DEV bool Scheduler<Port>::has_landed() {
    if (!Port::kPollsAhead || looks == 0) ended = leader() && poll(awaited());
    return port.any(ended);
}

template <class Port>
BLINK_DEV Awaited Scheduler<Port>::awaited() const {
    const Phase last = static_cast<Phase>(end_part(s.flight.phase) - 1);
    const uint32_t first = first_part(s.flight.phase), second = static_cast<uint32_t>(last);
    return {engine.buffers[first].completion, engine.buffers[second].completion, s.launches[first], s.launches[second]};
}

// Have all words reached what is awaited? Leader only.
template <class Port>
BLINK_DEV bool Scheduler<Port>::poll(const Awaited& awaited) {
    if (port.load_acquire(awaited.first) != awaited.first_due) return false;
    return awaited.second == awaited.first || port.load_acquire(awaited.second) == awaited.second_due;
}

// Takes over the results of the graph that has ended: of its decode step first, since who joins with
// the last of its prompt had no part in that.
template <class Port>
BLINK_DEV void Scheduler<Port>::land() {
    Landed landed{};
    for (uint32_t part = first_part(s.flight.phase); part < end_part(s.flight.phase); ++part) {
        const Landed found = land_part(static_cast<Phase>(part));
        landed = {landed.delivered + found.delivered, landed.joined + found.joined};
    }
    if (uses(s.flight.phase, Phase::kPrefill)) join_decode();
    if (leader()) {
        s.landed_ns = port.now_ns();
        const uint64_t took_ns = s.landed_ns - s.flight.started_ns;
        s.graph_ns[s.flight.graph] = took_ns < 0xffffffffu ? static_cast<uint32_t>(took_ns) : 0xffffffffu;
        s.flight.active = false;
        s.decoding_count += landed.joined;
        s.counters.steps += 1;
        s.counters.generated_tokens += landed.delivered;
        if (const uint32_t error = step_error(); error != 0) port.store(&ring.header->error, error);
        for (const PhaseBuffers& step : engine.buffers) *step.error = 0;
    }
    port.sync();
}

// Why the graph that has ended failed as a whole, or 0: then all that it served has failed. Both words
// are read together: a phase that had no part in the step tells of no error.
template <class Port>
BLINK_DEV uint32_t Scheduler<Port>::step_error() const {
    const uint32_t decode = *buffers(Phase::kDecode).error, prefill = *buffers(Phase::kPrefill).error;
    return decode > prefill ? decode : prefill;
}

// Takes over one phase's results. A barrier.
template <class Port>
BLINK_DEV Landed Scheduler<Port>::land_part(Phase part) {
    const PhaseBuffers& step = buffers(part);
    const bool prefill = part == Phase::kPrefill;
    const uint32_t sequences = prefill ? s.plan_count : s.flight.rows;
    uint32_t delivered = 0, joined = 0;
    for (uint32_t i = port.row_lane(); i < sequences; i += port.lanes()) {
        const uint32_t slot = prefill ? s.plan[i].slot : s.row_slots[i];
        if (slot == kNoSlot) continue;
        Request& r = request(slot);
        const int32_t token = step.output_tokens[i];
        const uint32_t error = step_error();
        const StepWords now(r);
        read_together(token, error, now.decoding, now.ending, now.computed, now.generated, now.range, now.prompt_length,
                      now.output_offset, now.max_tokens, now.min_tokens, now.logprobs, now.stop_count, now.flags);
        if (!prefill && !now.decoding) continue;
        const uint32_t computed = now.computed + (prefill ? s.plan[i].tokens : 1);
        Reason ending = error != 0 ? Reason::kEngineError : now.ending;
        r.computed = computed;
        if (!now.decoding && computed >= prefill_length(now, engine)) {
            joined += 1;
            r.decoding = true;
            if (computed == now.length()) r.kept = step.sampling[i].kept;
            fill_sampling(buffers(Phase::kDecode).sampling[r.row], slot);
        }
        // Before that it computes its prompt, or replays what it had generated.
        if (ending == Reason::kNone && computed >= now.length()) {
            ending = deliver(step, slot, now, i, token);
            delivered += ending != Reason::kBadToken;
        }
        if (ending == Reason::kNone) continue;
        r.ending = ending;
        port.store(&s.row_ended, true);
    }
    delivered = port.sum(delivered);
    return {delivered, prefill ? port.sum(joined) : 0};
}

// Gives decode the block tables of those whose prompt the prefill has completed.
template <class Port>
BLINK_DEV void Scheduler<Port>::join_decode() {
    const PhaseBuffers& decode = buffers(Phase::kDecode);
    for (uint32_t i = 0; i < s.plan_count; ++i) {
        const Request& r = request(s.plan[i].slot);
        if (!r.decoding) continue;
        const uint64_t table = static_cast<uint64_t>(r.row) * engine.max_blocks;
        for (uint32_t b = port.lane(); b < r.blocks; b += port.lanes())
            decode.block_tables[table + b] = s.row_blocks[table + b];
    }
}

// Hands one sampled token to its request, as it was before; why it ends with that, or kNone. One lane,
// its own request.
template <class Port>
BLINK_DEV Reason Scheduler<Port>::deliver(const PhaseBuffers& step, uint32_t slot, const StepWords& before,
                                          uint32_t index, int32_t token) {
    if (token < 0 || static_cast<uint32_t>(token) >= engine.vocabulary_size) return Reason::kBadToken;
    Request& r = request(slot);
    port.store(ring.outputs(before.range) + before.output_offset + before.generated, token);
    if (before.logprobs != 0) deliver_logprobs(step, slot, before, index);
    if (before.generated == 0) port.store(&ring.timings[slot].first_token_ns, port.now_ns());
    r.last_token = token;
    r.generated = before.generated + 1;
    publish_later(r, SlotState::kDecodeProcessing);
    return end_of(r, before, token);
}

template <class Port>
BLINK_DEV void Scheduler<Port>::deliver_logprobs(const PhaseBuffers& step, uint32_t slot, const StepWords& before,
                                                 uint32_t index) {
    const uint32_t top = before.logprobs - 1;
    int32_t* entry = ring.outputs(before.range) + request(slot).record.logprobs_offset +
                     static_cast<uint64_t>(before.generated) * logprob_words(before.logprobs);
    port.store(reinterpret_cast<float*>(entry), step.output_logprobs[index]);
    for (uint32_t k = 0; k < top; ++k) {
        port.store(entry + 1 + k, step.output_top_ids[index * kMaxTopLogprobs + k]);
        port.store(reinterpret_cast<float*>(entry + 1 + top + k),
                   step.output_top_logprobs[index * kMaxTopLogprobs + k]);
    }
}

// Why a request ends with this token, or kNone.
template <class Port>
BLINK_DEV Reason Scheduler<Port>::end_of(const Request& r, const StepWords& before, int32_t token) const {
    const uint32_t generated = before.generated + 1;
    if (generated >= before.min_tokens) {
        if ((before.flags & kIgnoreEos) == 0)
            for (uint32_t i = 0; i < engine.eos_count; ++i)
                if (token == engine.eos_token_ids[i]) return Reason::kEndOfSequence;
        if (before.stop_count != 0) {
            const int32_t* stop = ring.aux(before.range) + r.record.stop_offset;
            for (uint32_t i = 0; i < before.stop_count; ++i)
                if (token == stop[i]) return Reason::kStopToken;
        }
    }
    if (generated >= before.max_tokens) return Reason::kMaxTokens;
    return before.prompt_length + generated >= engine.context_length ? Reason::kContextLimit : Reason::kNone;
}

}  // namespace blink
