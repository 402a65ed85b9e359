// Planning, filling, launching and landing steps. Part of scheduler.h.
#pragma once

#include "scheduler.h"

namespace blink {

// KV blocks that a request needs for all tokens it has.
BLINK_HD inline uint32_t blocks_for(const Request& r, const EngineTables& engine) {
    return (r.length() + engine.block_size - 1) / engine.block_size;
}

// Tokens of a request that are computed by prefill.
BLINK_HD inline uint32_t prefill_length(const Request& r, const EngineTables& engine) {
    return engine.deterministic != 0 ? r.record.prompt_length : r.length();
}

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

// Packs sequences, oldest first, until tokens, sequences, rows or blocks run out. At most one
// request is left computed in part, and it continues first.
template <class Port>
BLINK_DEV bool Scheduler<Port>::plan_prefill() {
    if (leader()) {
        s.plan_count = 0;
        s.plan_tokens = 0;
        bool whole = s.partial == kNoSlot || plan_sequence(s.partial);
        while (whole && s.plan_count < engine.max_sequences && prefill_waits()) {
            const uint32_t slot = first_waiting();
            const uint32_t budget = engine.max_prefill_tokens - s.plan_tokens;
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
    const uint32_t budget = engine.max_prefill_tokens - s.plan_tokens;
    uint32_t tokens = left < budget ? left : budget;
    if (left - tokens == 1 && tokens > 1) tokens -= 1;
    s.plan[s.plan_count++] = {slot, r.computed, tokens, s.plan_tokens, 0, 0};
    s.plan_tokens += tokens;
    s.partial = tokens < left ? slot : kNoSlot;
    return tokens == left;
}

template <class Port>
BLINK_DEV Flight Scheduler<Port>::prepare_prefill() {
    port.stamp(Moment::kDecided);
    for (uint32_t row = port.row_lane(); row < s.row_limit; row += port.lanes()) {
        const uint32_t slot = s.row_slots[row];
        if (slot != kNoSlot && request(slot).decoding) publish_later(request(slot), SlotState::kDecodePaused);
    }
    const uint32_t columns = (engine.max_prefill_tokens + engine.token_granularity - 1) / engine.token_granularity;
    const uint32_t column = (s.plan_tokens - 1) / engine.token_granularity;
    const uint32_t graph = look_up(&engine.prefill_lookup[(s.plan_count - 1) * columns + column]);
    fill_prefill(engine.graphs[graph].sequences);
    return {true, Phase::kPrefill, graph, s.plan_count, 0, 0};
}

// The host may put a smaller graph into the table meanwhile, so one lane reads it for all: what the
// lanes fill is what is launched.
template <class Port>
BLINK_DEV uint32_t Scheduler<Port>::look_up(const uint16_t* entry) {
    return port.sum(leader() ? port.load(entry) : 0);
}

template <class Port>
BLINK_DEV void Scheduler<Port>::fill_prefill(uint32_t sequences) {
    const PhaseBuffers& prefill = buffers(Phase::kPrefill);
    for (uint32_t i = 0; i < s.plan_count; ++i) {
        const PrefillEntry entry = s.plan[i];
        Request& r = request(entry.slot);
        const uint32_t range = ring.range_of(entry.slot);
        const int32_t* prompt = ring.prompts(range) + r.record.prompt_offset;
        const int32_t* output = ring.outputs(range) + r.record.output_offset;
        for (uint32_t t = port.lane(); t < entry.tokens; t += port.lanes()) {
            const uint32_t at = entry.start + t;
            int32_t token = at < r.record.prompt_length ? prompt[at] : output[at - r.record.prompt_length];
            if (token < 0 || static_cast<uint32_t>(token) >= engine.vocabulary_size) {
                token = 0;
                r.ending = Reason::kInvalidRecord;
                port.store(&s.row_ended, true);
            }
            prefill.token_ids[entry.packed_at + t] = token;
        }
        const uint64_t table = static_cast<uint64_t>(r.row) * engine.max_blocks;
        for (uint32_t b = port.lane(); b < entry.new_blocks; b += port.lanes())
            s.row_blocks[table + b] = s.free_blocks[entry.blocks_from + b];
        port.sync();
        for (uint32_t b = port.lane(); b < r.blocks; b += port.lanes())
            prefill.block_tables[static_cast<uint64_t>(i) * engine.max_blocks + b] = s.row_blocks[table + b];
    }
    for (uint32_t i = port.lane(); i < sequences; i += port.lanes()) {
        const bool busy = i < s.plan_count;
        const PrefillEntry entry = busy ? s.plan[i] : PrefillEntry{kNoSlot, 0, 0, s.plan_tokens, 0, 0};
        prefill.start_positions[i] = static_cast<int32_t>(entry.start);
        prefill.lengths[i] = busy ? static_cast<int32_t>(entry.start + entry.tokens) : 0;
        prefill.rows[i] = busy ? request(entry.slot).row : 0;
        prefill.cu_seqlens[i] = static_cast<int32_t>(entry.packed_at);
        if (!busy) prefill.block_tables[static_cast<uint64_t>(i) * engine.max_blocks] = kNullBlock;
        prefill.sampling[i].flags = 0;
        const bool samples = busy && entry.start + entry.tokens == request(entry.slot).length();
        if (samples) fill_sampling(prefill.sampling[i], entry.slot);
    }
    if (leader()) prefill.cu_seqlens[sequences] = static_cast<int32_t>(s.plan_tokens);
}

template <class Port>
BLINK_DEV Flight Scheduler<Port>::prepare_decode() {
    port.stamp(Moment::kDecided);
    const uint32_t graph = look_up(&engine.decode_lookup[s.row_limit - 1]);
    fill_decode(engine.graphs[graph].sequences);
    return {true, Phase::kDecode, graph, s.row_limit, 0, 0};
}

template <class Port>
BLINK_DEV void Scheduler<Port>::fill_decode(uint32_t rows) {
    const PhaseBuffers& decode = buffers(Phase::kDecode);
    for (uint32_t row = port.row_lane(); row < rows; row += port.lanes()) {
        const uint32_t slot = row < s.row_limit ? s.row_slots[row] : kNoSlot;
        const bool active = slot != kNoSlot && request(slot).decoding;
        const bool replays = active && request(slot).computed + 1 < request(slot).length();
        decode.token_ids[row] = replays ? generated_token(slot) : active ? request(slot).last_token : 0;
        decode.start_positions[row] = active ? static_cast<int32_t>(request(slot).computed) : 0;
        decode.lengths[row] = active ? static_cast<int32_t>(request(slot).computed + 1) : 0;
        if (active && !replays)
            advance_sampling(decode.sampling[row], request(slot));
        else
            decode.sampling[row].flags = 0;
    }
}

// The generated token that a resumed request computes next.
template <class Port>
BLINK_DEV int32_t Scheduler<Port>::generated_token(uint32_t slot) const {
    const Request& r = request(slot);
    const uint32_t at = r.record.output_offset + r.computed - r.record.prompt_length;
    return ring.outputs(ring.range_of(slot))[at];
}

template <class Port>
BLINK_DEV void Scheduler<Port>::fill_sampling(SamplingRow& row, uint32_t slot) const {
    const Request& r = request(slot);
    const RequestRecord& record = r.record;
    const uint32_t range = ring.range_of(slot);
    row.seed = record.seed;
    row.prompt = reinterpret_cast<uint64_t>(ring.prompts(range) + record.prompt_offset);
    row.output = reinterpret_cast<uint64_t>(ring.outputs(range) + record.output_offset);
    row.bias = reinterpret_cast<uint64_t>(ring.aux(range) + record.bias_offset);
    row.stop = reinterpret_cast<uint64_t>(ring.aux(range) + record.stop_offset);
    row.grammar = reinterpret_cast<uint64_t>(ring.aux(range) + record.grammar_offset);
    row.grammar_words = record.grammar_words;
    row.grammar_state = 0;
    row.grammar_length = 0;
    row.kept = 0;
    row.prompt_length = record.prompt_length;
    row.bias_count = record.bias_count;
    row.stop_count = record.stop_count;
    row.logprobs = record.logprobs;
    row.top_k = record.top_k;
    row.temperature = record.temperature;
    row.top_p = record.top_p;
    row.min_p = record.min_p;
    row.repetition_penalty = record.repetition_penalty;
    row.presence_penalty = record.presence_penalty;
    row.frequency_penalty = record.frequency_penalty;
    advance_sampling(row, r);
}

// What changes with every token. The rest of a decode row is filled when its request joins.
template <class Port>
BLINK_DEV void Scheduler<Port>::advance_sampling(SamplingRow& row, const Request& r) const {
    row.output_length = r.generated;
    row.position = r.length();
    row.flags = kSamplingActive | (r.generated < r.record.min_tokens ? kSamplingSuppressEnd : 0u) |
                ((r.record.flags & kIgnoreEos) != 0 ? kSamplingKeepEos : 0u);
}

template <class Port>
BLINK_DEV void Scheduler<Port>::launch(Flight next) {
    port.sync();  // every lane's inputs are written
    if (leader()) {
        const bool prefill = next.phase == Phase::kPrefill;
        s.launches[static_cast<uint32_t>(next.phase)] += 1;
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
        s.prefilled_last = prefill;
        s.window_launches += 1;
        count_launch(next);
        trace(TraceKind::kLaunch, next.graph, next.sequences, prefill ? s.plan_tokens : s.decoding_count);
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
    const bool prefill = launched.phase == Phase::kPrefill;
    (prefill ? s.counters.prefill_launches : s.counters.decode_launches) += 1;
    if (prefill) s.counters.prompt_tokens += s.plan_tokens;
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

template <class Port>
BLINK_DEV bool Scheduler<Port>::has_landed() {
    const uint32_t due = s.launches[static_cast<uint32_t>(s.flight.phase)];
    return port.any(leader() && port.load_acquire(buffers(s.flight.phase).completion) == due);
}

// Takes over the results of the graph that has ended.
template <class Port>
BLINK_DEV void Scheduler<Port>::land() {
    const Phase phase = s.flight.phase;
    const PhaseBuffers& step = buffers(phase);
    const uint32_t error = *step.error;
    const uint32_t sequences = phase == Phase::kPrefill ? s.plan_count : s.row_limit;
    uint32_t delivered = 0, joined = 0;
    for (uint32_t i = port.row_lane(); i < sequences; i += port.lanes()) {
        const uint32_t slot = phase == Phase::kPrefill ? s.plan[i].slot : s.row_slots[i];
        const int32_t token = step.output_tokens[i];
        if (slot == kNoSlot) continue;
        Request& r = request(slot);
        if (phase == Phase::kDecode && !r.decoding) continue;
        r.computed += phase == Phase::kPrefill ? s.plan[i].tokens : 1;
        if (error != 0) {
            r.ending = Reason::kEngineError;
            port.store(&s.row_ended, true);
        }
        if (r.computed < prefill_length(r, engine)) continue;
        if (!r.decoding) {
            joined += 1;
            r.decoding = true;
            fill_sampling(buffers(Phase::kDecode).sampling[r.row], slot);
        }
        if (r.computed < r.length()) continue;  // it still replays what it had generated
        if (r.ending == Reason::kNone) {
            deliver(slot, i, token);
            delivered += r.ending != Reason::kBadToken;
        }
        if (r.ending != Reason::kNone) port.store(&s.row_ended, true);
    }
    delivered = port.sum(delivered);
    joined = port.sum(joined);
    if (phase == Phase::kPrefill) {
        const PhaseBuffers& decode = buffers(Phase::kDecode);
        for (uint32_t i = 0; i < s.plan_count; ++i) {
            const Request& r = request(s.plan[i].slot);
            if (!r.decoding) continue;
            const uint64_t table = static_cast<uint64_t>(r.row) * engine.max_blocks;
            for (uint32_t b = port.lane(); b < r.blocks; b += port.lanes())
                decode.block_tables[table + b] = s.row_blocks[table + b];
        }
    }
    if (leader()) {
        s.landed_ns = port.now_ns();
        const uint64_t took_ns = s.landed_ns - s.flight.started_ns;
        s.graph_ns[s.flight.graph] = took_ns < 0xffffffffu ? static_cast<uint32_t>(took_ns) : 0xffffffffu;
        s.flight.active = false;
        s.decoding_count += joined;
        *step.error = 0;
        s.counters.steps += 1;
        s.counters.generated_tokens += delivered;
        if (error != 0) port.store(&ring.header->error, error);
    }
    port.sync();
}

// Hands one sampled token to its request. One lane, its own request.
template <class Port>
BLINK_DEV void Scheduler<Port>::deliver(uint32_t slot, uint32_t index, int32_t token) {
    const PhaseBuffers& step = buffers(s.flight.phase);
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
