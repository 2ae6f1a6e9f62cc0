// One token through all layers, the head, and to the next token.
#pragma once
#include "attention.cuh"
#include "sampling.cuh"

namespace decode {

// Asks for the embedding row at once: the first qkv looks at it only after all that it can do without.
DEVICE void prefetch_row(const u16* row) {
    constexpr int HALVES = SECTOR_BYTES / int(sizeof(u16));
#pragma unroll
    for (int first = 0; first < model::HIDDEN; first += CONSUMERS * HALVES) {
        const int i = first + int(threadIdx.x) * HALVES;
        if (i < model::HIDDEN) prefetch_sector(row + i);
    }
}

// Sets up the residual rows of the lane that this SM finishes. Nobody reads them before the first attn_out, so it comes
// after the first qkv, off the path on which all SMs wait for that.
DEVICE void begin_residual(Core& core, const u16* row) {
    const Share share = core.share(ATTN_OUT);
    for (int p = int(threadIdx.x); p < share.tiles * (TILE_ROWS / 2); p += CONSUMERS) {
        const int r = 2 * pair_in_lane(share.first * (TILE_ROWS / 2) + p, core.model_lane, OUT_LANE_TILES);
        if (r >= model::HIDDEN) continue;
        const u32 w = __ldg(reinterpret_cast<const u32*>(row + r));
        *reinterpret_cast<float2*>(core.shared.residual[core.seat] + 2 * p) = make_float2(weight_low(w), weight_high(w));
    }
}

// The head's input when the model has several lanes and one normalised vector: every lane is normalised first.
DEVICE void stage_lanes(Core& core, const u32* from, const u16* norm_weights) {
    constexpr int COUNT = Pieces<model::HIDDEN>::COUNT;
    constexpr bool SUM = model::SUM_BEFORE_NORM, SIDE_BY_SIDE = model::HEAD_KIND == 2;
    static_assert(model::STREAMS * COUNT <= 32 || model::STREAMS == 1, "one bit a piece");
    const Pieces<model::HIDDEN> pieces(core);
    uint4 words[model::STREAMS][COUNT];
    uint2 norm[COUNT];
    load_norm<model::HIDDEN>(core, norm_weights, norm);
    u32 missing = 0;
#pragma unroll
    for (int m = 0; m < model::STREAMS; ++m) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            words[m][i] = make_uint4(0, 0, 0, 0);
            if (pieces.in_vector(i)) missing |= 1u << (m * COUNT + i);
        }
    }
    const u32 near = ~(~0ull << model::LANES * COUNT) << core.params.rank * model::LANES * COUNT;
    core.profile.near_ready();
    Spin spin(core.params, core.place, WAIT_VECTOR);
    while (__any_sync(ALL_LANES, missing)) {
#pragma unroll
        for (int k = 0; k < model::STREAMS * COUNT; ++k) {
            if (missing >> k & 1u) words[k / COUNT][k % COUNT] = peek4_far(from + k / COUNT * model::HIDDEN + pieces.column(k % COUNT));
        }
#pragma unroll
        for (int k = 0; k < model::STREAMS * COUNT; ++k) {
            if (fresh(words[k / COUNT][k % COUNT], core.epoch)) missing &= ~(1u << k);
        }
        if constexpr (model::PROFILE && model::RANKS > 1) {
            if (__any_sync(ALL_LANES, missing & near)) core.profile.near_ready();  // the warp waits as one
        }
        if (missing && spin.hopeless()) missing = 0;
    }
    core.profile.input_ready();
    const auto value = [&](int m, int i) { return decode_attention::numbers(words[m][i]); };
    if constexpr (SUM) {
        float4 total[COUNT];
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            total[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (int m = 0; m < model::STREAMS; ++m) {
                const float4 v = value(m, i);
                total[i] = make_float4(total[i].x + v.x, total[i].y + v.y, total[i].z + v.z, total[i].w + v.w);
            }
            squares += dot_self(total[i]);
            scale_by(total[i], norm[i]);
        }
        core.squares = squares;
        store_operand<model::HIDDEN>(core, total);
        return;
    }
