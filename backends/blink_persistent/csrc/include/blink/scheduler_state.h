// The scheduler's private memory. It outlives a launch window, a park and the kernel itself.
#pragma once

#include "provisioned.h"
#include "ring_layout.h"

namespace blink {

constexpr uint32_t kNoSlot = 0xffffffffu;
constexpr int32_t kNoRow = -1;
constexpr int32_t kNullBlock = 0;

// The host's words to the scheduler; in host memory, read by one thread, written by no CUDA call.
struct alignas(8) ControlWords {
    uint32_t command;  // Command
    uint32_t close;    // 1: accept no further submit
};

// One claimed slot. `record` is a private copy: a frontend cannot change it under a running step.
struct Request {
    RequestRecord record;
    uint64_t number;  // order of claim
    uint32_t ticket;
    uint32_t generated;
    uint32_t computed;  // tokens whose KV entries exist
    uint32_t blocks;    // KV blocks held
    uint32_t next;      // neighbours in a waiting queue
    uint32_t previous;
    int32_t row;
    int32_t last_token;
    uint32_t kept;   // its sampling row's, while it has none among the decode rows
    uint32_t range;  // of its slot
    SlotState state;
    Reason ending;  // set: to be completed at the next step boundary
    bool waiting;   // in a waiting queue
    bool decoding;  // its whole prompt is computed: part of decode steps
    bool fresh;     // on a row, with a state or tokens that are shown after the next launch

    BLINK_HD uint32_t length() const { return record.prompt_length + generated; }
};

// Has these words read here, together. The compiler would read each where it is first used, behind
// branches that wait for the words before it.
template <class... Words>
BLINK_HD void read_together(Words... words) {
    (..., [](uint32_t word) { asm volatile("" ::"r"(word)); }(static_cast<uint32_t>(words)));
}

// What an ordinary step asks of a request.
struct StepWords {
    BLINK_HD explicit StepWords(const Request& r)
        : decoding(r.decoding), ending(r.ending), computed(r.computed), generated(r.generated), blocks(r.blocks),
          range(r.range), last_token(r.last_token), prompt_length(r.record.prompt_length),
          output_offset(r.record.output_offset), max_tokens(r.record.max_tokens), min_tokens(r.record.min_tokens),
          logprobs(r.record.logprobs), stop_count(r.record.stop_count), flags(r.record.flags) {}

    BLINK_HD uint32_t length() const { return prompt_length + generated; }

    bool decoding;
    Reason ending;
    uint32_t computed;
    uint32_t generated;
    uint32_t blocks;
    uint32_t range;
    int32_t last_token;
    uint32_t prompt_length;
    uint32_t output_offset;
    uint32_t max_tokens;
    uint32_t min_tokens;
    uint32_t logprobs;
    uint32_t stop_count;
    uint32_t flags;
};

// KV blocks that a request needs for all tokens it has.
BLINK_HD inline uint32_t blocks_for(const Request& r, const EngineTables& engine) {
    return (r.length() + engine.block_size - 1) / engine.block_size;
}

// Tokens of a request that are computed by prefill.
BLINK_HD inline uint32_t prefill_length(const Request& r, const EngineTables& engine) {
    return engine.deterministic != 0 ? r.record.prompt_length : r.length();
}
BLINK_HD inline uint32_t prefill_length(const StepWords& r, const EngineTables& engine) {
    return engine.deterministic != 0 ? r.prompt_length : r.length();
}

struct WaitingQueue {
    uint32_t head;
    uint32_t tail;
};

// One sequence of a prefill launch: `tokens` tokens from position `start` on.
struct PrefillEntry {
    uint32_t slot;
    uint32_t start;
    uint32_t tokens;
    uint32_t packed_at;   // its first token in the packed batch
    uint32_t new_blocks;  // taken from free_blocks[blocks_from ...]
    uint32_t blocks_from;
};

struct RowMove {
    uint32_t from;
    uint32_t to;
};

enum class TraceKind : uint32_t {
    kClaim = 1,    // slot, ticket
    kAdmit = 2,    // slot, row
    kLaunch = 3,   // graph, sequences, tokens; of a mixed step those of its prefill
    kEnd = 4,      // slot, ticket, reason
    kPreempt = 5,  // slot, ticket
    kMove = 6,     // from, to
    kRelaunch = 7,
    kPark = 8,
};

struct TraceEvent {
    TraceKind kind;
    uint32_t a, b, c;
};

struct Flight {
    bool active;
    Phase phase;
    uint32_t graph;
    uint32_t rows;  // of its decode step; 0: it has none
    uint64_t started_ns;
    uint64_t due_ns;  // its end, if it takes as long as its graph took last
};

// What the ring's header shows under the same names.
struct Counters {
    uint64_t steps;
    uint64_t decode_launches;
    uint64_t prefill_launches;
    uint64_t mixed_launches;
    uint64_t tail_launches;
    uint64_t launch_retries;
    uint64_t claims;
    uint64_t completions;
    uint64_t preemptions;
    uint64_t row_moves;
    uint64_t prompt_tokens;
    uint64_t generated_tokens;
    uint64_t gaps;    // times that a step followed the one before it without a rest between them
    uint64_t gap_ns;  // from the end of a step, as noticed, to the launch of the next: over all gaps
};

struct SchedulerState {
    Request* requests;        // [slot_count]
    uint32_t* row_slots;      // [max_rows] kNoSlot where free
    int32_t* row_blocks;      // [max_rows, max_blocks]
    int32_t* free_blocks;     // [block_count], a stack
    uint32_t* events;         // [slot_count] found by a scan: slot * 2 + is_cancel
    PrefillEntry* plan;       // [max_sequences]
    uint32_t* graph_ns;       // [graph_count] how long each graph took last; 0: not known
    uint32_t* retiring;       // [max_rows] rows
    RowMove* moves;           // [max_rows]
    TraceEvent* trace;        // [trace_capacity]
    uint32_t trace_capacity;  // 0: no trace
    uint32_t trace_count;

