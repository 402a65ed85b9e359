// All layers of a decode step of up to 16 rows in one kernel, for Hopper's tensor cores.
//
// Every block owns the same features of every product of every layer, and the residual stream of
// its features. One ring of stages goes on over all products and pages of the KV: weights of the
// next product are asked for as soon as stages are free and no more than so many are on their way
// (the others' stores and reads would wait behind them), its activations once all blocks have met at
// the border. So all blocks have to run at once.
//
// One source for the GPU (layers_gpu.h) and, thread by thread, for the host that tests it
// (layers_host.h). Beside what wide_product.h, even_share.h, new_token.h and split_sum.h ask for, a
// Port must offer:
//
//   copy_weights(to, map, row, window, barrier), copy_inputs(to, map, window, barrier)
//                                a box of windows of 64 inner elements, zeros beyond the last
//   matrix(place), beyond(matrix, bytes)
//                                what is multiplied
//   sync_some<kNumber, kThreads>(), sync_warp()
//   sum_over(value, first_lane)  over lanes that differ in bit `first_lane` or a higher one
//   load_once(from)              what nobody writes
//   load_four(from, values)      what other blocks wrote before a border
//   read_matrices(row), read_transposed(row), multiply(sums, a, b), add(counter)
//                                as even_attention.h asks for
//   publish(), count_arrivals(counter, number), await_arrivals(counter, count)
//                                a border: what was stored before may be copied after
//   fresh(value)                 the value, so that addresses reckoned from it are not kept over loops
#pragma once

#include "layers_attention.h"

namespace blink {

template <class Port, class Cut>
class Layers {
  public:
    // `weights`: [layers, 4]. `pages`: [layers, 2], of keys and of values, with boxes of 64 entries
    // and 2 windows.
    template <class Map>
    BLINK_DEV static void run(Port& port, const LayersCall& call, const Map* weights, const Map* pages,
                              const LayerMaps<Map>& inputs) {
        Layers(port, call).run(weights, pages, inputs);
    }

  private:
    static constexpr uint32_t kRows = Cut::kRows, kStages = Cut::kStages, kSums = kRows / 2;
    static constexpr uint32_t kOwners = 2 * Cut::kFeatures;  // threads that have the residual stream
    using Attention = LayerAttention<Port, (kRows > 8)>;
    static_assert(sizeof(LayersRoom<Port>) <= kRoomBytes);
    using Qkv = typename Cut::Qkv;
    using Output = typename Cut::Output;
    using GateUp = typename Cut::GateUp;
    using Down = typename Cut::Down;

    BLINK_DEV Layers(Port& port, const LayersCall& call)
        : port_(port), call_(call), stages_(static_cast<unsigned char*>(port.shared())),
          weights_(reinterpret_cast<uint64_t*>(stages_ + kStages * Cut::kStageBytes)), inputs_(weights_ + kStages),
          empty_(inputs_ + kStages), met_(empty_ + kStages), known_(met_ + 1), ready_(known_ + 1), found_(ready_ + 1),
          factors_(reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(weights_) + Cut::kBarrierBytes)),
          exchange_(factors_ + Cut::kFactorBytes / 4),
          block_(
              reinterpret_cast<LayersRoom<Port>*>(reinterpret_cast<unsigned char*>(exchange_) + Cut::kExchangeBytes)),
          attention_(reinterpret_cast<AttentionRoom*>(reinterpret_cast<unsigned char*>(block_) + kRoomBytes)),
          hidden_(call.blocks * Cut::kFeatures), inner_(call.blocks * Cut::GateUp::kFeatures),
          mixed_(call.attention.heads * Attention::kHeadDim), rows_(call.attention.rows), lane_(port.thread() % 32),
          warp_(port.warp() % 4), group_(port.warp() / 4) {}