#pragma unroll
    for (int m = 0; m < model::STREAMS; ++m) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) squares += dot_self(value(m, i));
        squares = warp_sum(squares);
        if (core.lane == 0) core.shared.lane_squares[core.warp][m] = squares;
    }
    consumers_sync();
    float inverse[model::STREAMS];
#pragma unroll
    for (int m = 0; m < model::STREAMS; ++m) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; ++w) sum += core.shared.lane_squares[w][m];
        inverse[m] = rsqrtf(sum / float(model::HIDDEN) + model::NORM_EPS);
    }
    if constexpr (SIDE_BY_SIDE) {
        constexpr int WIDE = model::STREAMS * model::HIDDEN;
        const Pieces<WIDE> wide(core);
        float4 values[Pieces<WIDE>::COUNT];
        fetch<WIDE>(core, from, values);
#pragma unroll
        for (int i = 0; i < Pieces<WIDE>::COUNT; ++i) {
            if (!wide.in_vector(i)) continue;
            const int m = wide.column(i) / model::HIDDEN, column = wide.column(i) % model::HIDDEN;
            scale_by(values[i], __ldg(reinterpret_cast<const uint2*>(norm_weights + column)));
            float scale = 0.0f;
            for (int w = 0; w < WARPS; ++w) scale += core.shared.lane_squares[w][m];
            scale = rsqrtf(scale / float(model::HIDDEN) + model::NORM_EPS);
            values[i] = make_float4(values[i].x * scale, values[i].y * scale, values[i].z * scale, values[i].w * scale);
        }
        store_operand<WIDE>(core, values);
    } else {
        float4 mean[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            mean[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (int m = 0; m < model::STREAMS; ++m) {
                const float4 v = value(m, i);
                const float s = inverse[m] / float(model::STREAMS);
                mean[i] = make_float4(mean[i].x + v.x * s, mean[i].y + v.y * s, mean[i].z + v.z * s, mean[i].w + v.w * s);
            }
            scale_by(mean[i], norm[i]);
        }
        store_operand<model::HIDDEN>(core, mean);
    }
}

DEVICE void finish_step(Core& core, StepKind kind, int layer) {
    constexpr int LAYER_STEPS = model::LAYERS * 5 * model::SEATS;
    const int step = kind == STEP_HEAD     ? LAYER_STEPS
                     : kind == STEP_SAMPLE ? LAYER_STEPS + 1
                                           : (layer * 5 + int(kind)) * model::SEATS + core.seat;
    core.profile.end(core.params, core.shared.totals, core.place.sm, kind, step, core.profile.passes);
}

DEVICE const u16* norm_of(const Core& core, int index) { return core.params.norms + size_t(index) * model::HIDDEN; }

DEVICE void qkv(Core& core, int layer, const u16* row) {
    if (!core.share(QKV).tiles) return;
    ++core.staged;
    QkvFinish finish{core, layer};
    GroupRun<QKV, QkvFinish> groups(core, finish);
    const u32* from = core.mail(layer ? layer - 1 : 0) + mail::AFTER_MLP + core.stream() * model::HIDDEN;
    stage_normed<model::HIDDEN>(core, from, layer ? nullptr : row, norm_of(core, 2 * layer));
    groups.run();
}

DEVICE void attn_out(Core& core, int layer) {
    if (!core.share(ATTN_OUT).tiles) return;
    ResidualFinish<true> finish(core, layer);
    GroupRun<ATTN_OUT, ResidualFinish<true>> groups(core, finish);
    stage_plain<Matrix<ATTN_OUT>::COLUMNS>(core, core.mail(layer) + mail::HEADS_OUT + core.model_lane * LANE_Q);
    groups.run();
}

