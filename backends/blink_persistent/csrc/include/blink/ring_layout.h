// The ring's memory layout: the only definition of it.
//
// One region of memory, shared by one scheduler and several frontends:
//
//   header | frontend words | status | records | timings | prompt arenas | output arenas | aux arenas
//
// Slots are partitioned into ranges of `slots_per_range` (a multiple of 256), one frontend each.
// A range's part of every region is contiguous and page-aligned, so that it can be an RDMA memory
// region of its own. Offsets into arenas are in 4-byte words from the start of the range's part.
//
// Every word has one writer, named in the last column. The protocol is described in docs/ring.md.
#pragma once

#include "types.h"

namespace blink {

constexpr uint64_t kRingMagic = 0x474e49524b4e4c42ull;  // "BLNKRING", little-endian
constexpr uint32_t kPageBytes = 4096;
constexpr uint32_t kRangeGranule = 256;  // slots; 256 status entries fill one page
constexpr uint32_t kMaxRanges = 64;
constexpr uint32_t kMaxTopLogprobs = 20;
constexpr uint32_t kPriorities = 4;     // waiting queues; 0 is served first
constexpr uint32_t kShownGraphs = 896;  // how many graphs' launches the header shows

// Launches of each graph, modulo 2^32, in the order of the grid; the last entry has those of all
// graphs beyond it.
using GraphLaunches = uint32_t[kShownGraphs];

enum class SlotState : uint8_t {
    kEmpty = 0,
    kPrefillPending = 1,  // claimed, waiting for its first prefill
    kPrefillProcessing = 2,
    kDecodeProcessing = 3,
    kDecodePaused = 4,     // while others prefill, or preempted until KV blocks are free
    kDecodeCompleted = 5,  // final: reason is set, all tokens are published
};

enum class Reason : uint8_t {
    kNone = 0,
    kEndOfSequence = 1,
    kStopToken = 2,
    kMaxTokens = 3,
    kContextLimit = 4,
    kCancelled = 5,
    kClosed = 6,         // never run: the only reason that permits a retry elsewhere
    kInvalidRecord = 7,  // an offset, length or parameter of the record is out of bounds
    kKvExhausted = 8,    // alone, the request exceeds the KV pool
    kBadToken = 9,       // the engine returned NaN logits or a token outside the vocabulary
    kEngineError = 10,   // the step failed as a whole
};

enum RecordFlags : uint32_t {
    kIgnoreEos = 1u << 0,
};

// What the host asks of the scheduler. It lies in host memory, not in the ring.
enum class Command : uint32_t { kRun = 0, kPark = 1, kStop = 2 };

// What the scheduler says of itself in the header.
enum class SchedulerCondition : uint32_t { kStarting = 0, kRunning = 1, kParked = 2, kStopped = 3, kFailed = 4 };

// Field lists: F(type, name, byte offset, writer). An agent writes to its mirror's header alone.
#define BLINK_RING_HEADER_FIELDS(F)                       \
    F(uint64_t, magic, 0, provisioner)                    \
    F(uint64_t, layout_hash, 8, provisioner)              \
    F(uint64_t, total_bytes, 16, provisioner)             \
    F(uint32_t, epoch, 24, provisioner)                   \
    F(uint32_t, slot_count, 28, provisioner)              \
    F(uint32_t, range_count, 32, provisioner)             \
    F(uint32_t, slots_per_range, 36, provisioner)         \
    F(uint64_t, words_offset, 40, provisioner)            \
    F(uint64_t, status_offset, 48, provisioner)           \
    F(uint64_t, records_offset, 56, provisioner)          \
    F(uint64_t, timings_offset, 64, provisioner)          \
    F(uint64_t, prompts_offset, 72, provisioner)          \
    F(uint64_t, outputs_offset, 80, provisioner)          \
    F(uint64_t, aux_offset, 88, provisioner)              \
    F(uint64_t, prompt_words_per_range, 96, provisioner)  \
    F(uint64_t, output_words_per_range, 104, provisioner) \
    F(uint64_t, aux_words_per_range, 112, provisioner)    \
    F(uint64_t, agent_turns, 128, agent)                  \
    F(uint64_t, agent_reads, 136, agent)                  \
    F(uint64_t, agent_read_bytes, 144, agent)             \
    F(uint64_t, agent_writes, 152, agent)                 \
    F(uint64_t, agent_written_bytes, 160, agent)          \
    F(uint64_t, agent_reconnections, 168, agent)          \
    F(uint32_t, accepting, 256, scheduler)                \
    F(uint32_t, condition, 260, scheduler)                \
    F(uint32_t, error, 264, scheduler)                    \
    F(uint32_t, rows_used, 268, scheduler)                \
    F(uint32_t, blocks_used, 272, scheduler)              \
    F(uint32_t, waiting, 276, scheduler)                  \
    F(uint32_t, running_graph, 280, scheduler)            \
    F(uint32_t, window_launches, 284, scheduler)          \
    F(uint64_t, heartbeat_ns, 288, scheduler)             \
    F(uint64_t, step_started_ns, 296, scheduler)          \
    F(uint64_t, steps, 304, scheduler)                    \
    F(uint64_t, decode_launches, 312, scheduler)          \
    F(uint64_t, prefill_launches, 320, scheduler)         \
    F(uint64_t, tail_launches, 328, scheduler)            \
    F(uint64_t, launch_retries, 336, scheduler)           \
    F(uint64_t, claims, 344, scheduler)                   \
    F(uint64_t, completions, 352, scheduler)              \
    F(uint64_t, preemptions, 360, scheduler)              \
    F(uint64_t, row_moves, 368, scheduler)                \
    F(uint64_t, parks, 376, scheduler)                    \
    F(uint64_t, prompt_tokens, 384, scheduler)            \
    F(uint64_t, generated_tokens, 392, scheduler)         \
    F(uint64_t, gaps, 400, scheduler)                     \
    F(uint64_t, gap_ns, 408, scheduler)                   \
    F(GraphLaunches, graph_launches, 416, scheduler)      \
    F(uint64_t, mixed_launches, 4000, scheduler)

// Levels, not edges; each is a ticket, 0 = never. Written after the data they announce.
#define BLINK_FRONTEND_WORDS_FIELDS(F) \
    F(uint32_t, submit, 0, frontend)   \
    F(uint32_t, release, 4, frontend)  \
    F(uint32_t, cancel, 8, frontend)   \
    F(uint32_t, reserved, 12, frontend)

// `word` is {generated u32, state u8, reason u8, flags u16}, written with one release store;
// the high byte of flags is ticket mod 256. ticket and epoch are written before it.
#define BLINK_SLOT_STATUS_FIELDS(F)   \
    F(uint32_t, ticket, 0, scheduler) \
    F(uint32_t, epoch, 4, scheduler)  \
    F(uint64_t, word, 8, scheduler)

// `logprobs` is 0 for none, n + 1 for the chosen token's and the n best. A token's entry in the
// log-probability buffer is {f32 chosen, i32 id[n], f32 logprob[n]}. A bias is {i32 id, f32 value}.
// A grammar is a table of grammar_table.h in the aux arena; `grammar_words` is 0 for none.
#define BLINK_REQUEST_RECORD_FIELDS(F)         \
    F(uint32_t, prompt_offset, 0, frontend)    \
    F(uint32_t, prompt_length, 4, frontend)    \
    F(uint32_t, output_offset, 8, frontend)    \
    F(uint32_t, max_tokens, 12, frontend)      \
    F(uint32_t, min_tokens, 16, frontend)      \
    F(uint32_t, logprobs_offset, 20, frontend) \
    F(uint32_t, logprobs, 24, frontend)        \
    F(uint32_t, stop_offset, 28, frontend)     \
    F(uint32_t, stop_count, 32, frontend)      \
    F(uint32_t, bias_offset, 36, frontend)     \
    F(uint32_t, bias_count, 40, frontend)      \
    F(uint32_t, priority, 44, frontend)        \
    F(uint32_t, flags, 48, frontend)           \
    F(int32_t, top_k, 52, frontend)            \
    F(float, temperature, 56, frontend)        \
    F(float, top_p, 60, frontend)              \
    F(float, min_p, 64, frontend)              \
    F(float, repetition_penalty, 68, frontend) \
    F(float, presence_penalty, 72, frontend)   \
    F(float, frequency_penalty, 76, frontend)  \
    F(uint64_t, seed, 80, frontend)            \
    F(uint32_t, grammar_offset, 88, frontend)  \
    F(uint32_t, grammar_words, 92, frontend)

// Nanoseconds of the scheduler's monotonic clock; 0 = never. Complete once the slot is completed.
#define BLINK_SLOT_TIMING_FIELDS(F)            \
    F(uint64_t, claimed_ns, 0, scheduler)      \
    F(uint64_t, prefill_ns, 8, scheduler)      \
    F(uint64_t, first_token_ns, 16, scheduler) \
    F(uint64_t, finished_ns, 24, scheduler)

// A writer's part of the header begins at 128 or 256.
#define BLINK_DECLARE_FIELD(type, name, offset, writer) \
    alignas(offset == 128 || offset == 256 ? offset : 1) alignas(type) type name;

struct alignas(kPageBytes) RingHeader {
    BLINK_RING_HEADER_FIELDS(BLINK_DECLARE_FIELD)
};
struct alignas(16) FrontendWords {
    BLINK_FRONTEND_WORDS_FIELDS(BLINK_DECLARE_FIELD)
};
struct alignas(16) SlotStatus {
    BLINK_SLOT_STATUS_FIELDS(BLINK_DECLARE_FIELD)
};
struct alignas(128) RequestRecord {
    BLINK_REQUEST_RECORD_FIELDS(BLINK_DECLARE_FIELD)
};
struct alignas(32) SlotTiming {
    BLINK_SLOT_TIMING_FIELDS(BLINK_DECLARE_FIELD)
};
#undef BLINK_DECLARE_FIELD

#define BLINK_RING_STRUCTS(S)                          \
    S(RingHeader, BLINK_RING_HEADER_FIELDS, 4096)      \
    S(FrontendWords, BLINK_FRONTEND_WORDS_FIELDS, 16)  \
    S(SlotStatus, BLINK_SLOT_STATUS_FIELDS, 16)        \
    S(RequestRecord, BLINK_REQUEST_RECORD_FIELDS, 128) \
    S(SlotTiming, BLINK_SLOT_TIMING_FIELDS, 32)

#define BLINK_CHECK_OFFSET(type, name, offset, writer) \
    static_assert(BLINK_OFFSETOF(Checked, name) == offset, "ring layout: offset of " #name);
#define BLINK_CHECK_STRUCT(name, fields, bytes)                                                            \
    namespace layout_check_##name {                                                                        \
        using Checked = blink::name;                                                                       \
        fields(BLINK_CHECK_OFFSET) static_assert(sizeof(Checked) == bytes, "ring layout: size of " #name); \
    }
BLINK_RING_STRUCTS(BLINK_CHECK_STRUCT)
#undef BLINK_CHECK_STRUCT
#undef BLINK_CHECK_OFFSET

static_assert(kRangeGranule * sizeof(FrontendWords) % kPageBytes == 0, "a range's words fill pages");
static_assert(kRangeGranule * sizeof(SlotStatus) % kPageBytes == 0, "a range's status fills pages");
static_assert(kRangeGranule * sizeof(RequestRecord) % kPageBytes == 0, "a range's records fill pages");
static_assert(kRangeGranule * sizeof(SlotTiming) % kPageBytes == 0, "a range's timings fill pages");

// ---- the status word ----

struct StatusWord {
    uint32_t generated;
    SlotState state;
    Reason reason;
    uint8_t ticket_byte;
};

BLINK_HD constexpr uint64_t pack_status(uint32_t generated, SlotState state, Reason reason, uint32_t ticket) {
    return static_cast<uint64_t>(generated) | static_cast<uint64_t>(state) << 32 | static_cast<uint64_t>(reason) << 40 |
           static_cast<uint64_t>(ticket & 0xff) << 56;
}

BLINK_HD constexpr StatusWord unpack_status(uint64_t word) {
    return {static_cast<uint32_t>(word), static_cast<SlotState>(word >> 32 & 0xff),
            static_cast<Reason>(word >> 40 & 0xff), static_cast<uint8_t>(word >> 56)};
}

// ---- tickets: serial numbers that skip 0 ----

BLINK_HD constexpr bool ticket_newer(uint32_t ticket, uint32_t than) {
    return ticket != 0 && static_cast<int32_t>(ticket - than) > 0;
}

BLINK_HD constexpr uint32_t ticket_after(uint32_t ticket) { return ticket + 1 == 0 ? 1 : ticket + 1; }

// Words one token takes in the log-probability buffer.
BLINK_HD constexpr uint32_t logprob_words(uint32_t logprobs) { return logprobs == 0 ? 0 : 2 * logprobs - 1; }

// ---- layout hash: FNV-1a over every field's text ----

BLINK_HD constexpr uint64_t layout_hash_text(const char* text, uint64_t hash) {
    while (*text != 0) hash = (hash ^ static_cast<uint8_t>(*text++)) * 0x100000001b3ull;
    return hash;
}

BLINK_HD constexpr uint64_t ring_layout_hash() {
    uint64_t hash = 0xcbf29ce484222325ull;
#define BLINK_HASH_FIELD(type, name, offset, writer) hash = layout_hash_text(#type " " #name " " #offset ";", hash);
#define BLINK_HASH_STRUCT(name, fields, bytes)           \
    hash = layout_hash_text(#name " " #bytes "{", hash); \
    fields(BLINK_HASH_FIELD)
    BLINK_RING_STRUCTS(BLINK_HASH_STRUCT)
#undef BLINK_HASH_STRUCT
#undef BLINK_HASH_FIELD
    return hash;
}

constexpr uint64_t kRingLayoutHash = ring_layout_hash();

// ---- accessors over a mapped ring ----

struct RingView {
    RingHeader* header;
    FrontendWords* words;
    SlotStatus* status;
    RequestRecord* records;
    SlotTiming* timings;
    uint32_t slot_count;
    uint32_t range_count;
    uint32_t slots_per_range;
    uint64_t prompt_words;  // of one range's part
    uint64_t output_words;
    uint64_t aux_words;
    int32_t* prompt_arenas;
    int32_t* output_arenas;
    int32_t* aux_arenas;

    BLINK_HD uint32_t range_of(uint32_t slot) const { return slot / slots_per_range; }
    BLINK_HD int32_t* prompts(uint32_t range) const { return prompt_arenas + prompt_words * range; }
    BLINK_HD int32_t* outputs(uint32_t range) const { return output_arenas + output_words * range; }
    BLINK_HD int32_t* aux(uint32_t range) const { return aux_arenas + aux_words * range; }
};

BLINK_HD inline RingView view_ring(void* memory) {
    auto* base = static_cast<uint8_t*>(memory);
    auto* header = reinterpret_cast<RingHeader*>(base);
    return {header,
            reinterpret_cast<FrontendWords*>(base + header->words_offset),
            reinterpret_cast<SlotStatus*>(base + header->status_offset),
            reinterpret_cast<RequestRecord*>(base + header->records_offset),
            reinterpret_cast<SlotTiming*>(base + header->timings_offset),
            header->slot_count,
            header->range_count,
            header->slots_per_range,
            header->prompt_words_per_range,
            header->output_words_per_range,
            header->aux_words_per_range,
            reinterpret_cast<int32_t*>(base + header->prompts_offset),
            reinterpret_cast<int32_t*>(base + header->outputs_offset),
            reinterpret_cast<int32_t*>(base + header->aux_offset)};
}

}  // namespace blink
