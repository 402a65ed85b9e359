// The native module: the ring's layout and atomics, the host scheduler, the scripted engine, the
// host sampler. Everything that waits releases the interpreter lock.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "blink/host_scheduler.h"
#include "blink/ring_host.h"
#include "blink/sampler_host.h"
#include "blink/scripted.h"
#include "native_trace.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace blink;

namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::dict layout_table() {
    nb::dict structs;
#define BLINK_EXPORT_FIELD(type, name, offset, writer) fields.append(nb::make_tuple(#name, #type, offset, #writer));
#define BLINK_EXPORT_STRUCT(name, each_field, bytes)                                   \
    {                                                                                  \
        nb::list fields;                                                               \
        each_field(BLINK_EXPORT_FIELD) structs[#name] = nb::make_tuple(bytes, fields); \
    }
    BLINK_RING_STRUCTS(BLINK_EXPORT_STRUCT)
#undef BLINK_EXPORT_STRUCT
#undef BLINK_EXPORT_FIELD
    return structs;
}

// A frontend's and the provisioner's view of a ring in this process's memory.
class Ring {
  public:
    explicit Ring(Bytes memory) : memory_(std::move(memory)), view_(attach_ring(memory_.data(), memory_.size())) {}

    void submit(uint32_t slot, uint32_t ticket) { store(&word(slot).submit, ticket); }
    void release(uint32_t slot, uint32_t ticket) { store(&word(slot).release, ticket); }
    void cancel(uint32_t slot, uint32_t ticket) { store(&word(slot).cancel, ticket); }
    uint32_t submitted(uint32_t slot) { return HostPort::load_acquire(&word(slot).submit); }
    bool accepting() { return HostPort::load_acquire(&view_.header->accepting) != 0; }

    std::tuple<uint32_t, uint32_t, uint64_t> status(uint32_t slot) {
        check(slot);
        const StatusSnapshot s = read_status(&view_.status[slot]);
        return {static_cast<uint32_t>(s.ticket_and_epoch), static_cast<uint32_t>(s.ticket_and_epoch >> 32), s.word};
    }

    // Copies the status of slots [first, first + len(out)) into out, uint64 [n, 2], each entry
    // read with acquire order.
    void read_statuses(uint32_t first, nb::ndarray<uint64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu> out) {
        if (first + out.shape(0) > view_.slot_count) throw nb::index_error("slots beyond the ring");
        for (uint32_t i = 0; i < out.shape(0); ++i) {
            const StatusSnapshot s = read_status(&view_.status[first + i]);
            out(i, 0) = s.ticket_and_epoch;
            out(i, 1) = s.word;
        }
    }

    // Copies the words of slots [first, first + len(out)) into out, uint32 [n, 4]; what a submit
    // announces may be read afterwards.
    void read_words(uint32_t first, nb::ndarray<uint32_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu> out) {
        if (first + out.shape(0) > view_.slot_count) throw nb::index_error("slots beyond the ring");
        for (uint32_t i = 0; i < out.shape(0); ++i) {
            FrontendWords& words = view_.words[first + i];
            out(i, 0) = HostPort::load_acquire(&words.submit);
            out(i, 1) = HostPort::load_acquire(&words.release);
            out(i, 2) = HostPort::load_acquire(&words.cancel);
            out(i, 3) = 0;
        }
    }

    // Shows statuses, uint64 [n, 2], that were read in another memory: after everything written
    // before the call, ticket and epoch before the state word.
    void publish(nb::ndarray<uint32_t, nb::shape<-1>, nb::c_contig, nb::device::cpu> slots,
                 nb::ndarray<uint64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu> statuses) {
        if (slots.shape(0) != statuses.shape(0)) throw std::invalid_argument("publish: as many statuses as slots");
        for (size_t i = 0; i < slots.shape(0); ++i) {
            check(slots(i));
            SlotStatus& status = view_.status[slots(i)];
            HostPort::store_release(&status.ticket, static_cast<uint32_t>(statuses(i, 0)));
            HostPort::store_release(&status.epoch, static_cast<uint32_t>(statuses(i, 0) >> 32));
            HostPort::store_release(&status.word, statuses(i, 1));
        }
    }

    void* memory() { return memory_.data(); }
    const RingView& view() const { return view_; }

  private:
    void check(uint32_t slot) const {
        if (slot >= view_.slot_count) throw nb::index_error("no such slot");
    }
    FrontendWords& word(uint32_t slot) {
        check(slot);
        return view_.words[slot];
    }
    static void store(uint32_t* word, uint32_t ticket) { HostPort::store_release(word, ticket); }

    Bytes memory_;
    RingView view_;
};

// The caller owns the result.
HostEngine* make_engine(const std::vector<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>>& graphs,
                        std::vector<uint16_t> decode_lookup, std::vector<uint16_t> prefill_lookup,
                        std::vector<uint16_t> mixed_lookup, std::vector<int32_t> eos_token_ids, uint32_t max_rows,
                        uint32_t max_sequences, uint32_t max_prefill_tokens, uint32_t token_granularity,
                        uint32_t prefill_chunk, uint32_t mixed_sequences, uint32_t max_mixed_tokens,
                        uint32_t context_length, uint32_t vocabulary_size, uint32_t block_size, uint32_t block_count,
                        uint32_t max_blocks, bool rows_movable, bool deterministic) {
    auto engine = std::make_unique<HostEngine>();
    for (const auto& [phase, sequences, tokens, rows] : graphs)
        engine->graphs.push_back({static_cast<Phase>(phase), sequences, tokens, rows});
    engine->decode_lookup = std::move(decode_lookup);
    engine->prefill_lookup = std::move(prefill_lookup);
    engine->mixed_lookup = std::move(mixed_lookup);
    engine->eos_token_ids = std::move(eos_token_ids);
    EngineTables& t = engine->tables;
    t.max_rows = max_rows;
    t.max_sequences = max_sequences;
    t.max_prefill_tokens = max_prefill_tokens;
    t.token_granularity = token_granularity;
    t.prefill_chunk = prefill_chunk;
    t.mixed_sequences = mixed_sequences;
    t.max_mixed_tokens = max_mixed_tokens;
    t.context_length = context_length;
    t.vocabulary_size = vocabulary_size;
    t.block_size = block_size;
    t.block_count = block_count;
    t.max_blocks = max_blocks;
    t.rows_movable = rows_movable;
    t.deterministic = deterministic;
    engine->finish();
    return engine.release();
}

template <class T>
auto view_array(std::vector<T>& values, nb::handle owner) {
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(values.data(), {values.size()}, owner);
}

// The int32 step inputs and outputs of a phase, as numpy arrays over the engine's fixed memory.
nb::dict phase_arrays(nb::handle self, uint32_t phase) {
    HostEngine& engine = nb::cast<HostEngine&>(self);
    HostPhaseBuffers& b = static_cast<Phase>(phase) == Phase::kDecode ? *engine.decode : *engine.prefill;
    nb::dict arrays;
    arrays["token_ids"] = view_array(b.token_ids, self);
    arrays["start_positions"] = view_array(b.start_positions, self);
    arrays["lengths"] = view_array(b.lengths, self);
    arrays["rows"] = view_array(b.rows, self);
    arrays["cu_seqlens"] = view_array(b.cu_seqlens, self);
    arrays["block_tables"] = view_array(b.block_tables, self);
    arrays["output_tokens"] = view_array(b.output_tokens, self);
    return arrays;
}

// The host sampler, bound to an engine's step buffers.
class BoundSampler {
  public:
    explicit BoundSampler(HostEngine& engine)
        : engine_(engine), sampler_(engine.tables.vocabulary_size, engine.eos_token_ids) {}

    // Samples the first `count` rows of a phase from logits, float32 [>= count, vocabulary_size].
    void sample(uint32_t phase, uint32_t count,
                nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> logits) {
        if (phase >= kPhases) throw std::invalid_argument("only decode and prefill have rows to sample");
        if (logits.shape(1) != engine_.tables.vocabulary_size || logits.shape(0) < count)
            throw std::invalid_argument("logits must be float32 [rows, vocabulary_size]");
        const nb::gil_scoped_release release;
        sampler_.sample(engine_.tables.buffers[phase], count, logits.data(), logits.shape(1));
    }

    // Samples one row on its own, for tests: (token, chosen logprob, [(id, logprob)]).
    std::tuple<int32_t, float, std::vector<std::tuple<int32_t, float>>> sample_one(
        nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> logits, const std::vector<int32_t>& prompt,
        const std::vector<int32_t>& output, const std::vector<std::tuple<int32_t, float>>& bias,
        const std::vector<int32_t>& stop, uint64_t seed, float temperature, float top_p, int32_t top_k, float min_p,
        float repetition_penalty, float presence_penalty, float frequency_penalty, uint32_t logprobs, uint32_t flags,
        std::optional<nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>> grammar) {
        if (logits.shape(0) != engine_.tables.vocabulary_size)
            throw std::invalid_argument("logits must be [vocabulary_size]");
        HostPhaseBuffers buffers(1, 1, 1);
        std::vector<int32_t> pairs;
        for (const auto& [id, value] : bias) pairs.insert(pairs.end(), {id, static_cast<int32_t>(bits_of(value))});
        SamplingRow& row = buffers.sampling[0];
        row.seed = seed;
        row.prompt = reinterpret_cast<uint64_t>(prompt.data());
        row.output = reinterpret_cast<uint64_t>(output.data());
        row.bias = reinterpret_cast<uint64_t>(pairs.data());
        row.stop = reinterpret_cast<uint64_t>(stop.data());
        row.prompt_length = static_cast<uint32_t>(prompt.size());
        row.output_length = static_cast<uint32_t>(output.size());
        row.bias_count = static_cast<uint32_t>(bias.size());
        row.stop_count = static_cast<uint32_t>(stop.size());
        row.position = row.prompt_length + row.output_length;
        row.logprobs = logprobs;
        row.top_k = top_k;
        row.temperature = temperature;
        row.top_p = top_p;
        row.min_p = min_p;
        row.repetition_penalty = repetition_penalty;
        row.presence_penalty = presence_penalty;
        row.frequency_penalty = frequency_penalty;
        row.flags = flags | kSamplingActive;
        if (grammar) {
            row.grammar = reinterpret_cast<uint64_t>(grammar->data());
            row.grammar_words = static_cast<uint32_t>(grammar->size());
        }
        sampler_.sample(buffers.pointers(), 1, logits.data(), logits.shape(0));
        std::vector<std::tuple<int32_t, float>> top;
        for (uint32_t k = 0; k + 1 < logprobs; ++k)
            top.emplace_back(buffers.output_top_ids[k], buffers.output_top_logprobs[k]);
        return {buffers.output_tokens[0], buffers.output_logprobs[0], top};
    }

  private:
    HostEngine& engine_;
    HostSampler sampler_;
};

std::vector<int32_t> scripted_continuation(const ScriptedRule& rule, const std::vector<int32_t>& prompt, uint32_t count,
                                           uint32_t min_tokens, bool tells_phases) {
    uint64_t hash = 0;
    for (const int32_t token : prompt) hash = scripted_mix(hash, token);
    std::vector<int32_t> tokens;
    while (tokens.size() < count) {
        tokens.push_back(scripted_token(rule, hash, tokens.size() < min_tokens));
        hash = scripted_mix(hash, tokens.back() | (tells_phases ? kScriptedDecoded : 0));
    }
    return tokens;
}

}  // namespace

