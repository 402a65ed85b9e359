// The scheduler: one source for GPU and host (paper section 4.2).
//
// All lanes of one thread block (256 on a GPU, 1 on a host) run these lines together. What one
// lane decides is written to SchedulerState and read by all after `port.sync()`. A Port gives:
//
//   lane(), lanes(), sync()          who am I, how many are we, barrier
//   row_lane()                       the lane for rows: the first few rows are apart, to be quick
//   any(bool), sum(u32), scan(u32)   block-wide or, sum, exclusive prefix sum; each is a barrier
//   load_words(p)                    a slot's frontend words
//   control_words(p), ask_control(p) the host's words; so that they are there when asked for next
//   acquire()                        orders reads of what the loaded words announce after them
//   load_acquire(p), load(p)         a completion counter; a word of a lookup table, as it is now
//   store_release(p, v), store(p, v) a status word that announces data; a plain word others read
//   release()                        what all lanes wrote is there for the graph launched next
//   expect(graph), launch(graph)     probably launched next; LaunchResult, fire-and-forget
//   now_ns()                         monotonic clock
//   notify(range)                    tells a range's owner that there is news, if kNotifies
//   kPollsAhead                      a running graph is polled beside the scan, for the next pass
//   scan_share(slots)                how many slots to read between two polls of a running graph
//   rest(due), watches(due)          sleeps a little, if a graph due then may go unwatched so long; is
//                                    it to end any moment now?
//   stamp(moment)                    for profiles: this moment of a step is now
//
// A pass is the paper's loop: publish finished tokens, scan, claim, admit, launch, poll. The ring
// and the host's words are read while a graph runs, so that little is left to do between two.
#pragma once

#include "scheduler_state.h"

namespace blink {

constexpr uint32_t kLaunchWindow = 120;  // fire-and-forget launches of one parent graph
constexpr uint32_t kMaxLaunchRetries = 1u << 20;

enum class LaunchResult : uint32_t { kLaunched = 0, kRetry = 1, kFailed = 2 };

// What a profile tells apart: the moments of a step in order, then both ends of a whole scan.
enum class Moment : uint32_t {
    kLanded = 0,
    kDelivered = 1,
    kDecided = 2,
    kFilled = 3,
    kLaunched = 4,
    kScanning = 5,
    kScanned = 6,
};

enum class Outcome : uint32_t {
    kBusy = 0,      // a graph runs
    kProgress = 1,  // something was done: pass again at once
    kIdle = 2,      // nothing to do until a frontend writes
    kRelaunch = 3,  // the launch window is used up: replace this instance (tail launch)
    kPark = 4,      // told to stop between two steps; state is kept
    kStop = 5,
    kFailed = 6,
};

// The graph of a step, and what it holds.
struct Choice {
    uint32_t graph;
    GraphKey key;
};

// What the landing of a step gave.
struct Landed {
    uint32_t delivered;  // tokens
    uint32_t joined;     // requests that decode from now on
};

// The completion counters that tell of the end of a graph, twice the same one where it uses one phase
// only, and what they are then.
struct Awaited {
    uint32_t* first;
    uint32_t* second;
    uint32_t first_due;
    uint32_t second_due;
};

struct SlotWords;

template <class Port>
class Scheduler {
  public:
    BLINK_DEV Scheduler(Port& port, const RingView& ring, const EngineTables& engine, SchedulerState& state,
                        const ControlWords* control)
        : port(port), ring(ring), engine(engine), s(state), control(control) {}

    BLINK_DEV Outcome pass() {
        if (s.flight.active && has_landed()) {
            port.stamp(Moment::kLanded);
            land();
            port.stamp(Moment::kDelivered);
        }
        const bool busy = s.flight.active;
        if (busy && looks == 0 && leader()) foresee();
        if (busy || looks == 0) look(busy ? port.scan_share(ring.slot_count) : ring.slot_count);
        Outcome outcome = Outcome::kBusy;
        if (!busy) {
            looks = 0;
            retire();
            outcome = next_step();
            publish_fresh();
        }
        if (busy && !ended && leader()) port.rest(s.flight.due_ns);
        return finish_pass(outcome);
    }

  private:
    Port& port;
    const RingView& ring;
    const EngineTables& engine;
    SchedulerState& s;
    const ControlWords* control;
    uint32_t looks = 0;  // since the last launch; every lane counts for itself
    bool ended = false;  // what the leader's last poll found

    BLINK_DEV bool leader() const { return port.lane() == 0; }
    BLINK_DEV Request& request(uint32_t slot) const { return s.requests[slot]; }
    BLINK_DEV const PhaseBuffers& buffers(Phase phase) const { return engine.buffers[static_cast<uint32_t>(phase)]; }
    // Columns of a lookup table for steps of up to so many tokens.
    BLINK_DEV uint32_t column_count(uint32_t most_tokens) const {
        return (most_tokens + engine.token_granularity - 1) / engine.token_granularity;
    }

    // Chooses and launches the next graph. Where rows decode and a prefill may start, one graph does
    // both if the engine has it; else they take turns. A decode step is never delayed by more than
    // one chunk.
    BLINK_DEV Outcome next_step() {
        if (s.failed != 0) return Outcome::kFailed;
        if (s.command == Command::kPark) return Outcome::kPark;
        if (s.command == Command::kStop) return Outcome::kStop;
        const bool decode = s.decoding_count > 0;
        const bool prefill = !(decode && s.prefilled_last) && prefill_waits();
        // Condition (iii): a prefill may interrupt decode, so the decode step after it must fit too.
        const bool window_full = s.window_launches + (prefill ? 2 : 1) > kLaunchWindow;
        port.sync();  // every lane has decided before the leader changes what it decided on
        if (!prefill && !decode) return nothing_runs();
        if (window_full) return relaunch();
        const bool mixes = decode && prefill && engine.max_mixed_tokens > 0;
        // Before the plan: rows that decode come first, and may take the blocks of a prompt.
        const bool decodes = decode && (mixes || !prefill) && reserve_blocks();
        const bool prefills = prefill && plan_prefill(decodes);
        if (decodes || prefills) launch(prepare(decodes, prefills));
        return Outcome::kProgress;
    }

