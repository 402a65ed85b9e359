// Writing a step's inputs into its buffers. Part of scheduler.h.
#pragma once

#include "scheduler.h"

namespace blink {

// Fills the step buffers for a decode step of the rows, for the planned prefill, or for both.
template <class Port>
BLINK_DEV Flight Scheduler<Port>::prepare(bool decodes, bool prefills) {
    port.stamp(Moment::kDecided);
    const Choice choice = choose(decodes, prefills);
    const GraphKey& key = choice.key;
    const bool decode = uses(key.phase, Phase::kDecode);
    if (uses(key.phase, Phase::kPrefill)) fill_prefill(part_of(key, Phase::kPrefill).sequences);
    if (decode)
        fill_decode(part_of(key, Phase::kDecode).sequences);
    else
        pause_rows();
    return {true, key.phase, choice.graph, decode ? prefills ? s.plan_rows : s.row_limit : 0, 0, 0};
}

// While a graph runs: looks up what the next step is launched with if it decodes the same rows. Leader only.
template <class Port>
BLINK_DEV void Scheduler<Port>::foresee() {
    s.expected_rows = s.row_limit;
    if (s.row_limit == 0) return;
    const uint32_t graph = port.load(&engine.decode_lookup[s.row_limit - 1]);
    s.expected_graph = graph;
    s.expected_sequences = engine.graphs[graph].sequences;
    port.expect(graph);
}

// The graph for the step. What was foreseen may be a step old: the table has come to name a smaller
// graph since, but the larger one can be launched still.
template <class Port>
BLINK_DEV Choice Scheduler<Port>::choose(bool decodes, bool prefills) {
    if (!prefills && s.expected_rows == s.row_limit)
        return {s.expected_graph, {Phase::kDecode, s.expected_sequences, s.expected_sequences}};
    const uint32_t graph = choose_graph(decodes, prefills);
    return {graph, engine.graphs[graph]};
}

// The smallest graph that holds the step; for a prefill with a decode step that no graph holds
// together, one for the prefill alone: they take turns then.
template <class Port>
BLINK_DEV uint32_t Scheduler<Port>::choose_graph(bool decodes, bool prefills) {
    const uint32_t column = (s.plan_tokens - 1) / engine.token_granularity;
    if (decodes && prefills) {
        const uint32_t at = (s.plan_rows - 1) * column_count(engine.max_mixed_tokens) + column;
        const uint32_t graph = look_up(&engine.mixed_lookup[at]);
        if (graph != kNoGraph) return graph;
    }
    if (!prefills) return look_up(&engine.decode_lookup[s.row_limit - 1]);
    return look_up(&engine.prefill_lookup[(s.plan_count - 1) * column_count(engine.max_prefill_tokens) + column]);
}

// The host may put a smaller graph into the table meanwhile, so one lane reads it for all: what the
// lanes fill is what is launched.
template <class Port>
BLINK_DEV uint32_t Scheduler<Port>::look_up(const uint16_t* entry) {
    return port.sum(leader() ? port.load(entry) : 0);
}

// Shows that rows which decode wait for others' prefill.
template <class Port>
BLINK_DEV void Scheduler<Port>::pause_rows() {
    for (uint32_t row = port.row_lane(); row < s.row_limit; row += port.lanes()) {
        const uint32_t slot = s.row_slots[row];
        if (slot != kNoSlot && request(slot).decoding) publish_later(request(slot), SlotState::kDecodePaused);
    }
}

template <class Port>
BLINK_DEV void Scheduler<Port>::fill_prefill(uint32_t sequences) {
    const PhaseBuffers& prefill = buffers(Phase::kPrefill);
    for (uint32_t i = 0; i < s.plan_count; ++i) {
        const PrefillEntry entry = s.plan[i];
        Request& r = request(entry.slot);
        const uint32_t range = r.range;
        const int32_t* prompt = ring.prompts(range) + r.record.prompt_offset;
        const int32_t* output = ring.outputs(range) + r.record.output_offset;
        for (uint32_t t = port.lane(); t < entry.tokens; t += port.lanes()) {
            const uint32_t at = entry.start + t;
            const int32_t token = at < r.record.prompt_length ? prompt[at] : output[at - r.record.prompt_length];
            prefill.token_ids[entry.packed_at + t] = known_token(r, token);
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
BLINK_DEV void Scheduler<Port>::fill_decode(uint32_t rows) {
    const PhaseBuffers& decode = buffers(Phase::kDecode);
    for (uint32_t row = port.row_lane(); row < rows; row += port.lanes()) {
        const uint32_t slot = row < s.row_limit ? s.row_slots[row] : kNoSlot;
        SamplingRow& sampling = decode.sampling[row];
        int32_t token = 0;
        uint32_t start = 0, length = 0, flags = 0;
        if (slot != kNoSlot) {
            const StepWords now(request(slot));
            read_together(now.decoding, now.last_token, now.computed, now.generated, now.prompt_length, now.min_tokens,
                          now.flags);
            if (now.decoding) {
                token = now.last_token;
                start = now.computed;
                length = start + 1;
                if (length < now.length()) {
                    token = generated_token(slot);
                } else {
                    flags = sampling_flags(now);
                    sampling.output_length = now.generated;
                    sampling.position = now.length();
                }
            }
        }
        decode.token_ids[row] = token;
        decode.start_positions[row] = static_cast<int32_t>(start);
        decode.lengths[row] = static_cast<int32_t>(length);
        sampling.flags = flags;
    }
}

// The generated token that a resumed request computes next.
template <class Port>
BLINK_DEV int32_t Scheduler<Port>::generated_token(uint32_t slot) {
    Request& r = request(slot);
    const uint32_t at = r.record.output_offset + r.computed - r.record.prompt_length;
    return known_token(r, ring.outputs(r.range)[at]);
}

// A token read from an arena, which frontends can write: its request ends where it is none.
template <class Port>
BLINK_DEV int32_t Scheduler<Port>::known_token(Request& r, int32_t token) {
    if (token >= 0 && static_cast<uint32_t>(token) < engine.vocabulary_size) return token;
    r.ending = Reason::kInvalidRecord;
    port.store(&s.row_ended, true);
    return 0;
}

template <class Port>
BLINK_DEV void Scheduler<Port>::fill_sampling(SamplingRow& row, uint32_t slot) const {
    const Request& r = request(slot);
    const RequestRecord record = r.record;  // a copy: read before the first word is written
    const uint32_t range = r.range;
    row.seed = record.seed;
    row.prompt = reinterpret_cast<uint64_t>(ring.prompts(range) + record.prompt_offset);
    row.output = reinterpret_cast<uint64_t>(ring.outputs(range) + record.output_offset);
    row.bias = reinterpret_cast<uint64_t>(ring.aux(range) + record.bias_offset);
    row.stop = reinterpret_cast<uint64_t>(ring.aux(range) + record.stop_offset);
    row.grammar = reinterpret_cast<uint64_t>(ring.aux(range) + record.grammar_offset);
    row.grammar_words = record.grammar_words;
    row.grammar_state = 0;
    row.grammar_length = 0;
    row.kept = r.kept;
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
    // What changes with every token: the rest of a decode row is filled when its request joins.
    row.output_length = r.generated;
    row.position = r.length();
    row.flags = sampling_flags(StepWords(r));
}

// Of a row whose next token is sampled.
template <class Port>
BLINK_DEV uint32_t Scheduler<Port>::sampling_flags(const StepWords& r) const {
    return kSamplingActive | (r.generated < r.min_tokens ? kSamplingSuppressEnd : 0u) |
           ((r.flags & kIgnoreEos) != 0 ? kSamplingKeepEos : 0u);
}

}  // namespace blink
