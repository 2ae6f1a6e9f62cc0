// What the head of a model with several lanes reads.
//
// Waits for: the lanes' last streams, which all GPUs post to all, and the sums of squares of their tiles. Computes: each SM
// a slice of the columns: the mean of the normalised lanes, or their sum if the model normalises that. Publishes: the
// slice, within its GPU. One exchange more than if every SM read all streams; but eight lanes of 3,072 are 98 KB, and the L2
// needs longer to hand them to all SMs at once than an exchange takes. A head that takes the lanes side by side does need
// them all: there the first half only finds their scales.
#pragma once
#include "rows.cuh"

namespace head_input {

constexpr bool SUM = model::SUM_BEFORE_NORM, SIDE_BY_SIDE = model::HEAD_KIND == HEAD_LANE;
constexpr int SQUARES = SUM ? 0 : ceil_div(mail::TILES, 32);            // words of a stream's sums that a thread reads
constexpr int QUADS = model::HIDDEN / 4;
constexpr int PIECES = SIDE_BY_SIDE ? 0 : ceil_div(SLICE_QUADS, 32);    // of this SM's slice of it
static_assert(!mail::JOINS_LANES || (SQUARES + PIECES <= 64 && SLICE_QUADS <= CONSUMERS), "a bit a word, a thread a piece");

DEVICE const u32* stream(const Core& core, int which) {
    return core.mail(model::LAYERS - 1) + mail::STREAM_AFTER_MLP + which * model::HIDDEN;
}
DEVICE u32* joined_lanes(const Core& core) { return core.params.mail + mail::HEAD_INPUT; }

// What one warp reads of one stream: the sums of its tiles, and `count` pieces of four columns from piece `first` on.
struct Part {
    u32 squares[larger(1, SQUARES)];
    uint4 words[larger(1, PIECES)];

    DEVICE Part(Core& core, int which, int first, int count) {
        const u32* sums = core.params.mail + mail::SQUARES + which * mail::TILES + core.lane;
        const u32* columns = stream(core, which) + (first + int(core.lane)) * 4;
        const bool near = which / model::LANES == core.params.rank;
        bool near_missing = true;  // as far as is known before the first look
        u64 missing = 0;
#pragma unroll
        for (int i = 0; i < SQUARES; ++i) {
            squares[i] = 0;
            if (i * 32 + int(core.lane) < mail::TILES) missing |= 1ull << i;
        }
#pragma unroll
        for (int k = 0; k < PIECES; ++k) {
            words[k] = make_uint4(0, 0, 0, 0);
            if (k * 32 + int(core.lane) < count) missing |= 1ull << (SQUARES + k);
        }
        Spin spin(core.params, core.place, WAIT_VECTOR);
        while (__any_sync(ALL_LANES, missing != 0)) {
#pragma unroll
            for (int i = 0; i < SQUARES; ++i) {
                if (missing >> i & 1u) squares[i] = load_far(sums + i * 32);
            }
#pragma unroll
            for (int k = 0; k < PIECES; ++k) {
                if (missing >> (SQUARES + k) & 1u) words[k] = peek4_far(columns + k * 32 * 4);
            }
#pragma unroll
            for (int i = 0; i < SQUARES; ++i) {
                if (((squares[i] ^ core.epoch) & 1u) == 0) missing &= ~(1ull << i);
            }
#pragma unroll
            for (int k = 0; k < PIECES; ++k) {
                if (fresh(words[k], core.epoch)) missing &= ~(1ull << (SQUARES + k));
            }
            core.profile.looked(near_missing);
            near_missing = near;
            if (spin.hopeless()) missing = 0;
        }
    }
    DEVICE float inverse_rms() const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < SQUARES; ++i) sum += untagged(squares[i]);
        return rsqrtf(warp_sum(sum) * (1.0f / float(model::HIDDEN)) + model::NORM_EPS);
    }
};

// Calls `visit` with each stream that falls to this warp, those of its own GPU first.
template <class Visit>
DEVICE void for_each_stream(const Core& core, const Visit& visit) {
    for (int k = int(core.warp); k < model::STREAMS; k += WARPS) visit((core.params.rank * model::LANES + k) % model::STREAMS);
}

// Of all warps, after the last look of each.
DEVICE void meet(Core& core) {
    if constexpr (KEEPS_LOOKS) {
        if (core.lane == 0) core.shared.looks[core.warp] = {core.profile.near, core.profile.found};
    }
    consumers_sync();
    if constexpr (KEEPS_LOOKS) {
        LastLooks last{0, 0};
        for (const LastLooks& looks : core.shared.looks) {
            if (looks.near > last.near) last.near = looks.near;
            if (looks.any > last.any) last.any = looks.any;
        }
        core.profile.peers_ready(last.near, last.any);
    }
}

// This SM's slice of the joined lanes.
DEVICE void join(Core& core, const u16* norm_weights) {
    const int sm = int(core.place.sm), first = sm * QUADS / model::SMS, count = (sm + 1) * QUADS / model::SMS - first;
    if (!count) return;
    const int quad = int(threadIdx.x);
    float4* slices = core.shared.slices();
    uint2 norm = make_uint2(0, 0);
    if (!SUM && quad < count) norm = __ldg(reinterpret_cast<const uint2*>(norm_weights + (first + quad) * 4));
    for_each_stream(core, [&](int m) {
        const Part part(core, m, first, count);
        const float scale = SUM ? 1.0f : part.inverse_rms() / float(model::STREAMS);
#pragma unroll
        for (int k = 0; k < PIECES; ++k) {
            const int q = k * 32 + int(core.lane);
            const float4 v = untagged(part.words[k]);
            if (q < count) slices[m * SLICE_QUADS + q] = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
        }
    });
    meet(core);
    if (quad >= count) return;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int m = 0; m < model::STREAMS; ++m) {
        const float4 v = slices[m * SLICE_QUADS + quad];
        total = make_float4(total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w);
    }
    if (!SUM) scale_by(total, norm);
    post(joined_lanes(core) + (first + quad) * 4, tagged(total, core.epoch));
}

// All streams, one after the other, each normalised.
DEVICE void stage_side_by_side(Core& core, const u16* norm_weights) {
    constexpr int WIDE = model::STREAMS * model::HIDDEN;
    float* scales = core.shared.merge();
    for_each_stream(core, [&](int m) {
        const float inverse = Part(core, m, 0, 0).inverse_rms();
        if (core.lane == 0) scales[m] = inverse;
    });
    meet(core);
    const Pieces<WIDE> pieces(core);
    float4 values[Pieces<WIDE>::COUNT];
    fetch<WIDE>(core, stream(core, 0), values);
    core.profile.input_ready();
#pragma unroll
    for (int i = 0; i < Pieces<WIDE>::COUNT; ++i) {
        if (!pieces.in_vector(i)) continue;
        const int column = pieces.column(i) % model::HIDDEN;
        const float scale = scales[pieces.column(i) / model::HIDDEN];
        scale_by(values[i], __ldg(reinterpret_cast<const uint2*>(norm_weights + column)));
        values[i] = make_float4(values[i].x * scale, values[i].y * scale, values[i].z * scale, values[i].w * scale);
    }
    store_operand<WIDE>(core, values);
}

DEVICE void stage(Core& core, const u16* norm_weights) {
    if constexpr (SIDE_BY_SIDE) {
        stage_side_by_side(core, norm_weights);
    } else if constexpr (SUM) {
        stage_normed<model::HIDDEN>(core, joined_lanes(core), nullptr, norm_weights);
    } else {
        stage_plain<model::HIDDEN>(core, joined_lanes(core));
    }
}

}  // namespace head_input
