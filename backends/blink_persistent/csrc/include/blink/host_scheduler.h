// An engine on a host: its step buffers, its tables, and its scheduler with the mailbox between them.
#pragma once

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "port_host.h"
#include "scheduler_thread.h"

namespace blink {

// Memory of a phase's buffers, for engines that run on the host.
class HostPhaseBuffers {
  public:
    HostPhaseBuffers(uint32_t sequences, uint32_t tokens, uint32_t max_blocks)
        : token_ids(tokens), start_positions(sequences), lengths(sequences), rows(sequences), cu_seqlens(sequences + 1),
          block_tables(static_cast<size_t>(sequences) * max_blocks), sampling(sequences), output_tokens(sequences),
          output_logprobs(sequences), output_top_ids(static_cast<size_t>(sequences) * kMaxTopLogprobs),
          output_top_logprobs(static_cast<size_t>(sequences) * kMaxTopLogprobs) {
        for (uint32_t i = 0; i < sequences; ++i) rows[i] = cu_seqlens[i] = static_cast<int32_t>(i);
        cu_seqlens[sequences] = static_cast<int32_t>(sequences);
    }

    PhaseBuffers pointers() {
        return {token_ids.data(),
                start_positions.data(),
                lengths.data(),
                rows.data(),
                cu_seqlens.data(),
                block_tables.data(),
                sampling.data(),
                output_tokens.data(),
                output_logprobs.data(),
                output_top_ids.data(),
                output_top_logprobs.data(),
                &completion,
                &error};
    }

    std::vector<int32_t> token_ids, start_positions, lengths, rows, cu_seqlens, block_tables;
    std::vector<SamplingRow> sampling;
    std::vector<int32_t> output_tokens;
    std::vector<float> output_logprobs;
    std::vector<int32_t> output_top_ids;
    std::vector<float> output_top_logprobs;
    uint32_t completion = 0;
    uint32_t error = 0;
};

// Shapes and lookup tables of a host engine; owns what EngineTables points at.
struct HostEngine {
    EngineTables tables{};
    std::vector<GraphKey> graphs;
    std::vector<uint16_t> decode_lookup;
    std::vector<uint16_t> prefill_lookup;
    std::vector<uint16_t> mixed_lookup;
    std::vector<int32_t> eos_token_ids;
    std::unique_ptr<HostPhaseBuffers> decode;
    std::unique_ptr<HostPhaseBuffers> prefill;

    // Completes `tables` from the vectors; without a prefill_chunk it is the largest step. Raises
    // invalid_argument where they do not fit its shapes.
    void finish() {
        if (tables.token_granularity == 0) throw std::invalid_argument("token granularity must be positive");
        if (tables.prefill_chunk == 0) tables.prefill_chunk = tables.max_prefill_tokens;
        const uint32_t columns = column_count(tables.max_prefill_tokens);
        if (graphs.empty() || graphs.size() > 0xffff) throw std::invalid_argument("graph grid: 1 to 65535 keys");
        if (decode_lookup.size() != tables.max_rows) throw std::invalid_argument("decode lookup: one entry a row");
        if (prefill_lookup.size() != static_cast<size_t>(tables.max_sequences) * columns)
            throw std::invalid_argument("prefill lookup: max_sequences x token columns");
        check_lookups(columns);
        check_mixed(column_count(tables.max_mixed_tokens));
        if (tables.max_prefill_tokens < 2) throw std::invalid_argument("a prefill launch must hold two tokens");
        if (tables.prefill_chunk < 2 || tables.prefill_chunk > tables.max_prefill_tokens)
            throw std::invalid_argument("prefill chunk: 2 tokens to those of the largest prefill");
        if (tables.rows_movable != 0 && tables.block_count < 2)
            throw std::invalid_argument("block count: the null block and at least one more");
        if (tables.block_size == 0 ||
            static_cast<uint64_t>(tables.block_size) * tables.max_blocks < tables.context_length)
            throw std::invalid_argument("block size x max blocks must cover the context length");
        decode = std::make_unique<HostPhaseBuffers>(tables.max_rows, tables.max_rows, tables.max_blocks);
        prefill =
            std::make_unique<HostPhaseBuffers>(tables.max_sequences, tables.max_prefill_tokens, tables.max_blocks);
        tables.buffers[0] = decode->pointers();
        tables.buffers[1] = prefill->pointers();
        tables.graphs = graphs.data();
        tables.decode_lookup = decode_lookup.data();
        tables.prefill_lookup = prefill_lookup.data();
        tables.mixed_lookup = mixed_lookup.data();
        tables.eos_token_ids = eos_token_ids.data();
        tables.graph_count = static_cast<uint32_t>(graphs.size());
        tables.eos_count = static_cast<uint32_t>(eos_token_ids.size());
    }

