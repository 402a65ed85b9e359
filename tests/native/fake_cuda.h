// A CUDA driver with one stream over a scripted engine, for tests without a GPU.
//
// Nothing on the stream is done before somebody waits for it, copies included, so that whoever
// changes a step's inputs too early, or forgets to copy something, gets wrong tokens.
#pragma once

#include <functional>
#include <string>

#include "blink/port_cuda_host.h"
#include "scripted_ring.h"

namespace blink {

// Step buffers of both phases, each phase's inputs and outputs in one piece, as on a device.
class StepArenas {
  public:
    explicit StepArenas(const EngineTables& t) {
        place(Phase::kDecode, t.max_rows, t.max_rows, t.max_blocks);
        place(Phase::kPrefill, t.max_sequences, t.max_prefill_tokens, t.max_blocks);
    }

    PhaseBuffers buffers[kPhases];

    void poison_inputs(Phase phase) { fill(arenas_[2 * static_cast<uint32_t>(phase)]); }
    void poison_outputs(Phase phase) { fill(arenas_[2 * static_cast<uint32_t>(phase) + 1]); }

  private:
    using Arena = std::vector<uint64_t>;

    void place(Phase phase, uint64_t n, uint64_t tokens, uint64_t max_blocks) {
        PhaseBuffers& b = buffers[static_cast<uint32_t>(phase)];
        uint8_t* at = nullptr;
        const auto take = [&at](auto*& array, uint64_t count) {
            array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
            at += count * sizeof *array;
        };
        const auto inputs = [&] {
            take(b.sampling, n), take(b.start_positions, n), take(b.lengths, n), take(b.rows, n);
            take(b.cu_seqlens, n + 1), take(b.token_ids, tokens), take(b.block_tables, n * max_blocks);
        };
        const auto outputs = [&] {
            take(b.error, 1), take(b.output_tokens, n), take(b.output_logprobs, n);
            take(b.output_top_ids, n * kMaxTopLogprobs), take(b.output_top_logprobs, n * kMaxTopLogprobs);
        };
        const auto twice = [&](Arena& arena, auto lay_out) {
            at = nullptr;
            lay_out();
            arena.resize((reinterpret_cast<uint64_t>(at) + 7) / 8);
            at = reinterpret_cast<uint8_t*>(arena.data());
            lay_out();
        };
        twice(arenas_[2 * static_cast<uint32_t>(phase)], inputs);
        twice(arenas_[2 * static_cast<uint32_t>(phase) + 1], outputs);
        b.completion = &completions_[static_cast<uint32_t>(phase)];
    }

    static void fill(Arena& arena) { std::memset(arena.data(), 0x5a, 8 * arena.size()); }

    Arena arenas_[2 * kPhases];
    uint32_t completions_[kPhases] = {};
};

// What the functions below work on: one at a time, as a process has one driver.
class FakeCuda {
  public:
    explicit FakeCuda(const EngineTables& tables) : arenas(tables), tables_(tables) {
        std::copy(std::begin(arenas.buffers), std::end(arenas.buffers), tables_.buffers);
        engine_ = std::make_unique<ScriptedEngine>(tables_, kRule);
        current = this;
    }
    ~FakeCuda() { current = nullptr; }

    StepArenas arenas;        // "on the device"
    std::string calls;        // C context, H and D copies, G graph, q busy, S synchronized, Q found ended
    char failing = 0;         // the call that fails ...
    uint32_t after = 0;       // ... after this many that succeed
    uint32_t step_error = 0;  // the engine's, of the next step
    // What the sampler of rows that are not greedy finds with them, and leaves one greater.
    std::vector<uint32_t> kept;
    std::vector<uint64_t> handles() const {
        std::vector<uint64_t> all;
        for (uint32_t graph = 0; graph < tables_.graph_count; ++graph) all.push_back(kHandle + graph);
        return all;
    }
    void* context() { return &arenas; }
    void* stream() { return &queue_; }
    static CudaDriver driver();

  private:
    static constexpr uint64_t kHandle = 0xc0de0000;
    static constexpr int kFailure = 700;
    inline static FakeCuda* current = nullptr;

    int made(char call) {
        calls += call;
        if (call != failing || after-- > 0) return kCudaSuccess;
        after = 0;
        return kFailure;
    }

    int enqueue(char call, void* stream, std::function<void()> work) {
        CHECK(stream == &queue_, "call %c: another stream", call);
        queue_.push_back(std::move(work));
        return made(call);
    }

    int finish(char call) {
        for (const std::function<void()>& work : queue_) work();
        queue_.clear();
        return made(call);
    }

    void run(const GraphKey& key) {
        if (step_error == 0)
            engine_->step(key);
        else  // of a mixed step: one word tells it for all
            *tables_.buffers[end_part(key.phase) - 1].error = std::exchange(step_error, 0);
        for (uint32_t part = first_part(key.phase); part < end_part(key.phase); ++part) {
            *tables_.buffers[part].completion += 1;
            const std::vector<SamplingRow> rows = sampled(part_of(key, static_cast<Phase>(part)));
            arenas.poison_inputs(static_cast<Phase>(part));
            std::copy(rows.begin(), rows.end(), tables_.buffers[part].sampling);
        }
    }

    std::vector<SamplingRow> sampled(const GraphKey& part) {
        const SamplingRow* first = tables_.buffers[static_cast<uint32_t>(part.phase)].sampling;
        std::vector<SamplingRow> rows(first, first + part.sequences);
        for (SamplingRow& row : rows)
            if ((row.flags & kSamplingActive) != 0 && row.temperature != 0) kept.push_back(row.kept++);
        return rows;
    }

    EngineTables tables_;
    std::unique_ptr<ScriptedEngine> engine_;
    std::vector<std::function<void()>> queue_;
    bool asked_ = false;
};

inline CudaDriver FakeCuda::driver() {
    return {
        [](void* context) {
            CHECK(context == current->context(), "another context");
            return current->made('C');
        },
        [](uint64_t to, const void* from, size_t bytes, void* stream) {
            return current->enqueue('H', stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
        },
        [](void* to, uint64_t from, size_t bytes, void* stream) {
            return current->enqueue('D', stream, [=] { std::memcpy(to, reinterpret_cast<void*>(from), bytes); });
        },
        [](void* graph, void* stream) {
            const uint64_t index = reinterpret_cast<uint64_t>(graph) - kHandle;
            CHECK(index < current->tables_.graph_count, "no such graph");
            return current->enqueue('G', stream, [=] { current->run(current->tables_.graphs[index]); });
        },
        [](void*) {
            if (!std::exchange(current->asked_, !current->asked_)) return current->calls += 'q', kCudaNotReady;
            return current->finish('Q');
        },
        [](void*) { return current->finish('S'); },
    };
}

}  // namespace blink