DEVICE void gate_up(Core& core, int layer) {
    if (!core.share(GATE_UP).tiles) return;
    ++core.staged;
    GateUpFinish finish{core, layer};
    GroupRun<GATE_UP, GateUpFinish> groups(core, finish);
    const u32* from = core.mail(layer) + mail::AFTER_ATTENTION + core.model_lane * model::HIDDEN;
    stage_normed<model::HIDDEN>(core, from, nullptr, norm_of(core, 2 * layer + 1));
    groups.run();
}

DEVICE void down(Core& core, int layer) {
    if (!core.share(DOWN).tiles) return;
    ResidualFinish<false> finish(core, layer);
    GroupRun<DOWN, ResidualFinish<false>> groups(core, finish);
    stage_plain<Matrix<DOWN>::COLUMNS>(core, core.mail(layer) + mail::GATED + core.model_lane * LANE_FFN);
    groups.run();
}

// All layers of all this SM's lanes. The next layer's cache blocks are asked for as soon as its qkv begins.
DEVICE void layers(Core& core, const u16* row) {
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) {
#pragma unroll 1
        for (int i = 0; i < TURNS; ++i) {
            const Turn now = turn(i);
            const int layer = round - now.behind;
            if (layer < 0 || layer >= model::LAYERS) continue;
            core.sit(now.seat);
            core.refresh();
            core.place.layer = layer;
            core.place.phase = now.phase;
            core.profile.begin();
            StepKind kind = STEP_ATTENTION;
            if (now.phase == QKV || now.phase == ATTENTION) {
                const AttentionItem item = core.shared.items[now.seat][layer];
                if (now.phase == QKV) {
                    decode_attention::prefetch(core, item, layer);
                    qkv(core, layer, row);
                    if (layer == 0) begin_residual(core, row);
                    kind = STEP_QKV;
                } else {
                    decode_attention::run(core, item, layer);
                }
            } else if (now.phase == ATTN_OUT) {
                attn_out(core, layer);
                kind = STEP_ATTN_OUT;
            } else if (now.phase == GATE_UP) {
                gate_up(core, layer);
                kind = STEP_GATE_UP;
            } else {
                down(core, layer);
                kind = STEP_DOWN;
            }
            core.phase_end();
            finish_step(core, kind, layer);
        }
    }
}

// For the next pass to see the cache entries of this one. Thread 0 will post the SM's candidate, so it speaks for all that
// have met it in a barrier since their last entry; the last `down`, whose seat is the current one, has one. Here the fence
// does not hold up the exchange of candidates.
DEVICE void release_cache(Core& core) {
    if (!core.share(DOWN).tiles) consumers_sync();
    if (threadIdx.x == 0) release_fence();
}

// Returns this thread's best candidate.
DEVICE u64 head(Core& core, float* kept) {
    core.place.phase = HEAD;
    core.place.layer = model::LAYERS;
    core.profile.begin();
    release_cache(core);
    HeadFinish finish{core, kept};
    const u16* norm = norm_of(core, 2 * model::LAYERS);
    const u32* streams = core.mail(model::LAYERS - 1) + mail::AFTER_MLP;
    for (int seat = 0; seat < (HEAD_PARTS > 1 ? model::SEATS : 1); ++seat) {
        core.sit(seat);
        core.refresh();
        if (!core.share(HEAD).tiles) continue;
        ++core.staged;
        GroupRun<HEAD, HeadFinish> groups(core, finish);
        if constexpr (model::STREAMS == 1 || model::HEAD_KIND == 1) {
            stage_normed<model::HIDDEN>(core, streams + core.stream() * model::HIDDEN, nullptr, norm);
        } else {
            stage_lanes(core, streams, norm);
        }
        groups.run();
    }
    finish_step(core, STEP_HEAD, 0);
    return finish.best;
}

}  // namespace decode