  private:
    uint32_t column_count(uint32_t most_tokens) const {
        return (most_tokens + tables.token_granularity - 1) / tables.token_granularity;
    }

    // Every entry must name a graph of its phase, within the limits, that holds the entry's steps.
    void check_lookups(uint32_t columns) const {
        for (uint32_t rows = 1; rows <= tables.max_rows; ++rows)
            check_graph(decode_lookup[rows - 1], Phase::kDecode, rows, rows);
        for (uint32_t sequences = 1; sequences <= tables.max_sequences; ++sequences)
            for (uint32_t column = 0; column < columns; ++column)
                check_graph(prefill_lookup[(sequences - 1) * columns + column], Phase::kPrefill, sequences,
                            std::min((column + 1) * tables.token_granularity, tables.max_prefill_tokens));
    }

    // As above; an entry may name no graph.
    void check_mixed(uint32_t columns) const {
        if (mixed_lookup.size() != static_cast<size_t>(tables.max_rows) * columns)
            throw std::invalid_argument("mixed lookup: max_rows x token columns");
        if (columns > 0 && (tables.max_mixed_tokens < 2 || tables.max_mixed_tokens > tables.max_prefill_tokens ||
                            tables.mixed_sequences == 0 || tables.mixed_sequences > tables.max_sequences))
            throw std::invalid_argument("mixed keys: within the limits of prefill, and two tokens at least");
        for (size_t at = 0; at < mixed_lookup.size(); ++at) {
            const auto rows = static_cast<uint32_t>(at / columns + 1), column = static_cast<uint32_t>(at % columns);
            if (mixed_lookup[at] == kNoGraph) continue;
            check_graph(mixed_lookup[at], Phase::kMixed, tables.mixed_sequences,
                        std::min((column + 1) * tables.token_granularity, tables.max_mixed_tokens));
            const GraphKey& key = graphs[mixed_lookup[at]];
            if (key.rows < rows || key.rows > tables.max_rows || key.tokens > tables.max_prefill_tokens)
                throw std::invalid_argument("lookup table names a mixed graph of too few or too many rows or tokens");
        }
    }

    void check_graph(uint16_t graph, Phase phase, uint32_t sequences, uint32_t tokens) const {
        const uint32_t limit = phase == Phase::kDecode ? tables.max_rows : tables.max_sequences;
        if (graph >= graphs.size() || graphs[graph].phase != phase || graphs[graph].sequences > limit)
            throw std::invalid_argument("lookup table names a graph of another phase or beyond the limits");
        if (graphs[graph].sequences < sequences || graphs[graph].tokens < tokens)
            throw std::invalid_argument("lookup table names a graph that is too small for its step");
    }
};

// Descriptors that others own; they must stay open until the scheduler was stopped.
struct Doorbells {
    int scheduler;            // rung by frontends, the engine thread and the host
    std::vector<int> ranges;  // rung by the scheduler, one a range; may be empty
};

class HostScheduler {
  public:
    HostScheduler(void* ring_memory, const EngineTables& engine, Doorbells bells, uint32_t trace_capacity)
        : thread_(ring_memory, engine, bells.scheduler, HostPort(mailbox_, std::move(bells.ranges)), trace_capacity) {}

    ~HostScheduler() { stop(); }
    HostScheduler(const HostScheduler&) = delete;
    HostScheduler& operator=(const HostScheduler&) = delete;

    Outcome pass() { return thread_.pass(); }
    void start() { thread_.start(); }
    void command(Command command) { thread_.command(command); }
    void close() { thread_.close(); }

    // Stops between two steps, joins the thread, then releases a waiting engine thread, which must
    // serve until then: a step in flight is waited for. Uses the doorbells for the last time.
    void stop() {
        thread_.stop();
        mailbox_.close();
    }

    // The engine thread's side: the next graph to run, or none after the timeout.
    std::optional<uint32_t> next_launch(int timeout_ms) { return mailbox_.take(timeout_ms); }

    // The running graph has ended; `error` is not 0 where it failed as a whole.
    void complete(Phase phase, uint32_t error) {
        for (uint32_t part = first_part(phase); part < end_part(phase); ++part) {
            const PhaseBuffers& step = engine().buffers[part];
            HostPort::store(step.error, error);
            HostPort::store_release(step.completion, *step.completion + 1);
        }
        thread_.wake();
    }

    SchedulerCondition condition() const { return thread_.condition(); }
    const EngineTables& engine() const { return thread_.engine(); }
    SchedulerState& state() { return thread_.state(); }

  private:
    LaunchMailbox mailbox_;
    SchedulerThread<HostPort> thread_;
};

}  // namespace blink
