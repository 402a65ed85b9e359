// The scheduler on a host: its memory, its thread, and the mailbox to the engine thread.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "port_host.h"

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
    std::vector<int32_t> eos_token_ids;
    std::unique_ptr<HostPhaseBuffers> decode;
    std::unique_ptr<HostPhaseBuffers> prefill;

    // Completes `tables` from the vectors. Raises invalid_argument where they do not fit its shapes.
    void finish() {
        if (tables.token_granularity == 0) throw std::invalid_argument("token granularity must be positive");
        const uint32_t columns = (tables.max_prefill_tokens + tables.token_granularity - 1) / tables.token_granularity;
        if (graphs.empty() || graphs.size() > 0xffff) throw std::invalid_argument("graph grid: 1 to 65535 keys");
        if (decode_lookup.size() != tables.max_rows) throw std::invalid_argument("decode lookup: one entry a row");
        if (prefill_lookup.size() != static_cast<size_t>(tables.max_sequences) * columns)
            throw std::invalid_argument("prefill lookup: max_sequences x token columns");
        check_lookups(columns);
        if (tables.max_prefill_tokens < 2) throw std::invalid_argument("a prefill launch must hold two tokens");
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
        tables.eos_token_ids = eos_token_ids.data();
        tables.graph_count = static_cast<uint32_t>(graphs.size());
        tables.eos_count = static_cast<uint32_t>(eos_token_ids.size());
    }

  private:
    // Every entry must name a graph of its phase, within the limits, that holds the entry's steps.
    void check_lookups(uint32_t columns) const {
        for (uint32_t rows = 1; rows <= tables.max_rows; ++rows)
            check_graph(decode_lookup[rows - 1], Phase::kDecode, rows, rows);
        for (uint32_t sequences = 1; sequences <= tables.max_sequences; ++sequences)
            for (uint32_t column = 0; column < columns; ++column)
                check_graph(prefill_lookup[(sequences - 1) * columns + column], Phase::kPrefill, sequences,
                            std::min((column + 1) * tables.token_granularity, tables.max_prefill_tokens));
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
    static constexpr int kIdleWaitMs = 100;  // the longest silence of the heartbeat
    static constexpr int kBusyWaitMs = 5;    // between scans while a step runs and nobody rings

    HostScheduler(void* ring_memory, const EngineTables& engine, Doorbells bells, uint32_t trace_capacity)
        : engine_(engine), ring_(view_ring(ring_memory)), bells_(std::move(bells)), port_(mailbox_, bells_.ranges) {
        const uint64_t bytes = lay_out_state(nullptr, ring_.slot_count, engine_, trace_capacity);
        memory_.resize((bytes + 63) / 64);
        lay_out_state(memory_.front().bytes, ring_.slot_count, engine_, trace_capacity);
        initialize_state(state(), engine_);
        scheduler_.emplace(port_, ring_, engine_, state(), &control_);
        HostPort::store_release(&ring_.header->accepting, 1u);
    }

    ~HostScheduler() { stop(); }
    HostScheduler(const HostScheduler&) = delete;
    HostScheduler& operator=(const HostScheduler&) = delete;

    // One pass on the calling thread, for tests; not while the thread runs.
    Outcome pass() { return scheduler_->pass(); }

    // Runs passes on a thread of its own until stop(), parking and resuming on command.
    void start() {
        if (stopped_ || thread_.joinable()) throw std::logic_error("the scheduler runs already, or was stopped");
        thread_ = std::thread([this] { run(); });
    }

    void command(Command command) {
        HostPort::store_release(&control_.command, static_cast<uint32_t>(command));
        ring_bell(bells_.scheduler);
    }

    // From here on newly claimed submits end with reason CLOSED.
    void close() {
        HostPort::store_release(&control_.close, 1u);
        ring_bell(bells_.scheduler);
    }

    // Stops between two steps, joins the thread, then releases a waiting engine thread, which must
    // serve until then: a step in flight is waited for. Uses the doorbells for the last time.
    void stop() {
        if (std::exchange(stopped_, true)) return;
        command(Command::kStop);
        if (thread_.joinable()) thread_.join();
        mailbox_.close();
    }

    // The engine thread's side: the next graph to run, or none after the timeout.
    std::optional<uint32_t> next_launch(int timeout_ms) { return mailbox_.take(timeout_ms); }

    // The running graph has ended; `error` is not 0 where it failed as a whole.
    void complete(Phase phase, uint32_t error) {
        const PhaseBuffers& step = engine_.buffers[static_cast<uint32_t>(phase)];
        HostPort::store(step.error, error);
        HostPort::store_release(step.completion, *step.completion + 1);
        ring_bell(bells_.scheduler);
    }

    SchedulerCondition condition() const {
        return static_cast<SchedulerCondition>(HostPort::load_acquire(&ring_.header->condition));
    }
    const EngineTables& engine() const { return engine_; }
    SchedulerState& state() { return *reinterpret_cast<SchedulerState*>(memory_.front().bytes); }

  private:
    struct alignas(64) Line {
        uint8_t bytes[64];
    };

    void announce(SchedulerCondition condition) {
        HostPort::store_release(&ring_.header->condition, static_cast<uint32_t>(condition));
    }

    void run() {
        announce(SchedulerCondition::kRunning);
        for (;;) {
            switch (scheduler_->pass()) {
                case Outcome::kProgress:
                case Outcome::kRelaunch:  // on a host the same instance goes on
                    break;
                case Outcome::kBusy: wait_for_bell(bells_.scheduler, kBusyWaitMs); break;
                case Outcome::kIdle: wait_for_bell(bells_.scheduler, kIdleWaitMs); break;
                case Outcome::kPark: park(); break;
                case Outcome::kStop: announce(SchedulerCondition::kStopped); return;
                case Outcome::kFailed: announce(SchedulerCondition::kFailed); return;
            }
        }
    }

    void park() {
        HostPort::store(&ring_.header->parks, ring_.header->parks + 1);
        announce(SchedulerCondition::kParked);
        while (HostPort::load_acquire(&control_.command) == static_cast<uint32_t>(Command::kPark)) {
            wait_for_bell(bells_.scheduler, kIdleWaitMs);
            HostPort::store(&ring_.header->heartbeat_ns, HostPort::now_ns());
        }
        announce(SchedulerCondition::kRunning);
    }

    EngineTables engine_;
    RingView ring_;
    Doorbells bells_;
    LaunchMailbox mailbox_;
    HostPort port_;
    ControlWords control_{static_cast<uint32_t>(Command::kRun), 0};
    std::vector<Line> memory_;
    std::optional<Scheduler<HostPort>> scheduler_;
    std::thread thread_;
    bool stopped_ = false;
};

}  // namespace blink