    WaitingQueue waiting[kPriorities];
    uint32_t launches[kPhases];  // of graphs that use a phase's buffers: the last has ended when `completion` is this
    Flight flight;
    Counters counters;
    uint32_t waiting_count;
    uint32_t free_count;  // of free_blocks
    uint32_t rows_used;
    uint32_t row_limit;       // one past the highest row in use
    uint32_t decoding_count;  // rows that a decode step serves
    uint32_t partial;         // the one request whose prompt is computed in part, or kNoSlot
    uint32_t plan_count;
    uint32_t plan_tokens;
    uint32_t plan_budget;  // tokens that the plan may have
    uint32_t plan_rows;    // row_limit before the plan admitted anybody: rows that may decode beside it
    uint32_t retiring_count;
    uint32_t move_count;
    uint32_t event_count;
    uint32_t scan_start;  // rotates, so that no frontend is always first
    uint32_t window_launches;
    uint32_t failed;              // a launch error: nothing more is launched
    uint32_t expected_rows;       // row_limit of the decode step that is expected next, or 0
    uint32_t expected_graph;      // for it
    uint32_t expected_sequences;  // of that graph
    uint64_t next_number;
    uint64_t landed_ns;  // when the last step's end was noticed; 0: there was a rest since
    Command command;
    bool accepting;
    bool row_ended;          // a request on a row has its ending set
    bool prefilled_last;     // the last launch was a prefill, and no mixed step
    bool completed_any;      // in this pass: a release may be waiting already
    bool dirty[kMaxRanges];  // ranges whose owner has something to read
};

// The state and each of its arrays begin on a line.
struct alignas(alignof(Request)) StateLine {
    uint8_t bytes[alignof(Request)];
};

// Lays the state and its arrays out in one zeroed region, aligned as a StateLine. `at` gives the bytes needed for null.
class StateLayout {
  public:
    BLINK_HD explicit StateLayout(uint8_t* at) : base_(at) {}

    template <class T>
    BLINK_HD T* take(uint64_t count) {
        static_assert(alignof(T) <= sizeof(StateLine), "the state's arrays are aligned by lines");
        used_ = (used_ + sizeof(StateLine) - 1) / sizeof(StateLine) * sizeof(StateLine);
        T* result = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
        used_ += count * sizeof(T);
        return result;
    }
    BLINK_HD uint64_t used() const { return used_; }

  private:
    uint8_t* base_;
    uint64_t used_ = 0;
};

// Bytes of the state of such a scheduler; with memory, also makes it there, with its pointers set.
BLINK_HD inline uint64_t lay_out_state(uint8_t* memory, uint32_t slot_count, const EngineTables& engine,
                                       uint32_t trace_capacity) {
    StateLayout layout(memory);
    auto* state = layout.take<SchedulerState>(1);
    SchedulerState s{};
    s.requests = layout.take<Request>(slot_count);
    s.row_slots = layout.take<uint32_t>(engine.max_rows);
    s.row_blocks = layout.take<int32_t>(static_cast<uint64_t>(engine.max_rows) * engine.max_blocks);
    s.free_blocks = layout.take<int32_t>(engine.block_count);
    s.events = layout.take<uint32_t>(slot_count);
    s.plan = layout.take<PrefillEntry>(engine.max_sequences);
    s.graph_ns = layout.take<uint32_t>(engine.graph_count);
    s.retiring = layout.take<uint32_t>(engine.max_rows);
    s.moves = layout.take<RowMove>(engine.max_rows);
    s.trace = layout.take<TraceEvent>(trace_capacity);
    s.trace_capacity = trace_capacity;
    if (state != nullptr) *state = s;
    return layout.used();
}

// Values of a scheduler that has never run; the memory was zeroed and laid out before.
BLINK_HD inline void initialize_state(SchedulerState& s, const EngineTables& engine) {
    for (uint32_t p = 0; p < kPriorities; ++p) s.waiting[p] = {kNoSlot, kNoSlot};
    for (uint32_t r = 0; r < engine.max_rows; ++r) s.row_slots[r] = kNoSlot;
    if (engine.rows_movable != 0) {  // block 0 is the null block; low numbers are taken first
        for (uint32_t b = 1; b < engine.block_count; ++b)
            s.free_blocks[s.free_count++] = static_cast<int32_t>(engine.block_count - b);
    }
    s.partial = kNoSlot;
    s.accepting = true;
}

}  // namespace blink
