// The threads of the kernel for all layers (layers_step.h) that fill the ring.
#pragma once

#include "layers_ring.h"

namespace blink {

template <class Port, class Cut>
class LayerCopies {
  public:
    using Ring = LayersRing<Port, Cut>;
    using Place = typename Ring::Place;

    BLINK_DEV LayerCopies(Port& port, const LayersCall& call, const Ring& ring)
        : port_(port), call_(call), ring_(ring), hidden_(call.blocks * Cut::kFeatures),
          inner_(call.blocks * Cut::kInnerFeatures), mixed_(call.attention.heads * AttentionRoom::kHeadDim) {}

    template <class Map>
    BLINK_DEV void copy_weights(const Map* maps, const Map* pages) {
        Flight flight;
        for (uint32_t number = 0; number < products(); ++number) {
            const Map* const map = maps + number;
            if (number + 1 < products()) port_.fetch_map(map + 1);
            switch (number % 4) {
                case 0:
                    copy_weights<Qkv>(hidden_, map, flight);
                    copy_pages(pages + number / 2, flight);
                    break;
                case 1: copy_weights<Output>(mixed_, map, flight); break;
                case 2: copy_weights<GateUp>(hidden_, map, flight); break;
                default: copy_weights<Down>(inner_, map, flight);
            }
        }
        port_.let_next_in();
    }

    template <class Map>
    BLINK_DEV void copy_inputs(const LayerMaps<Map>& maps) {
        port_.await_previous();
        target_ = call_.arrived[1];  // no block ends, and writes it, before all have had their first inputs
        Place place;
        for (uint32_t number = 0; number < products(); ++number) {
            switch (number % 4) {
                case 0: copy_inputs<Qkv>(number, hidden_, &maps.qkv, call_.blocks, place); break;
                case 1:
                    await_border(call_.blocks);
                    port_.arrive(ring_.ready);
                    pass_pages(2 * ring_.block->pages, place);
                    // Of each row's groups one block arrives, that which writes what all have made of it.
                    copy_inputs<Output>(number, mixed_, &maps.output, call_.attention.rows * call_.attention.kv_heads,
                                        place);
                    break;
                case 2: copy_inputs<GateUp>(number, hidden_, &maps.gate_up, call_.blocks, place); break;
                default: copy_inputs<Down>(number, inner_, &maps.down, call_.blocks, place);
            }
        }
        if (port_.block() == 0) call_.arrived[1] = target_;
    }

  private:
    static constexpr uint32_t kStages = Cut::kStages;
    using Qkv = typename Cut::Qkv;
    using Output = typename Cut::Output;
    using GateUp = typename Cut::GateUp;
    using Down = typename Cut::Down;

    // A walk along the ring, and where those stages that have landed end.
    struct Flight {
        Place place, landing;
        uint32_t flying = 0;
    };

    template <class Product, class Map>
    BLINK_DEV void copy_weights(uint32_t depth, const Map* map, Flight& flight) {
        const uint32_t count = Ring::template steps<Product>(depth), row = port_.block() * Product::kFeatures;
        for (uint32_t step = 0; step < count; ++step)
            copy_stage(map, row, step * Product::kWindows, Product::kWeightBytes,
                       step < kStages ? call_.early : call_.flight, flight);
    }

    // Keys, then values of each page. They are of earlier steps: no border has to be waited for. Others
    // who need what is found of the share come behind a norm, whose factors the same warp finds after it.
    template <class Map>
    BLINK_DEV void copy_pages(const Map* maps, Flight& flight) {
        port_.await(ring_.found, 0);
        const uint32_t count = ring_.block->pages;
        uint32_t row = count > 0 ? ring_.block->map_row_of(call_.attention, 0) : 0;
        for (uint32_t number = 0; number < count; ++number) {
            // Before this page is waited for: what is not known has to be read behind weights.
            const uint32_t next = number + 1 < count ? ring_.block->map_row_of(call_.attention, number + 1) : 0;
            const uint32_t most = 2 * number < kStages ? call_.paged : call_.flight;
            copy_stage(maps, row, 0, Cut::kPageBytes, most, flight);
            copy_stage(maps + 1, row, 0, Cut::kPageBytes, most, flight);
            row = next;
        }
    }

    template <class Map>
    BLINK_DEV void copy_stage(const Map* map, uint32_t row, uint32_t window, uint32_t bytes, uint32_t most,
                              Flight& flight) {
        const Place& place = flight.place;
        await_landed(most, flight.landing, flight.flying);
        port_.await(ring_.empty + place.stage, place.parity ^ 1);
        port_.expect(ring_.weights + place.stage, bytes);
        port_.copy_weights(ring_.stage(place), map, row, window, ring_.weights + place.stage);
        flight.place.advance();
        ++flight.flying;
    }

    // Until fewer than `most` stages are on their way.
    BLINK_DEV void await_landed(uint32_t most, Place& landing, uint32_t& flying) {
        for (; flying >= most; --flying) {
            port_.await(ring_.weights + landing.stage, landing.parity);
            landing.advance();
        }
    }

    // Nothing is multiplied with a page: so that all barriers of a stage go on alike.
    BLINK_DEV void pass_pages(uint32_t stages, Place& place) {
        for (uint32_t i = 0; i < stages; ++i) {
            port_.await(ring_.empty + place.stage, place.parity ^ 1);
            port_.arrive(ring_.inputs + place.stage);
            place.advance();
        }
    }

    BLINK_DEV void await_border(uint32_t arrivals) {
        target_ += arrivals;
        port_.await_arrivals(call_.arrived, target_);
    }

    template <class Product, class Map>
    BLINK_DEV void copy_inputs(uint32_t number, uint32_t depth, const Map* map, uint32_t arrivals, Place& place) {
        const uint32_t count = Ring::template steps<Product>(depth);
        await_border(arrivals);
        for (uint32_t step = 0; step < count; ++step) {
            port_.await(ring_.empty + place.stage, place.parity ^ 1);
            port_.expect(ring_.inputs + place.stage, Product::kInputsBytes);
            port_.copy_inputs(ring_.stage(place) + Product::kWeightBytes, map, step * Product::kWindows,
                              ring_.inputs + place.stage);
            place.advance();
            if (step == 0 && number % 2 == 0) port_.arrive(ring_.met);
        }
    }

    BLINK_DEV uint32_t products() const { return 4 * call_.layers; }

    Port& port_;
    const LayersCall& call_;
    const Ring& ring_;
    const uint32_t hidden_, inner_, mixed_;
    uint64_t target_ = 0;  // arrivals until the last border
};

}  // namespace blink
