// The kernel of layers_step.h on a host, for tests. A text before this one defines BLINK_LAYERS as
// for layers_gpu.cu; each becomes a function of its name.
#include "blink/layers_host.h"

#include "blink/layers_step.h"

using blink::AttentionCall, blink::HostLayerMap, blink::HostLayers, blink::LayerMaps, blink::Layers, blink::LayersCall,
    blink::LayersCut, blink::LayersGrid, blink::LayersRoom, blink::TileFaults;

template <class Cut>
int run(const uint16_t* const* weights, uint32_t kv_blocks, const LayersCall& call, bool copies_late, uint32_t seed,
        TileFaults* faults) {
    const auto& attention = call.attention;
    const uint32_t blocks = call.blocks, hidden = blocks * Cut::kFeatures, inner = blocks * Cut::GateUp::kFeatures;
    const uint32_t qkv = blocks * Cut::Qkv::kFeatures, mixed = 128 * attention.heads;
    const auto map = [](const uint16_t* begin, uint32_t depth, uint32_t rows, uint32_t box_rows, uint32_t parts,
                        uint32_t windows) {
        return HostLayerMap{{begin, depth, rows, box_rows, false}, parts, windows};
    };
    std::vector<HostLayerMap> maps, pages;
    for (uint32_t i = 0; i < 4 * call.layers; i += 4)
        maps.insert(maps.end(),
                    {map(weights[i], hidden, qkv, Cut::Qkv::kFeatures, 1, Cut::Qkv::kWindows),
                     map(weights[i + 1], mixed, hidden, Cut::kFeatures, 1, Cut::Output::kWindows),
                     map(weights[i + 2], hidden, 2 * inner, Cut::GateUp::kFeatures, 2, Cut::GateUp::kWindows),
                     map(weights[i + 3], inner, hidden, Cut::kFeatures, 1, Cut::Down::kWindows)});
    for (uint32_t i = 0; i < 2 * call.layers; ++i)
        pages.push_back(map(call.pages[i], 128, kv_blocks * attention.kv_heads * attention.block_size, 64, 1, 2));
    const auto input = [&](const uint16_t* begin, uint32_t depth, uint32_t windows) {
        return map(begin, depth, attention.rows, Cut::kRows, 1, windows);
    };
    const LayerMaps<HostLayerMap> inputs{
        input(call.normed, hidden, Cut::Qkv::kWindows), input(attention.out, mixed, Cut::Output::kWindows),
        input(call.normed, hidden, Cut::GateUp::kWindows), input(call.inner, inner, Cut::Down::kWindows)};
    LayersGrid grid(blocks, Cut::kThreads / 32, Cut::kSharedBytes, copies_late, seed);
    try {
        grid.fibers->run(blocks * Cut::kThreads, [&](uint32_t thread) {
            HostLayers port(grid, grid.blocks[thread / Cut::kThreads], thread % Cut::kThreads);
            Layers<HostLayers, Cut>::run(port, call, maps.data(), pages.data(), inputs);
        });
    } catch (const std::runtime_error&) {
        return 1;
    }
    for (const auto& block : grid.blocks) {
        const auto& tiles = block.tiles.faults;
        const auto& lanes = block.lanes.faults;
        faults->early_reads += tiles.early_reads + lanes.early_reads;
        faults->outside += tiles.outside + lanes.outside;
        faults->misaligned += tiles.misaligned + lanes.misaligned + lanes.bank_conflicts;
        faults->arrivals += tiles.arrivals + lanes.arrivals;
    }
    return 0;
}

// What each block copies: how many pages, and the first `most` of their rows in the maps. By a warp a block.
extern "C" int blink_layers_pages(const AttentionCall* call, uint32_t blocks, uint32_t most, uint32_t* counts,
                                  uint32_t* rows) {
    LayersGrid grid(blocks, 1, sizeof(LayersRoom<HostLayers>), false, 1);
    try {
        grid.fibers->run(32 * blocks, [&](uint32_t thread) {
            const uint32_t block = thread / 32;
            HostLayers port(grid, grid.blocks[block], thread % 32);
            auto* const room = static_cast<LayersRoom<HostLayers>*>(port.shared());
            room->divide(port, *call);
            port.sync_warp();
            room->find(port, *call);
            port.sync_warp();
            if (thread % 32 != 0) return;
            counts[block] = room->pages;
            for (uint32_t i = 0; i < room->pages && i < most; ++i) rows[block * most + i] = room->map_row_of(*call, i);
        });
    } catch (const std::runtime_error&) {
        return 1;
    }
    return 0;
}

// Returns the bytes of shared memory without a call.
#define BLINK_LAYERS_KERNEL(NAME, ...)                                                                                \
    extern "C" int NAME(const uint16_t* const* weights, uint32_t kv_blocks, const LayersCall* call, bool copies_late, \
                        uint32_t seed, TileFaults* faults) {                                                          \
        if (call == nullptr) return LayersCut<__VA_ARGS__>::kSharedBytes;                                             \
        return run<LayersCut<__VA_ARGS__>>(weights, kv_blocks, *call, copies_late, seed, faults);                     \
    }

BLINK_LAYERS