    template <class Map>
    BLINK_DEV void run(const Map* weights, const Map* pages, const LayerMaps<Map>& inputs) {
        if (port_.thread() == 0) {
            port_.make_barriers(weights_, 2 * kStages, 1);
            port_.make_barriers(empty_, kStages, 8);
            port_.make_barriers(met_, 4, 1);
        }
        if (port_.warp() == 1) block_->divide(port_, call_.attention);
        port_.sync();
        if (group_ < 2) {
            compute();
        } else if (warp_ == 2) {
            block_->find(port_, call_.attention);
            port_.sync_warp();
            if (lane_ == 0) port_.arrive(found_);
            find_factors();
        } else if (lane_ == 0) {
            if (warp_ == 0)
                copy_weights(weights, pages);
            else
                copy_inputs(inputs);
        }
    }

    // Of the ring.
    struct Place {
        uint32_t stage = 0;
        uint32_t parity = 0;

        BLINK_DEV void advance() {
            stage = stage + 1 == kStages ? 0 : stage + 1;
            parity ^= stage == 0 ? 1u : 0u;
        }
    };

    template <class Product>
    BLINK_DEV static uint32_t steps(uint32_t depth) {
        return (depth + 64 * Product::kWindows - 1) / (64 * Product::kWindows);
    }

    // Where a walk along the ring has come to, and where those stages that have landed end.
    struct Flight {
        Place place, landing;
        uint32_t flying = 0;
    };

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

    template <class Product, class Map>
    BLINK_DEV void copy_weights(uint32_t depth, const Map* map, Flight& flight) {
        const uint32_t count = steps<Product>(depth), row = port_.block() * Product::kFeatures;
        for (uint32_t step = 0; step < count; ++step)
            copy_stage(map, row, step * Product::kWindows, Product::kWeightBytes,
                       step < kStages ? call_.early : call_.flight, flight);
    }

