// Which kernels one attention layer launches for a step, in which grids, with which arguments: what
// engines/tensorrt/attention_launches.py and kernel_archive.py do in Python, line for line. Needs
// neither TensorRT nor CUDA.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace blink::tensorrt {

enum class Role : uint32_t { APPEND_ROWS, ATTEND_ROWS, COMBINE_ROWS, APPEND_PACKED, ATTEND_PACKED };

struct Kernel {
    Role role;
    uint32_t variant;
    uint32_t warps;
    uint32_t shared_bytes;
    std::string name;
    std::string code;
};

// The kernels of an archive. Throws std::runtime_error where it is not whole.
inline std::vector<Kernel> unpack_kernels(const char* archive, size_t size) {
    struct Entry {
        uint32_t role, variant, warps, shared_bytes, code_bytes;
        char name[64];
    };
    const auto require = [](bool whole) {
        if (!whole) throw std::runtime_error("the attention's kernels are not whole");
    };
    uint32_t count = 0;
    require(size >= sizeof count);
    std::memcpy(&count, archive, sizeof count);
    size_t at = sizeof count + size_t{count} * sizeof(Entry);
    require(size >= at);
    std::vector<Kernel> kernels;
    for (uint32_t i = 0; i < count; ++i) {
        Entry entry;
        std::memcpy(&entry, archive + sizeof count + i * sizeof entry, sizeof entry);
        require(size - at >= entry.code_bytes);
        kernels.push_back({Role{entry.role}, entry.variant, entry.warps, entry.shared_bytes,
                           std::string(entry.name, strnlen(entry.name, sizeof entry.name)),
                           std::string(archive + at, entry.code_bytes)});
        at += entry.code_bytes;
    }
    require(at == size);
    return kernels;
}

struct Shape {
    int32_t heads, kv_heads, head_dim, block_size;
    int32_t programs;  // of decode attention that one multiprocessor is to have
    float scale;       // of scores, times log2(e)
};

// Device addresses of a layer's tensors.
struct Buffers {
    uint64_t queries, keys, values, key_pool, value_pool, tables, lengths, starts, cu_seqlens, out, workspace;
};

struct Step {
    int64_t tokens, sequences, max_blocks;
};

struct Launch {
    const Kernel* kernel;
    uint32_t grid[3];
    std::vector<uint64_t> arguments;  // each in the low bytes of a word
};

inline constexpr int64_t LEAST_SPLIT = 128, MOST_SPLITS = 64, DOT_LEAST = 16, QUERY_TILE = 128;

inline const Kernel& find_kernel(const std::vector<Kernel>& kernels, Role role, int64_t variant = 0) {
    for (const Kernel& kernel : kernels) {
        if (kernel.role == role && kernel.variant == variant) return kernel;
    }
    throw std::runtime_error("the plan lacks a kernel of the attention");
}

inline uint64_t as_word(float value) { return std::bit_cast<uint32_t>(value); }

// Device memory for the parts of up to `rows` rows.
inline size_t workspace_bytes(const Shape& shape, const std::vector<Kernel>& kernels, int64_t rows) {
    uint32_t most = 1;
    for (const Kernel& kernel : kernels) {
        if (kernel.role == Role::ATTEND_ROWS) most = std::max(most, kernel.variant);
    }
    return size_t(rows) * shape.heads * most * (shape.head_dim + 1) * sizeof(float);
}

inline std::vector<Launch> decode_launches(const Shape& shape, const std::vector<Kernel>& kernels, const Buffers& at,
                                           const Step& step, int64_t processors) {
    const int64_t rows = step.tokens, capacity = step.max_blocks * shape.block_size;
    const int64_t filling = shape.programs * processors / (rows * shape.kv_heads);
    const int64_t wanted = std::max<int64_t>(1, std::min({filling, capacity / LEAST_SPLIT, MOST_SPLITS}));
    int64_t splits = 1;
    for (const Kernel& kernel : kernels) {
        if (kernel.role == Role::ATTEND_ROWS && kernel.variant <= wanted) {
            splits = std::max<int64_t>(splits, kernel.variant);
        }
    }
    const uint64_t partial = at.workspace;
    const uint64_t log_sums = partial + sizeof(float) * rows * shape.heads * splits * shape.head_dim;
    const uint32_t grid_rows = uint32_t(rows), kv_heads = uint32_t(shape.kv_heads);
    std::vector<Launch> launches;
    launches.push_back({&find_kernel(kernels, Role::APPEND_ROWS),
                        {grid_rows, kv_heads, 1},
                        {at.keys, at.values, at.starts, at.lengths, at.tables, at.key_pool, at.value_pool,
                         uint64_t(step.max_blocks), 0, 0}});
    launches.push_back({&find_kernel(kernels, Role::ATTEND_ROWS, splits),
                        {grid_rows, kv_heads, uint32_t(splits)},
                        {at.queries, at.key_pool, at.value_pool, at.lengths, at.tables, partial, log_sums, at.out,
                         uint64_t(step.max_blocks), as_word(shape.scale), 0, 0}});
    if (splits > 1) {
        launches.push_back({&find_kernel(kernels, Role::COMBINE_ROWS, splits),
                            {grid_rows * uint32_t(shape.heads), 1, 1},
                            {partial, log_sums, at.out, 0, 0}});
    }
    return launches;
}

inline std::vector<Launch> prefill_launches(const Shape& shape, const std::vector<Kernel>& kernels, const Buffers& at,
                                            const Step& step) {
    const int64_t fitting = int64_t(std::bit_ceil(uint64_t(step.tokens)));
    const int64_t tile = std::min(std::max(fitting, DOT_LEAST), QUERY_TILE);
    const int64_t tiles = (step.tokens + tile - 1) / tile + step.sequences - 1;
    const uint64_t sequences = uint64_t(step.sequences), max_blocks = uint64_t(step.max_blocks);
    std::vector<Launch> launches;
    launches.push_back({&find_kernel(kernels, Role::APPEND_PACKED),
                        {uint32_t(step.tokens), uint32_t(shape.kv_heads), 1},
                        {at.keys, at.values, at.starts, at.cu_seqlens, at.tables, at.key_pool, at.value_pool, sequences,
                         max_blocks, 0, 0}});
    launches.push_back({&find_kernel(kernels, Role::ATTEND_PACKED, tile),
                        {uint32_t(tiles), uint32_t(shape.heads), 1},
                        {at.queries, at.key_pool, at.value_pool, at.starts, at.cu_seqlens, at.tables, at.out, sequences,
                         max_blocks, as_word(shape.scale), 0, 0}});
    return launches;
}

// The launches of a step, in their order. As many sequences as tokens are rows, one token each. Throws
// std::runtime_error where a kernel is missing.
inline std::vector<Launch> attention_launches(const Shape& shape, const std::vector<Kernel>& kernels, const Buffers& at,
                                              const Step& step, int64_t processors) {
    if (step.tokens == step.sequences) return decode_launches(shape, kernels, at, step, processors);
    return prefill_launches(shape, kernels, at, step);
}

}  // namespace blink::tensorrt
