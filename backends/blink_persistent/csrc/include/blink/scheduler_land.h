// Taking over a step's results: tokens, who joins decode, who ends. Part of scheduler.h.
#pragma once

#include "scheduler.h"

namespace blink {

template <class Port>
BLINK_DEV bool Scheduler<Port>::has_landed() {
    bool ended = leader();
    for (uint32_t part = first_part(s.flight.phase); ended && part < end_part(s.flight.phase); ++part)
        ended = port.load_acquire(engine.buffers[part].completion) == s.launches[part];
    return port.any(ended);
}

// Takes over the results of the graph that has ended: of its decode step first, since who joins with
// the last of its prompt had no part in that.
template <class Port>
BLINK_DEV void Scheduler<Port>::land() {
    const uint32_t error = step_error();
    Landed landed{};
    for (uint32_t part = first_part(s.flight.phase); part < end_part(s.flight.phase); ++part) {
        const Landed found = land_part(static_cast<Phase>(part), error);
        landed = {landed.delivered + found.delivered, landed.joined + found.joined};
    }
    if (uses(s.flight.phase, Phase::kPrefill)) join_decode();
    if (leader()) {
        s.landed_ns = port.now_ns();
        const uint64_t took_ns = s.landed_ns - s.flight.started_ns;
        s.graph_ns[s.flight.graph] = took_ns < 0xffffffffu ? static_cast<uint32_t>(took_ns) : 0xffffffffu;
        s.flight.active = false;
        s.decoding_count += landed.joined;
        for (uint32_t part = first_part(s.flight.phase); part < end_part(s.flight.phase); ++part)
            *engine.buffers[part].error = 0;
        s.counters.steps += 1;
        s.counters.generated_tokens += landed.delivered;
        if (error != 0) port.store(&ring.header->error, error);
    }
    port.sync();
}

// Why the graph that has ended failed as a whole, or 0: then all that it served has failed.
template <class Port>
BLINK_DEV uint32_t Scheduler<Port>::step_error() const {
    uint32_t error = 0;
    for (uint32_t part = first_part(s.flight.phase); error == 0 && part < end_part(s.flight.phase); ++part)
        error = *engine.buffers[part].error;
    return error;
}

// Takes over one phase's results. A barrier.
template <class Port>
BLINK_DEV Landed Scheduler<Port>::land_part(Phase part, uint32_t error) {
    const PhaseBuffers& step = buffers(part);
    const bool prefill = part == Phase::kPrefill;
    const uint32_t sequences = prefill ? s.plan_count : s.flight.rows;
    uint32_t delivered = 0, joined = 0;
    for (uint32_t i = port.row_lane(); i < sequences; i += port.lanes()) {
        const uint32_t slot = prefill ? s.plan[i].slot : s.row_slots[i];
        const int32_t token = step.output_tokens[i];
        if (slot == kNoSlot) continue;
        Request& r = request(slot);
        if (!prefill && !r.decoding) continue;
        r.computed += prefill ? s.plan[i].tokens : 1;
        if (error != 0) {
            r.ending = Reason::kEngineError;
            port.store(&s.row_ended, true);
        }
        if (r.computed < prefill_length(r, engine)) continue;
        if (!r.decoding) {
            joined += 1;
            r.decoding = true;
            if (r.computed == r.length()) r.kept = step.sampling[i].kept;
            fill_sampling(buffers(Phase::kDecode).sampling[r.row], slot);
        }
        if (r.computed < r.length()) continue;  // it still replays what it had generated
        if (r.ending == Reason::kNone) {
            deliver(step, slot, i, token);
            delivered += r.ending != Reason::kBadToken;
        }
        if (r.ending != Reason::kNone) port.store(&s.row_ended, true);
    }
    delivered = port.sum(delivered);
    return {delivered, port.sum(joined)};
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

// Hands one sampled token to its request. One lane, its own request.
template <class Port>
BLINK_DEV void Scheduler<Port>::deliver(const PhaseBuffers& step, uint32_t slot, uint32_t index, int32_t token) {
    Request& r = request(slot);
    const uint32_t range = ring.range_of(slot);
    if (token < 0 || static_cast<uint32_t>(token) >= engine.vocabulary_size) {
        r.ending = Reason::kBadToken;
        return;
    }
    port.store(ring.outputs(range) + r.record.output_offset + r.generated, token);
    if (r.record.logprobs != 0) {
        const uint32_t top = r.record.logprobs - 1;
        int32_t* entry = ring.outputs(range) + r.record.logprobs_offset +
                         static_cast<uint64_t>(r.generated) * logprob_words(r.record.logprobs);
        port.store(reinterpret_cast<float*>(entry), step.output_logprobs[index]);
        for (uint32_t k = 0; k < top; ++k) {
            port.store(entry + 1 + k, step.output_top_ids[index * kMaxTopLogprobs + k]);
            port.store(reinterpret_cast<float*>(entry + 1 + top + k),
                       step.output_top_logprobs[index * kMaxTopLogprobs + k]);
        }
    }
    r.last_token = token;
    r.generated += 1;
    if (r.generated == 1) port.store(&ring.timings[slot].first_token_ns, port.now_ns());
    r.ending = end_of(r, token, range);
    publish_later(r, SlotState::kDecodeProcessing);
}

// Why the request ends with this token, or kNone.
template <class Port>
BLINK_DEV Reason Scheduler<Port>::end_of(const Request& r, int32_t token, uint32_t range) const {
    if (r.generated >= r.record.min_tokens) {
        if ((r.record.flags & kIgnoreEos) == 0)
            for (uint32_t i = 0; i < engine.eos_count; ++i)
                if (token == engine.eos_token_ids[i]) return Reason::kEndOfSequence;
        const int32_t* stop = ring.aux(range) + r.record.stop_offset;
        for (uint32_t i = 0; i < r.record.stop_count; ++i)
            if (token == stop[i]) return Reason::kStopToken;
    }
    if (r.generated >= r.record.max_tokens) return Reason::kMaxTokens;
    return r.length() >= engine.context_length ? Reason::kContextLimit : Reason::kNone;
}

}  // namespace blink
