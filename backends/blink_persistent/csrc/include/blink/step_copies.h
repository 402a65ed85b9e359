// What must be copied so that a graph on a device runs on step buffers that a host fills.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "provisioned.h"

namespace blink {

struct StepCopy {
    uint64_t device;
    void* host;
    size_t bytes;
};

// A graph's copies: `tokens` are the outputs of a step in which nobody asks for log-probabilities,
// `sampling` brings back what a sampler keeps with its rows.
struct StepCopies {
    std::vector<StepCopy> inputs;
    std::vector<StepCopy> tokens;
    std::vector<StepCopy> outputs;
    StepCopy sampling;
};

// One copy for all arrays that lie at the same distance from their host copies: they are parts of
// one allocation here and one there, and nothing but step buffers lies between them.
inline std::vector<StepCopy> join_copies(std::vector<StepCopy> copies) {
    const auto distance = [](const StepCopy& copy) { return copy.device - reinterpret_cast<uint64_t>(copy.host); };
    std::sort(copies.begin(), copies.end(), [](const StepCopy& a, const StepCopy& b) { return a.device < b.device; });
    std::vector<StepCopy> joined;
    for (const StepCopy& copy : copies) {
        if (!joined.empty() && distance(joined.back()) == distance(copy)) {
            StepCopy& last = joined.back();
            last.bytes = std::max(last.bytes, static_cast<size_t>(copy.device + copy.bytes - last.device));
        } else {
            joined.push_back(copy);
        }
    }
    return joined;
}

// The copies for one phase of a key of the grid (`part_of`): as many entries as its sequences and
// tokens need, and the error word. The device's completion counter is not among them: a synchronized stream tells it.
inline StepCopies plan_copies(const GraphKey& part, uint32_t max_blocks, const PhaseBuffers& device,
                              const PhaseBuffers& host) {
    const auto copy = [](auto* on_device, auto* on_host, size_t count) {
        return StepCopy{reinterpret_cast<uint64_t>(on_device), on_host, count * sizeof *on_host};
    };
    const size_t n = part.sequences, top = n * kMaxTopLogprobs;
    StepCopies copies;
    copies.inputs = join_copies({
        copy(device.token_ids, host.token_ids, part.tokens),
        copy(device.start_positions, host.start_positions, n),
        copy(device.lengths, host.lengths, n),
        copy(device.rows, host.rows, n),
        copy(device.cu_seqlens, host.cu_seqlens, n + 1),
        copy(device.block_tables, host.block_tables, n * max_blocks),
        copy(device.sampling, host.sampling, n),
    });
    copies.sampling = copy(device.sampling, host.sampling, n);
    const std::vector<StepCopy> tokens{copy(device.output_tokens, host.output_tokens, n),
                                       copy(device.error, host.error, 1)};
    std::vector<StepCopy> outputs = tokens;
    outputs.push_back(copy(device.output_logprobs, host.output_logprobs, n));
    outputs.push_back(copy(device.output_top_ids, host.output_top_ids, top));
    outputs.push_back(copy(device.output_top_logprobs, host.output_top_logprobs, top));
    copies.tokens = join_copies(tokens);
    copies.outputs = join_copies(outputs);
    return copies;
}

}  // namespace blink
