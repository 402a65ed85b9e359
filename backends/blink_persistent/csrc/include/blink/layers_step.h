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
#include "layers_copies.h"

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
    using Ring = LayersRing<Port, Cut>;
    using Place = typename Ring::Place;
    using Qkv = typename Cut::Qkv;
    using Output = typename Cut::Output;
    using GateUp = typename Cut::GateUp;
    using Down = typename Cut::Down;

    BLINK_DEV Layers(Port& port, const LayersCall& call)
        : port_(port), call_(call), ring_(port), hidden_(call.blocks * Cut::kFeatures),
          inner_(call.blocks * Cut::kInnerFeatures), mixed_(call.attention.heads * Attention::kHeadDim),
          rows_(call.attention.rows), lane_(port.thread() % 32), warp_(port.warp() % 4), group_(port.warp() / 4) {}

    template <class Map>
    BLINK_DEV void run(const Map* weights, const Map* pages, const LayerMaps<Map>& inputs) {
        if (port_.thread() == 0) ring_.make_barriers(port_);
        if (port_.warp() == 1) ring_.block->divide(port_, call_.attention);
        port_.sync();
        if (group_ < 2) {
            compute();
        } else if (warp_ == 2) {
            ring_.block->find(port_, call_.attention);
            port_.sync_warp();
            if (lane_ == 0) port_.arrive(ring_.found);
            find_factors();
        } else if (lane_ == 0) {
            LayerCopies<Port, Cut> copies(port_, call_, ring_);
            if (warp_ == 0)
                copies.copy_weights(weights, pages);
            else
                copies.copy_inputs(inputs);
        }
    }

    // One warp finds every row's factor of a norm while the others multiply. Those that need the
    // factors of the norm before have arrived at a border since.
    BLINK_DEV void find_factors() {
        constexpr uint32_t kFours = kRows / 4, kStride = 32 / kFours, kTogether = 16;
        const uint32_t count = call_.blocks * (Cut::kFeatures / 16), own = lane_ % kFours;
        for (uint32_t norm = 0; norm < 2 * call_.layers; ++norm) {
            port_.await(ring_.met, norm % 2);
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
                if (lane_ < kFours) ring_.factors[4 * own + k] = inverse_root(mean + call_.attention.epsilon);
            }
            port_.sync_warp();
            if (lane_ == 0) port_.arrive(ring_.known);
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
            if (column(i) < rows_) port_.store(qkv + at(i, size, own), sums[0][i] * ring_.factors[column(i)]);
        arrive<2 * Qkv::kFeatures>();
    }

    BLINK_DEV void attend(uint32_t layer, Place& place) {
        Attention own(port_, call_, layer, port_.fresh(port_.thread()), *ring_.block, *ring_.attention);
        uint32_t count = own.take(true);
        own.locate(count);
        port_.await(ring_.ready, layer % 2);
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
        port_.await(ring_.weights + place.stage, place.parity);
        port_.await(ring_.inputs + place.stage, place.parity);
        return ring_.stage(place);
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
            const float factor = ring_.factors[column(i)];
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
        const uint32_t count = Ring::template steps<Product>(depth);
        const uint32_t tile = Product::kGated ? 128 * 64 * group_ : 64 * group_, input = Product::kGated ? 0 : tile;
        uint32_t before = kStages;
#pragma unroll
        for (uint32_t i = 0; i < Product::kParts * kSums; ++i) sums[i / kSums][i % kSums] = 0.0f;
#pragma unroll 1
        for (uint32_t step = 0; step < count; ++step) {
            port_.await(ring_.weights + place.stage, place.parity);
            port_.await(ring_.inputs + place.stage, place.parity);
            const auto a = port_.matrix(ring_.stage(place) + tile);
            const auto b = port_.matrix(ring_.stage(place) + Product::kWeightBytes + input);
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
        if (lane_ == 0) port_.arrive(ring_.empty + stage);
    }

    // True in the threads that have the sums of both groups then.
    template <class Product>
    BLINK_DEV bool add_groups(float (&sums)[kSums]) {
        constexpr uint32_t kThreads = 2 * Product::kFeatures;
        const bool valid = warp_ < Product::kFeatures / 16;
        float* const place = ring_.exchange + 32 * warp_ + lane_;
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

    BLINK_DEV void await_factors(uint32_t norm) { port_.await(ring_.known, norm % 2); }

    // Lane 4 * g + t of a group's warp q has features 16 * q + g and, 2 sums further, that and 8, of
    // rows 8 * n + 2 * t and the next.
    BLINK_DEV uint32_t feature() const { return 16 * warp_ + lane_ / 4; }
    BLINK_DEV uint32_t column(uint32_t i) const { return 8 * (i / 4) + 2 * (lane_ % 4) + i % 2; }
    BLINK_DEV uint32_t at(uint32_t i, uint32_t size, uint32_t own) const {
        return column(i) * size + own + 8 * (i / 2 % 2);
    }

    Port& port_;
    const LayersCall& call_;
    const Ring ring_;
    const uint32_t hidden_, inner_, mixed_, rows_, lane_, warp_, group_;
};

}  // namespace blink