void bind_grammar(nb::module_& m);      // native_grammar.cc
void bind_host_driven(nb::module_& m);  // native_host_driven.cc

NB_MODULE(_native, m) {
    m.doc() = "The ring, the host scheduler, the scripted engine and the host sampler.";
    m.attr("LAYOUT_HASH") = kRingLayoutHash;
    m.attr("MAX_TOP_LOGPROBS") = kMaxTopLogprobs;
    m.attr("PRIORITIES") = kPriorities;
    m.attr("RANGE_GRANULE") = kRangeGranule;
    m.attr("SHOWN_GRAPHS") = kShownGraphs;
    m.attr("MAX_RANGES") = kMaxRanges;
    m.attr("LAUNCH_WINDOW") = kLaunchWindow;
    m.attr("NO_GRAPH") = kNoGraph;
    m.attr("IGNORE_EOS") = static_cast<uint32_t>(kIgnoreEos);
    m.attr("SUPPRESS_END") = static_cast<uint32_t>(kSamplingSuppressEnd);
    m.attr("KEEP_EOS") = static_cast<uint32_t>(kSamplingKeepEos);
    m.def("layout_table", &layout_table,
          nb::sig("def layout_table() -> dict[str, tuple[int, list[tuple[str, str, int, str]]]]"),
          "{struct: (bytes, [(field, C type, offset, writer)])} of ring_layout.h.");
    m.def("ticket_after", &ticket_after, "ticket"_a);
    m.def("logprob_words", &logprob_words, "logprobs"_a, "4-byte words of one token's log-probability entry.");
    m.def("uniform_at", &uniform_at, "seed"_a, "position"_a, "The random number of a token, in [0, 1).");

    nb::class_<RingShape>(m, "RingShape")
        .def(nb::init<uint32_t, uint32_t, uint64_t, uint64_t, uint64_t>(), "ranges"_a, "slots_per_range"_a,
             "prompt_words"_a, "output_words"_a, "aux_words"_a)
        .def_prop_ro("total_bytes", [](const RingShape& shape) { return describe_ring(shape, 0).total_bytes; });
    m.def(
        "create_ring",
        [](Bytes memory, const RingShape& shape, uint32_t epoch) {
            create_ring(memory.data(), memory.size(), shape, epoch);
        },
        "memory"_a, "shape"_a, "epoch"_a, "Write an empty ring into zeroed memory.");

    nb::class_<Ring>(m, "Ring")
        .def(nb::init<Bytes>(), "memory"_a)
        .def("submit", &Ring::submit, "slot"_a, "ticket"_a)
        .def("release", &Ring::release, "slot"_a, "ticket"_a)
        .def("cancel", &Ring::cancel, "slot"_a, "ticket"_a)
        .def("submitted", &Ring::submitted, "slot"_a, "The slot's submit word.")
        .def("accepting", &Ring::accepting)
        .def("status", &Ring::status, "slot"_a, "(ticket, epoch, word) of one slot.")
        .def("read_statuses", &Ring::read_statuses, "first"_a, "out"_a)
        .def("read_words", &Ring::read_words, "first"_a, "out"_a,
             "Copy the frontend words of slots [first, first + n) into uint32 [n, 4].")
        .def("publish", &Ring::publish, "slots"_a, "statuses"_a,
             "An agent's: write these slots' statuses, each state word last.");

    nb::class_<HostEngine>(m, "HostEngine")
        .def(
            "arrays", [](nb::handle self, uint32_t phase) { return phase_arrays(self, phase); }, "phase"_a,
            nb::sig("def arrays(self, phase: int) -> dict[str, NDArray[numpy.int32]]"))
        .def_prop_ro(
            "tables_address", [](HostEngine& e) { return reinterpret_cast<uint64_t>(&e.tables); },
            "Of its EngineTables (provisioned.h), for code that is compiled beside this module.");
    m.def("make_engine", &make_engine, nb::kw_only(), "graphs"_a, "decode_lookup"_a, "prefill_lookup"_a,
          "mixed_lookup"_a = std::vector<uint16_t>{}, "eos_token_ids"_a, "max_rows"_a, "max_sequences"_a,
          "max_prefill_tokens"_a, "token_granularity"_a, "prefill_chunk"_a = 0, "mixed_sequences"_a = 0,
          "max_mixed_tokens"_a = 0, "context_length"_a, "vocabulary_size"_a, "block_size"_a, "block_count"_a,
          "max_blocks"_a, "rows_movable"_a, "deterministic"_a = false, nb::rv_policy::take_ownership);

    nb::class_<BoundSampler>(m, "HostSampler")
        .def(nb::init<HostEngine&>(), "engine"_a, nb::keep_alive<1, 2>())
        .def("sample", &BoundSampler::sample, "phase"_a, "count"_a, "logits"_a)
        .def("sample_one", &BoundSampler::sample_one, "logits"_a, nb::kw_only(), "prompt"_a, "output"_a, "bias"_a,
             "stop"_a, "seed"_a, "temperature"_a, "top_p"_a, "top_k"_a, "min_p"_a, "repetition_penalty"_a,
             "presence_penalty"_a, "frequency_penalty"_a, "logprobs"_a, "flags"_a, "grammar"_a = nb::none());

    nb::class_<ScriptedRule>(m, "ScriptedRule")
        .def(nb::init<uint32_t, int32_t, uint32_t>(), "vocabulary_size"_a, "eos_token_id"_a, "eos_every"_a);
    m.def("scripted_continuation", &scripted_continuation, "rule"_a, "prompt"_a, "count"_a, "min_tokens"_a = 0,
          "tells_phases"_a = false,
          "The tokens that the scripted rule gives after a prompt, computed plainly; goes on past end-of-sequence.");
    nb::class_<ScriptedEngine>(m, "ScriptedEngine")
        .def(
            "__init__",
            [](ScriptedEngine* self, HostEngine& engine, const ScriptedRule& rule) {
                new (self) ScriptedEngine(engine.tables, rule);
            },
            "engine"_a, "rule"_a, nb::keep_alive<1, 2>())
        .def_prop_rw(
            "step_microseconds", [](ScriptedEngine& e) { return e.step_time.count(); },
            [](ScriptedEngine& e, int64_t us) { e.step_time = std::chrono::microseconds(us); })
        .def_rw("poison_token", &ScriptedEngine::poison_token)
        .def_rw("tells_phases", &ScriptedEngine::tells_phases)
        .def(
            "step",
            [](ScriptedEngine& e, uint32_t phase, uint32_t sequences, uint32_t tokens, uint32_t rows) {
                e.step({static_cast<Phase>(phase), sequences, tokens, rows});
            },
            "phase"_a, "sequences"_a, "tokens"_a, "rows"_a = 0, nb::call_guard<nb::gil_scoped_release>());

    nb::class_<HostScheduler>(m, "HostScheduler")
        .def(
            "__init__",
            [](HostScheduler* self, Ring& ring, HostEngine& engine, int doorbell, std::vector<int> notify,
               uint32_t trace_capacity) {
                new (self) HostScheduler(ring.memory(), engine.tables, {doorbell, std::move(notify)}, trace_capacity);
            },
            "ring"_a, "engine"_a, "doorbell"_a, "notify"_a, "trace_capacity"_a = 0, nb::keep_alive<1, 2>(),
            nb::keep_alive<1, 3>())
        .def(
            "run_pass", [](HostScheduler& s) { return static_cast<uint32_t>(s.pass()); },
            "One pass on this thread; the Outcome.")
        .def("start", &HostScheduler::start)
        .def("stop", &HostScheduler::stop, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "command", [](HostScheduler& s, uint32_t command) { s.command(static_cast<Command>(command)); },
            "command"_a)
        .def("close", &HostScheduler::close)
        .def("condition", [](HostScheduler& s) { return static_cast<uint32_t>(s.condition()); })
        .def(
            "drain_trace", [](HostScheduler& s) { return drain_trace(s.state()); },
            "Events since the last call; not while the thread runs.")
        .def(
            "next_launch",
            [](HostScheduler& s,
               int timeout_ms) -> std::optional<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>> {
                const auto graph = s.next_launch(timeout_ms);
                if (!graph) return std::nullopt;
                const GraphKey& key = s.engine().graphs[*graph];
                return std::tuple{*graph, static_cast<uint32_t>(key.phase), key.sequences, key.tokens, key.rows};
            },
            "timeout_ms"_a, nb::call_guard<nb::gil_scoped_release>(),
            "(graph, phase, sequences, tokens, rows), or None.")
        .def(
            "complete",
            [](HostScheduler& s, uint32_t phase, uint32_t error) { s.complete(static_cast<Phase>(phase), error); },
            "phase"_a, "error"_a = 0);
    bind_grammar(m);
    bind_host_driven(m);
}
