// Creating a ring, and a frontend's atomic reads and writes of it, on a host.
#pragma once

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "port_host.h"
#include "ring_layout.h"

namespace blink {

struct RingShape {
    uint32_t ranges;
    uint32_t slots_per_range;
    uint64_t prompt_words;  // of each range
    uint64_t output_words;
    uint64_t aux_words;
};

// The part of the header that describes the ring and never changes.
constexpr size_t kDescribedBytes =
    BLINK_OFFSETOF(RingHeader, aux_words_per_range) + sizeof(RingHeader::aux_words_per_range);

// The header of an empty ring of this shape. Raises invalid_argument.
inline RingHeader describe_ring(const RingShape& shape, uint32_t epoch) {
    if (shape.ranges == 0 || shape.ranges > kMaxRanges)
        throw std::invalid_argument("ring: ranges must be 1 to " + std::to_string(kMaxRanges));
    if (shape.slots_per_range == 0 || shape.slots_per_range % kRangeGranule != 0)
        throw std::invalid_argument("ring: slots of a range must be a multiple of " + std::to_string(kRangeGranule));
    const auto whole_pages = [](uint64_t words) {
        constexpr uint64_t page_words = kPageBytes / 4;
        return (words + page_words - 1) / page_words * page_words;
    };
    RingHeader h{};
    h.magic = kRingMagic;
    h.layout_hash = kRingLayoutHash;
    h.epoch = epoch;
    h.range_count = shape.ranges;
    h.slots_per_range = shape.slots_per_range;
    h.slot_count = shape.ranges * shape.slots_per_range;
    h.prompt_words_per_range = whole_pages(shape.prompt_words);
    h.output_words_per_range = whole_pages(shape.output_words);
    h.aux_words_per_range = whole_pages(shape.aux_words);
    uint64_t at = sizeof(RingHeader);
    const auto place = [&at](uint64_t bytes) { return (at += bytes) - bytes; };
    h.words_offset = place(h.slot_count * sizeof(FrontendWords));
    h.status_offset = place(h.slot_count * sizeof(SlotStatus));
    h.records_offset = place(h.slot_count * sizeof(RequestRecord));
    h.timings_offset = place(h.slot_count * sizeof(SlotTiming));
    h.prompts_offset = place(4 * h.prompt_words_per_range * h.range_count);
    h.outputs_offset = place(4 * h.output_words_per_range * h.range_count);
    h.aux_offset = place(4 * h.aux_words_per_range * h.range_count);
    h.total_bytes = at;
    return h;
}

// Writes the header into zeroed memory of total_bytes; every slot is then {0, EMPTY}.
inline void create_ring(void* memory, uint64_t bytes, const RingShape& shape, uint32_t epoch) {
    const RingHeader header = describe_ring(shape, epoch);
    if (bytes < header.total_bytes) throw std::invalid_argument("ring: the memory is too small for its shape");
    std::memcpy(memory, &header, sizeof header);
}

// A view of memory that somebody else made. Raises invalid_argument where it is not such a ring.
inline RingView attach_ring(void* memory, uint64_t bytes) {
    const auto* header = static_cast<const RingHeader*>(memory);
    if (bytes < sizeof(RingHeader) || header->magic != kRingMagic)
        throw std::invalid_argument("ring: the memory holds no ring (wrong magic)");
    if (header->layout_hash != kRingLayoutHash) {
        char text[96];
        std::snprintf(text, sizeof text, "ring: layout hash %016lx differs from this build's %016lx",
                      static_cast<unsigned long>(header->layout_hash), static_cast<unsigned long>(kRingLayoutHash));
        throw std::invalid_argument(text);
    }
    const RingShape shape{header->range_count, header->slots_per_range, header->prompt_words_per_range,
                          header->output_words_per_range, header->aux_words_per_range};
    const RingHeader expected = describe_ring(shape, header->epoch);
    if (std::memcmp(header, &expected, kDescribedBytes) != 0 || bytes < header->total_bytes)
        throw std::invalid_argument("ring: header sizes do not fit the memory");
    return view_ring(memory);
}

// What a frontend reads of a slot: the state word first, so that the ticket is at least as new.
struct StatusSnapshot {
    uint64_t ticket_and_epoch;
    uint64_t word;
};

inline StatusSnapshot read_status(SlotStatus* status) {
    const uint64_t word = std::atomic_ref(status->word).load(std::memory_order_acquire);
    const uint64_t ticket = std::atomic_ref(status->ticket).load(std::memory_order_relaxed);
    const uint64_t epoch = std::atomic_ref(status->epoch).load(std::memory_order_relaxed);
    return {ticket | epoch << 32, word};
}

}  // namespace blink