    // scheduler_scan.h
    BLINK_DEV void look(uint32_t slots);
    BLINK_DEV void read_control();
    BLINK_DEV void scan(uint32_t slots);
    BLINK_DEV SlotWords words_of(uint32_t slot) const;
    BLINK_DEV uint32_t inspect(uint32_t slot);
    BLINK_DEV void claim(uint32_t slot, uint64_t number);
    BLINK_DEV Reason refuse(const Request& r) const;
    BLINK_DEV void enqueue_claimed();

    // scheduler_rows.h
    BLINK_DEV void retire();
    BLINK_DEV void free_row(uint32_t slot);
    BLINK_DEV void return_blocks();
    BLINK_DEV void close_holes();
    BLINK_DEV bool reserve_blocks();
    BLINK_DEV bool grows(uint32_t slot) const;
    BLINK_DEV void preempt_youngest();
    BLINK_DEV Outcome nothing_runs();

    // scheduler_plan.h
    BLINK_DEV bool prefill_waits() const;
    BLINK_DEV bool plan_prefill(bool beside_decode);
    BLINK_DEV bool plan_sequence(uint32_t slot);
    BLINK_DEV bool admit(uint32_t slot);

    // scheduler_fill.h
    BLINK_DEV Flight prepare(bool decodes, bool prefills);
    BLINK_DEV void foresee();
    BLINK_DEV Choice choose(bool decodes, bool prefills);
    BLINK_DEV uint32_t choose_graph(bool decodes, bool prefills);
    BLINK_DEV uint32_t look_up(const uint16_t* entry);
    BLINK_DEV void pause_rows();
    BLINK_DEV void fill_prefill(uint32_t sequences);
    BLINK_DEV void fill_decode(uint32_t rows);
    BLINK_DEV int32_t generated_token(uint32_t slot);
    BLINK_DEV int32_t known_token(Request& r, int32_t token);
    BLINK_DEV void fill_sampling(SamplingRow& row, uint32_t slot) const;
    BLINK_DEV uint32_t sampling_flags(const StepWords& r) const;

    // scheduler_launch.h
    BLINK_DEV void launch(Flight next);
    BLINK_DEV void count_launch(const Flight& launched);
    BLINK_DEV Outcome relaunch();

    // scheduler_land.h
    BLINK_DEV bool has_landed();
    BLINK_DEV Awaited awaited() const;
    BLINK_DEV bool poll(const Awaited& awaited);
    BLINK_DEV void land();
    BLINK_DEV uint32_t step_error() const;
    BLINK_DEV Landed land_part(Phase part);
    BLINK_DEV void join_decode();
    BLINK_DEV Reason deliver(const PhaseBuffers& step, uint32_t slot, const StepWords& before, uint32_t index,
                             int32_t token);
    BLINK_DEV void deliver_logprobs(const PhaseBuffers& step, uint32_t slot, const StepWords& before, uint32_t index);
    BLINK_DEV Reason end_of(const Request& r, const StepWords& before, int32_t token) const;

    // scheduler_publish.h
    BLINK_DEV void publish(uint32_t slot, SlotState state, Reason reason = Reason::kNone);
    BLINK_DEV void publish_later(Request& r, SlotState state);
    BLINK_DEV void publish_fresh();
    BLINK_DEV void complete(uint32_t slot, Reason reason);
    BLINK_DEV void count_end(uint32_t slot, Reason reason);
    BLINK_DEV Outcome finish_pass(Outcome outcome);
    BLINK_DEV void notify_owners();
    BLINK_DEV void publish_header();

    BLINK_DEV void trace(TraceKind kind, uint32_t a = 0, uint32_t b = 0, uint32_t c = 0) {
        if (s.trace_count < s.trace_capacity) s.trace[s.trace_count++] = {kind, a, b, c};
    }

    // ---- waiting queues: first come, first served within a priority; leader only ----

    BLINK_DEV uint32_t first_waiting() const {
        for (uint32_t p = 0; p < kPriorities; ++p)
            if (s.waiting[p].head != kNoSlot) return s.waiting[p].head;
        return kNoSlot;
    }

    BLINK_DEV void push_waiting(uint32_t slot, bool front) {
        Request& r = request(slot);
        WaitingQueue& queue = s.waiting[r.record.priority];
        r.previous = front ? kNoSlot : queue.tail;
        r.next = front ? queue.head : kNoSlot;
        (r.previous == kNoSlot ? queue.head : request(r.previous).next) = slot;
        (r.next == kNoSlot ? queue.tail : request(r.next).previous) = slot;
        r.waiting = true;
        s.waiting_count += 1;
    }

    BLINK_DEV void remove_waiting(uint32_t slot) {
        Request& r = request(slot);
        WaitingQueue& queue = s.waiting[r.record.priority];
        (r.previous == kNoSlot ? queue.head : request(r.previous).next) = r.next;
        (r.next == kNoSlot ? queue.tail : request(r.next).previous) = r.previous;
        r.waiting = false;
        s.waiting_count -= 1;
    }
};

}  // namespace blink

#include "scheduler_fill.h"
#include "scheduler_land.h"
#include "scheduler_launch.h"
#include "scheduler_plan.h"
#include "scheduler_publish.h"
#include "scheduler_rows.h"
#include "scheduler_scan.h"