    // Keys, then values of each page. They are of earlier steps: no border has to be waited for. Others
    // who need what is found of the share come behind a norm, whose factors the same warp finds after it.
    template <class Map>
    BLINK_DEV void copy_pages(const Map* maps, Flight& flight) {
        port_.await(found_, 0);
        const uint32_t count = block_->pages;
        uint32_t row = count > 0 ? block_->map_row_of(call_.attention, 0) : 0;
        for (uint32_t number = 0; number < count; ++number) {
            // Before this page is waited for: what is not known has to be read behind weights.
            const uint32_t next = number + 1 < count ? block_->map_row_of(call_.attention, number + 1) : 0;
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
        port_.await(empty_ + place.stage, place.parity ^ 1);
        port_.expect(weights_ + place.stage, bytes);
        port_.copy_weights(stage(place), map, row, window, weights_ + place.stage);
        flight.place.advance();
        ++flight.flying;
    }

    // Until fewer than `most` stages are on their way.
    BLINK_DEV void await_landed(uint32_t most, Place& landing, uint32_t& flying) {
        for (; flying >= most; --flying) {
            port_.await(weights_ + landing.stage, landing.parity);
            landing.advance();
        }
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
                    port_.arrive(ready_);
                    pass_pages(2 * block_->pages, place);
                    // Of each row's groups one block arrives, that which writes what all have made of it.
                    copy_inputs<Output>(number, mixed_, &maps.output, rows_ * call_.attention.kv_heads, place);
                    break;
                case 2: copy_inputs<GateUp>(number, hidden_, &maps.gate_up, call_.blocks, place); break;
                default: copy_inputs<Down>(number, inner_, &maps.down, call_.blocks, place);
            }
        }
        if (port_.block() == 0) call_.arrived[1] = target_;
    }

    // Nothing is multiplied with a page: so that all barriers of a stage go on alike.
    BLINK_DEV void pass_pages(uint32_t stages, Place& place) {
        for (uint32_t i = 0; i < stages; ++i) {
            port_.await(empty_ + place.stage, place.parity ^ 1);
            port_.arrive(inputs_ + place.stage);
            place.advance();
        }
    }

    BLINK_DEV void await_border(uint32_t arrivals) {
        target_ += arrivals;
        port_.await_arrivals(call_.arrived, target_);
    }

    template <class Product, class Map>
    BLINK_DEV void copy_inputs(uint32_t number, uint32_t depth, const Map* map, uint32_t arrivals, Place& place) {
        const uint32_t count = steps<Product>(depth);
        await_border(arrivals);
        for (uint32_t step = 0; step < count; ++step) {
            port_.await(empty_ + place.stage, place.parity ^ 1);
            port_.expect(inputs_ + place.stage, Product::kInputsBytes);
            port_.copy_inputs(stage(place) + Product::kWeightBytes, map, step * Product::kWindows,
                              inputs_ + place.stage);
            place.advance();
            if (step == 0 && number % 2 == 0) port_.arrive(met_);
        }
    }

    // One warp finds every row's factor of a norm while the others multiply. Those that need the
    // factors of the norm before have arrived at a border since.
    BLINK_DEV void find_factors() {
        constexpr uint32_t kFours = kRows / 4, kStride = 32 / kFours, kTogether = 16;
        const uint32_t count = call_.blocks * (Cut::kFeatures / 16), own = lane_ % kFours;
        for (uint32_t norm = 0; norm < 2 * call_.layers; ++norm) {
            port_.await(met_, norm % 2);
            float sums[4] = {};
            for (uint32_t i = lane_ / kFours; i < count; i += kTogether * kStride) {
                float values[kTogether][4];
#pragma unroll
                for (uint32_t j = 0; j < kTogether; ++j) {
                    const uint32_t part = i + j * kStride;
                    port_.load_four(call_.squares + (part < count ? part : 0) * kRows + 4 * own, values[j]);
                }
#pragma unroll
                for (uint32_t j = 0; j < kTogether; ++j)
#pragma unroll
                    for (uint32_t k = 0; k < 4; ++k) sums[k] += i + j * kStride < count ? values[j][k] : 0.0f;
            }
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                const float mean = quotient(port_.sum_over(sums[k], kFours), static_cast<float>(hidden_));
                if (lane_ < kFours) factors_[4 * own + k] = inverse_root(mean + call_.attention.epsilon);
            }
            port_.sync_warp();
            if (lane_ == 0) port_.arrive(known_);
        }
    }

    BLINK_DEV void compute() {
        port_.await_previous();
        const bool owns = group_ == 0 && warp_ < Cut::kFeatures / 16;
        const uint32_t own = port_.block() * Cut::kFeatures + feature();
        float residual[kSums], gains[2];
        if (owns) {
#pragma unroll
            for (uint32_t i = 0; i < kSums; ++i)
                residual[i] = column(i) < rows_ ? port_.load_once(call_.residual + at(i, hidden_, own)) : 0.0f;
            load_gains(0, own, gains);
            give_residual(residual, 0, gains, own);
        }
        Place place;
        for (uint32_t layer = 0; layer < call_.layers; ++layer) {
            compute_qkv(layer, place);
            attend(layer, place);
            add<Output>(mixed_, place, residual);
            if (owns) give_residual(residual, 2 * layer + 1, gains, own);
            compute_inner(layer, place);
            add<Down>(inner_, place, residual);
            if (owns && layer + 1 < call_.layers) give_residual(residual, 2 * layer + 2, gains, own);
        }
        if (!owns) return;
#pragma unroll
        for (uint32_t i = 0; i < kSums; ++i)
            if (column(i) < rows_) port_.store(call_.residual + at(i, hidden_, own), residual[i]);
    }

    BLINK_DEV void compute_qkv(uint32_t layer, Place& place) {
        float sums[1][kSums];
        multiply<Qkv>(hidden_, place, sums);
        if (!add_groups<Qkv>(sums[0])) return;
        await_factors(2 * layer);
        const uint32_t size = call_.blocks * Qkv::kFeatures;
        const uint32_t own = port_.block() * Qkv::kFeatures + port_.fresh(feature());
        auto* const qkv = const_cast<float*>(call_.attention.qkv);
#pragma unroll
        for (uint32_t i = 0; i < kSums; ++i)
            if (column(i) < rows_) port_.store(qkv + at(i, size, own), sums[0][i] * factors_[column(i)]);
        arrive<2 * Qkv::kFeatures>();
    }

    BLINK_DEV void attend(uint32_t layer, Place& place) {
        Attention own(port_, call_, layer, port_.fresh(port_.thread()), *block_, *attention_);
        uint32_t count = own.take(true);
        own.locate(count);
        port_.await(ready_, layer % 2);
        while (count > 0) {
            own.project(count);
            for (uint32_t number = 0; number < count; ++number) {
                const Piece piece = own.begin(number);
#pragma unroll 1
                for (uint32_t page = 0; page < piece.old_pages(); ++page) {
                    const uint32_t known = piece.old() - (piece.first + page) * kPage;
                    own.score(await_page(place), known);
                    release_page(place);
                    own.weigh();
                    own.mix(await_page(place), known);
                    release_page(place);
                }
                own.end(piece);
            }
            count = own.take(false);
            own.locate(count);
        }
        own.finish();
    }

    // By all warps and also for its inputs, of which it has none, so that nobody passes another by a
    // turn of the ring.
    BLINK_DEV const unsigned char* await_page(const Place& place) {
        port_.await(weights_ + place.stage, place.parity);
        port_.await(inputs_ + place.stage, place.parity);
        return stage(place);
    }

    BLINK_DEV void release_page(Place& place) {
        port_.sync_warp();
        release(place.stage);
        place.advance();
    }

    BLINK_DEV void compute_inner(uint32_t layer, Place& place) {
        float sums[2][kSums];
        multiply<GateUp>(hidden_, place, sums);
        await_factors(2 * layer + 1);
        const uint32_t of_block = 64 * group_ + port_.fresh(feature());
        const uint32_t own = port_.block() * GateUp::kFeatures + of_block;
#pragma unroll
        for (uint32_t i = 0; i < kSums; ++i) {
            if (column(i) >= rows_ || of_block + 8 * (i / 2 % 2) >= GateUp::kFeatures) continue;
            const float factor = factors_[column(i)];
            port_.store(call_.inner + at(i, inner_, own), silu(sums[0][i] * factor) * (sums[1][i] * factor));
        }
        arrive<256>();
    }

    template <class Product>
    BLINK_DEV void add(uint32_t depth, Place& place, float (&residual)[kSums]) {
        float sums[1][kSums];
        multiply<Product>(depth, place, sums);
        if (!add_groups<Product>(sums[0])) return;
#pragma unroll
        for (uint32_t i = 0; i < kSums; ++i) residual[i] += sums[0][i];
    }

    // Gated: a group has 64 features of both parts. Else all, and half of each window's elements.
    template <class Product>
    BLINK_DEV void multiply(uint32_t depth, Place& place, float (&sums)[Product::kParts][kSums]) {
        constexpr uint32_t kEach = Product::kGated ? 4 : 2;  // multiplications of a window and part
        const uint32_t count = steps<Product>(depth);
        const uint32_t tile = Product::kGated ? 128 * 64 * group_ : 64 * group_, input = Product::kGated ? 0 : tile;
        uint32_t before = kStages;
#pragma unroll
        for (uint32_t i = 0; i < Product::kParts * kSums; ++i) sums[i / kSums][i % kSums] = 0.0f;
#pragma unroll 1
        for (uint32_t step = 0; step < count; ++step) {
            port_.await(weights_ + place.stage, place.parity);
            port_.await(inputs_ + place.stage, place.parity);
            const auto a = port_.matrix(stage(place) + tile);
            const auto b = port_.matrix(stage(place) + Product::kWeightBytes + input);
            port_.begin_multiply();
#pragma unroll
            for (uint32_t i = 0; i < kEach * Product::kWindows; ++i) {
                const uint32_t window = i / kEach, k = 32 * (i % kEach);
#pragma unroll
                for (uint32_t part = 0; part < Product::kParts; ++part)
                    port_.multiply(sums[part],
                                   port_.beyond(a, window * Product::kTileBytes + part * 128 * Product::kFeatures + k),
                                   port_.beyond(b, window * Product::kInputBytes + k), true);
            }
            port_.commit_multiply();
            port_.template await_multiplied<1>(sums);
            if (before < kStages) release(before);
            before = place.stage;
            place.advance();
        }
        port_.template await_multiplied<0>(sums);
        release(before);
    }

    BLINK_DEV void release(uint32_t stage) {
        if (lane_ == 0) port_.arrive(empty_ + stage);
    }

    // True in the threads that have the sums of both groups then.
    template <class Product>
    BLINK_DEV bool add_groups(float (&sums)[kSums]) {
        constexpr uint32_t kThreads = 2 * Product::kFeatures;
        const bool valid = warp_ < Product::kFeatures / 16;
        float* const place = exchange_ + 32 * warp_ + lane_;
        if (group_ == 1 && valid) {
#pragma unroll
            for (uint32_t i = 0; i < kSums; ++i) place[i * kThreads] = sums[i];
        }
        port_.template sync_some<1, 256>();
        if (group_ == 1 || !valid) return false;
#pragma unroll
        for (uint32_t i = 0; i < kSums; ++i) sums[i] += place[i * kThreads];
        return true;
    }

    // For the next product, whose norm's factor is applied to its sums.
    BLINK_DEV void give_residual(const float (&residual)[kSums], uint32_t norm, float (&gains)[2], uint32_t own) {
        own = port_.fresh(own);
        float* const squares = call_.squares + (port_.block() * (Cut::kFeatures / 16) + warp_) * kRows;
#pragma unroll
        for (uint32_t i = 0; i < kSums; ++i)
            if (column(i) < rows_) port_.store(call_.normed + at(i, hidden_, own), residual[i] * gains[i / 2 % 2]);
#pragma unroll
        for (uint32_t i = 0; i < kSums; ++i) {
            if (i / 2 % 2 == 1) continue;
            const float sum = port_.sum_over(residual[i] * residual[i] + residual[i + 2] * residual[i + 2], 4);
            if (lane_ < 4) port_.store(squares + column(i), sum);
        }
        arrive<kOwners>();
        // The next norm's, long before they are needed: behind weights a read takes longer than `output`.
        load_gains(norm + 1, own, gains);
    }

    BLINK_DEV void load_gains(uint32_t norm, uint32_t own, float (&gains)[2]) {
        if (norm >= 2 * call_.layers) return;
        const float* const from = call_.gains + static_cast<uint64_t>(norm) * hidden_ + own;
        gains[0] = port_.load_once(from);
        gains[1] = port_.load_once(from + 8);
    }

    // By the block's first kThreads threads, after stores.
    template <uint32_t kThreads>
    BLINK_DEV void arrive() {
        port_.publish();
        port_.template sync_some<2, kThreads>();
        if (port_.thread() == 0) port_.count_arrivals(call_.arrived, 1);
    }

    BLINK_DEV uint32_t products() const { return 4 * call_.layers; }

    BLINK_DEV void await_factors(uint32_t norm) { port_.await(known_, norm % 2); }

    // Lane 4 * g + t of a group's warp q has features 16 * q + g and, 2 sums further, that and 8, of
    // rows 8 * n + 2 * t and the next.
    BLINK_DEV uint32_t feature() const { return 16 * warp_ + lane_ / 4; }
    BLINK_DEV uint32_t column(uint32_t i) const { return 8 * (i / 4) + 2 * (lane_ % 4) + i % 2; }
    BLINK_DEV uint32_t at(uint32_t i, uint32_t size, uint32_t own) const {
        return column(i) * size + own + 8 * (i / 2 % 2);
    }

    BLINK_DEV unsigned char* stage(const Place& place) const { return stages_ + place.stage * Cut::kStageBytes; }

    Port& port_;
    const LayersCall& call_;
    unsigned char* const stages_;
    uint64_t* const weights_;  // of stages that they have reached
    uint64_t* const inputs_;
    uint64_t* const empty_;
    uint64_t* const met_;    // at the border before a product that a norm precedes
    uint64_t* const known_;  // that norm's factors
    uint64_t* const ready_;  // queries, keys and values, for attention
    uint64_t* const found_;  // once: the block's share
    float* const factors_;   // [kRows]
    float* const exchange_;  // [kSums, threads]
    LayersRoom<Port>* const block_;
    AttentionRoom* const attention_;
    const uint32_t hidden_, inner_, mixed_, rows_, lane_, warp_, group_;
    uint64_t target_ = 0;
};

}  // namespace blink
