// One token through all layers, the head, and to the next token.
#pragma once
#include "decode_attention.cuh"
#include "head_input.cuh"
#include "folded_router.cuh"
#include "sampling.cuh"

namespace decode {

// A row of the embedding, by all consumer threads but the first `SPARED`.
template <int SPARED = 0>
DEVICE void prefetch_row(const Core& core, int id) {
    constexpr int HALVES = SECTOR_BYTES / int(sizeof(u16));
    const u16* row = core.params.embed + size_t(id) * model::HIDDEN;
#pragma unroll
    for (int first = 0; first < model::HIDDEN; first += (CONSUMERS - SPARED) * HALVES) {
        const int i = first + (int(threadIdx.x) - SPARED) * HALVES;
        if (i < model::HIDDEN) prefetch_sector(row + i);
    }
}

// What the warps do that do not elect the next token: they ask for the row that will be its if this SM's candidate wins, and
// find out who attends to what after it.
DEVICE void prepare_next(Core& core, int position) {
    u64 best = 0;
    for (int w = 0; w < WARPS; ++w) {
        if (core.shared.best[w] > best) best = core.shared.best[w];
    }
    const int likely = candidate_id(best);
    if (u32(likely) < u32(model::VOCAB)) prefetch_row<32>(core, likely);
    decode_attention::plan_items(core, position);
}

// Sets up the residual rows of the lane that this SM finishes: `pair_from(row)` has two of them. All threads of the team.
template <class PairFrom>
DEVICE void begin_residual(Core& core, const PairFrom& pair_from) {
    const TileRange share = core.share(ATTN_OUT);
    for (int p = core.team_thread(); p < pairs_of_group(ATTN_OUT, share.tiles); p += Core::TEAM_THREADS) {
        const int r = 2 * pair_in_lane(pairs_before(ATTN_OUT, share.first) + p, core.model_lane, OUT_LANE_TILES);
        if (r >= model::HIDDEN) continue;
        *reinterpret_cast<float2*>(core.residual() + 2 * p) = pair_from(r);
    }
}
// From a row of the embedding. Nobody reads them before the first attn_out, so it comes after the first qkv, off the path on
// which all SMs wait for that.
DEVICE void begin_residual(Core& core, const u16* row) {
    begin_residual(core, [&](int r) {
        const u32 w = __ldg(reinterpret_cast<const u32*>(row + r));
        return make_float2(weight_low(w), weight_high(w));
    });
}

DEVICE void finish_step(Core& core, StepKind kind, int layer) {
    constexpr int LAYER_STEPS = model::LAYERS * STEPS_A_LAYER;
    const int place = kind == STEP_ROUTER ? int(STEP_GATE_UP) : int(kind) + (experts::ANY && kind >= STEP_GATE_UP ? 1 : 0);
    const int step = kind == STEP_HEAD     ? LAYER_STEPS
                     : kind == STEP_SAMPLE ? LAYER_STEPS + 1
                                           : layer * STEPS_A_LAYER + place;
    core.profile.end(core.params, core.shared.totals, core.place.sm, kind, step, core.profile.passes);
}

DEVICE const u16* norm_of(const Core& core, int index) { return core.params.norms + size_t(index) * model::HIDDEN; }

// POST_NORMS: on an SM without a share of the matrix that reads it, the stream has to go on all the same.
DEVICE void follow_stream(Core& core, const u32* from, const u16* row, const u16* post_norm) {
    if constexpr (model::POST_NORMS) {
        ++core.staged;
        stage_normed<model::HIDDEN>(core, from, row, core.params.norms, post_norm);
    }
}

DEVICE const u16* post_norm_of(const Core& core, int layer, bool mlp) {
    return model::POST_NORMS && layer >= 0 ? heads::post_norm(core.params, layer, mlp) : nullptr;
}

DEVICE void qkv(Core& core, int layer, const u16* row) {
    if constexpr (experts::FOLDED) folded_router::await_routed(core, layer);
    const u16* post_norm = post_norm_of(core, layer - 1, true);
    if (!core.share(QKV).tiles) {
        const u32* mlp = core.mail(layer ? layer - 1 : 0) + mail::STREAM_AFTER_MLP + core.stream() * model::HIDDEN;
        follow_stream(core, mlp, layer ? nullptr : row, post_norm);
        if constexpr (experts::FOLDED && folded_router::routes_without_tiles(QKV)) {
            with_storage<QKV>(layer, [&](auto stored) {
                folded_router::see_stream<stored.STORAGE>(core, layer, mlp, layer ? nullptr : row, norm_of(core, 2 * layer + 1));
            });
        }
        return;
    }
    ++core.staged;
    QkvFinish finish{core, layer};
    with_storage<QKV>(layer, [&](auto stored) {
        GroupRun<QKV, QkvFinish, stored.STORAGE> groups(core, finish);
        const u32* from = core.mail(layer ? layer - 1 : 0) + mail::STREAM_AFTER_MLP + core.stream() * model::HIDDEN;
        if constexpr (experts::FOLDED) {
            folded_router::StreamScores<stored.STORAGE> scores(core, layer, norm_of(core, 2 * layer + 1));
            stage_normed<model::HIDDEN, stored.STORAGE>(core, from, layer ? nullptr : row, norm_of(core, 2 * layer), post_norm, scores);
            scores.leave(core);
        } else {
            stage_normed<model::HIDDEN, stored.STORAGE>(core, from, layer ? nullptr : row, norm_of(core, 2 * layer), post_norm);
        }
        groups.run();
    });
    if constexpr (experts::FOLDED) folded_router::prefetch_heads(core, layer);
}

DEVICE void attn_out(Core& core, int layer) {
    if (!core.share(ATTN_OUT).tiles) {
        if constexpr (experts::FOLDED && folded_router::routes_without_tiles(ATTN_OUT)) {
            with_storage<ATTN_OUT>(layer, [&](auto stored) {
                float4 heads[folded_router::HeadPieces<stored.STORAGE>::COUNT];
                folded_router::see_heads<stored.STORAGE>(core, layer, core.mail(layer) + mail::HEADS_OUT, heads);
            });
        } else if constexpr (experts::FOLDED && first_without_tiles(ATTN_OUT) < model::SMS) {
            barrier_arrive(&core.shared.routing.decode().scored);  // without scores; the warp that routes waits for all threads
        }
        return;
    }
    ResidualFinish<true> finish(core, layer);
    with_storage<ATTN_OUT>(layer, [&](auto stored) {
        GroupRun<ATTN_OUT, ResidualFinish<true>, stored.STORAGE> groups(core, finish);
        const u32* from = core.mail(layer) + mail::HEADS_OUT + core.model_lane * LANE_Q;
        if constexpr (experts::FOLDED) {
            folded_router::stage_heads<stored.STORAGE>(core, layer, from);
            groups.run();
        } else {
            groups.run_plain(from);
        }
    });
}

// With experts a step of its own stages its vector, for the router or for the warp that routes too.
DEVICE void gate_up(Core& core, int layer) {
    const u16* norm = norm_of(core, 2 * layer + 1);
    if constexpr (experts::ANY) {
        if constexpr (experts::FOLDED) folded_router::stage(core, layer, norm);
        else router::run(core, layer, norm);
        finish_step(core, STEP_ROUTER, layer);
        core.profile.begin();
    }
    const u16* post_norm = post_norm_of(core, layer, false);
    if (!core.share(GATE_UP).tiles) {
        follow_stream(core, core.mail(layer) + mail::STREAM_AFTER_ATTENTION + core.model_lane * model::HIDDEN, nullptr, post_norm);
        return;
    }
    if constexpr (!experts::ANY) ++core.staged;
    GateUpFinish finish{core, layer};
    with_storage<GATE_UP>(layer, [&](auto stored) {
        GroupRun<GATE_UP, GateUpFinish, stored.STORAGE> groups(core, finish);
        if constexpr (experts::ANY) {
            core.profile.input_ready();
        } else {
            const u32* from = core.mail(layer) + mail::STREAM_AFTER_ATTENTION + core.model_lane * model::HIDDEN;
            stage_normed<model::HIDDEN, stored.STORAGE>(core, from, nullptr, norm, post_norm);
        }
        groups.run();
    });
}

DEVICE void down(Core& core, int layer) {
    if constexpr (experts::FOLDED) folded_router::prefetch_stream(core, layer + 1, norm_of(core, 2 * layer + 3));
    if (!core.share(DOWN).tiles) return;
    ResidualFinish<false> finish(core, layer);
    with_storage<DOWN>(layer, [&](auto stored) {
        GroupRun<DOWN, ResidualFinish<false>, stored.STORAGE> groups(core, finish);
        groups.run_plain(core.mail(layer) + mail::GATED + core.model_lane * LANE_FFN);
    });
}

// All layers of this SM's lane from `first` on. The next layer's cache blocks are asked for as soon as its qkv begins.
DEVICE void layers(Core& core, const u16* row, int first) {
#pragma unroll 1
    for (int l = first; l < model::LAYERS; ++l) {
        const auto step = [&](StepKind kind, int phase, const auto& run) {
            core.place.layer = l;
            core.refresh();
            core.place.phase = phase;
            core.profile.begin();
            run(core.place.layer);
            core.phase_end();
            finish_step(core, kind, core.place.layer);
        };
        step(STEP_QKV, QKV, [&](int layer) {
            const AttentionItem item = core.shared.items[layer];
            decode_attention::prefetch(core, item, layer);
            if constexpr (experts::ANY && !experts::FOLDED) router::prefetch(core, layer);
            qkv(core, layer, row);
            if (!model::POST_NORMS && layer == 0) begin_residual(core, row);
        });
        step(STEP_ATTENTION, ATTENTION, [&](int layer) {
            const AttentionItem item = core.shared.items[layer];
            decode_attention::run(core, item, layer);
        });
        step(STEP_ATTN_OUT, ATTN_OUT, [&](int layer) { attn_out(core, layer); });
        step(STEP_GATE_UP, GATE_UP, [&](int layer) { gate_up(core, layer); });
        step(STEP_DOWN, DOWN, [&](int layer) { down(core, layer); });
    }
}

// For the next pass to see the cache entries of this one. Thread 0 will post the SM's candidate, so it speaks for all that
// have met it in a barrier since their last entry; the last `down` has one. Here the fence
// does not hold up the exchange of candidates.
DEVICE void release_cache(Core& core) {
    if (!core.share(DOWN).tiles) consumers_sync();
    if (threadIdx.x == 0) release_fence();
}

DEVICE Best head(Core& core, float* kept) {
    core.place.phase = HEAD;
    core.place.layer = model::LAYERS;
    core.profile.begin();
    release_cache(core);
    HeadFinish finish{core, kept};
    const u16* norm = norm_of(core, 2 * model::LAYERS);
    if constexpr (mail::JOINS_LANES && model::HEAD_KIND != HEAD_LANE) {
        head_input::join(core, norm);
        if (!core.share(HEAD).tiles) core.profile.input_ready();  // it waits for nothing more
        core.phase_end();
    }
    core.refresh();
    if (core.share(HEAD).tiles) {
        ++core.staged;
        with_storage<HEAD>(0, [&](auto stored) {
            GroupRun<HEAD, HeadFinish, stored.STORAGE> groups(core, finish);
            if constexpr (mail::JOINS_LANES) {
                head_input::stage(core, norm);
            } else {
                const u16* post_norm = post_norm_of(core, model::LAYERS - 1, true);
                stage_normed<model::HIDDEN, stored.STORAGE>(core, head_input::stream(core, core.stream()), nullptr, norm, post_norm);
            }
            groups.run();
        });
    }
    finish_step(core, STEP_HEAD, 0);
    return finish.found;
}

}  // namespace decode
