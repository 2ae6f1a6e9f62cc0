// Experts in decode of several requests.
//
// Each request has scores, experts and slots of its own. Gates and ups are one product of all requests (distinct_experts.cuh), or, where
// that would have other sums than a request alone, go request after request, as `down` does: an SM multiplies its share of the tiles as
// it does for a request alone. The order of a request's slots is in the sums of `down`, so that two requests that meet an expert want
// other sums of it. Gates of all requests come before the first down.
//
// Waits for: the streams after attention; without router biases first for the heads, and for the streams before it. Computes and
// publishes: of each request what router.cuh and matvec.cuh do of one. All requests' scores are one exchange: a warp for each of
// them posts the SM's, waits for the others' and chooses. On several GPUs without router biases each posts what its own heads add,
// and all add the parts up in the order of GPUs, as the warp that routes does for a request alone (routing_warp.cuh).
#pragma once
#include "decode.cuh"
#include "distinct_experts.cuh"

namespace several {

// A request's vector for gate_up: beside those of the others, or alone.
template <bool ONCE = experts::ONCE>
DEVICE void store_gate_up(Core& core, float4 (&values)[Pieces<model::HIDDEN>::COUNT]) {
    if constexpr (ONCE) {
        store_vector(core, values);
    } else {
        store_operand<model::HIDDEN, experts::STORAGE<GATE_UP>>(core, values);
    }
}

DEVICE void stage_after_attention(Core& core, int layer) {
    constexpr bool BY_QUADS = staged_by_quads(experts::STORAGE<GATE_UP>);
    float4 values[Pieces<model::HIDDEN>::COUNT];
    uint2 norm[Pieces<model::HIDDEN>::COUNT];
    load_norm<model::HIDDEN, BY_QUADS>(core, norm_of(core, 2 * layer + 1), norm);
    fetch<model::HIDDEN, BY_QUADS>(core, core.mail(layer) + mail::AFTER_ATTENTION, values);
    core.profile.input_ready();
    core.squares = 0.0f;
#pragma unroll
    for (int i = 0; i < Pieces<model::HIDDEN>::COUNT; ++i) {
        core.squares += dot_self(values[i]);
        scale_by(values[i], norm[i]);
    }
    store_gate_up(core, values);
}

// Where the router's scores come from.
template <bool FOLDED>
struct Scores {
    // Leaves each request's parts of the SM's scores, and the squares of its stream after attention.
    DEVICE static void leave(Core& core, int layer) {
        for_each_running(core, [&](Core& other) {
            router::stage(other, layer, norm_of(core, 2 * layer + 1), [&](auto& values) { store_gate_up(other, values); });
        });
        consumers_sync();
    }
    DEVICE static void post(Core& core, int layer) {
        float bias = 0.0f;
        if constexpr (experts::BIASED) {
            const int row = int(core.lane);
            if (router::has_row(core, row)) bias = experts::router_bias(core.params, layer, router::expert_of(core, row));
        }
        router::post_scores(core, layer, bias);
    }
    DEVICE static router::Keys await(Core& core, int layer) { return router::Keys(core, layer); }
    DEVICE static void leave_scale(Core&, int) {}
    DEVICE static float scale(const Core&) { return 1.0f; }
};

template <>
struct Scores<true> {
    DEVICE static void leave(Core& core, int layer) {
        if (!router::has_row(core, 0)) return;
        for_each_running(core, [&](Core& other) {
            const u16* row = other.params.embed + size_t(other.shared.seats[other.own.request].id) * model::HIDDEN;
            const u32* before = other.mail(layer ? layer - 1 : 0) + mail::AFTER_MLP;
            with_storage<QKV>(layer, [&](auto stored) {
                folded_router::see_stream<stored.STORAGE>(other, layer, before, layer ? nullptr : row, norm_of(core, 2 * layer + 1));
            });
            with_storage<ATTN_OUT>(layer, [&](auto stored) {
                float4 heads[folded_router::HeadPieces<stored.STORAGE>::COUNT];
                folded_router::see_heads<stored.STORAGE>(other, layer, other.mail(layer) + mail::HEADS_OUT, heads);
            });
            const u32 thread = other.warp * 32 + other.lane;
#pragma unroll
            for (int row = 0; row < experts::ROWS; ++row) other.score_parts(row)[thread] = folded_router::part_of_score(other, row);
        });
        consumers_sync();
    }
    DEVICE static void post(Core& core, int layer) {
#pragma unroll 1
        for (int row = 0; row < experts::ROWS && router::has_row(core, row); ++row) {
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) sum += core.score_parts(row)[w * 32 + core.lane];
            const u32 word = tagged(warp_sum(sum), core.epoch);
            if (core.lane == 0) post_part(core, layer, router::expert_of(core, row), word);
        }
    }
    // What this GPU's heads add to a score, to all GPUs.
    DEVICE static void post_part(const Core& core, int layer, int expert, u32 word) {
        const int part = mail::SCORES + (model::RANKS > 1 ? core.params.rank * model::EXPERTS : 0);
        ::post(core.mail(layer) + part + expert, word);
        for_each_peer(core.params, [&](const Peer& peer) { post_far(peer.mail + mail_at(layer, part + expert), word); });
    }
    DEVICE static router::Keys await(Core& core, int layer) {
        if constexpr (model::RANKS == 1) return router::Keys(core, layer);
        return folded_router::await_scores(core, core.mailbox());
    }
    // Scores do not depend on it, but what each expert counts does.
    DEVICE static void leave_scale(Core& core, int layer) {
        for_each_running(core, [&](Core& other) {
            stage_after_attention(other, layer);
            leave_squares(other);
        });
        consumers_sync();
    }
    DEVICE static float scale(const Core& core) { return inverse_rms(core.squares_left()); }
};

template <bool ANY>
struct Experts {
    DEVICE static void gate_up(Core&, int) {}
    DEVICE static void down(Core&, int) {}
};

template <>
struct Experts<true> {
    template <int TILES = experts::ONCE ? experts::TILES_A_GROUP : 0>
    DEVICE static void gate_up(Core& core, int layer) {
        route(core, layer);
        decode::finish_step(core, STEP_ROUTER, layer);
        core.profile.begin();
        if constexpr (TILES) {
            core.profile.input_ready();
            DistinctProducts<TILES, experts::STORAGE<GATE_UP>>(core, layer).run();
        } else if (core.share(GATE_UP).tiles) {
            in_turn(core, [&](Core& other) {
                GateUpFinish finish{other, layer};
                GroupRun<GATE_UP, GateUpFinish, experts::STORAGE<GATE_UP>> groups(other, finish);
                stage_after_attention(other, layer);
                if constexpr (by_warpgroups(experts::STORAGE<GATE_UP>) && !experts::FOLDED) consumers_sync();
                groups.run();
            });
        }
    }
    DEVICE static void down(Core& core, int layer) {
        if (!core.share(DOWN).tiles) return;
        in_turn(core, [&](Core& other) {
            ResidualFinish<false> finish(other, layer);
            GroupRun<DOWN, ResidualFinish<false>, experts::STORAGE<DOWN>> groups(other, finish);
            groups.run_plain(other.mail(layer) + mail::GATED);
        });
    }

private:
    // Finds out whom each request meets, and tells the producer.
    DEVICE static void route(Core& core, int layer) {
        using Scores = several::Scores<experts::FOLDED>;
        const bool meets = experts::ONCE || core.share(GATE_UP).tiles || core.share(DOWN).tiles;
        if (!meets && !router::has_row(core, 0)) return;
        ++core.staged;
        const bool routes = core.warp < REQUESTS && runs(core.shared, core.own.request);
        Scores::leave(core, layer);
        if (routes) Scores::post(core, layer);
        if (meets) {
            Scores::leave_scale(core, layer);
            if (routes) choose(core, layer);
        }
        consumers_sync();
        if constexpr (experts::ONCE) {
            if (core.warp == 0) list_experts(core);
        }
        if (meets && threadIdx.x == 0) barrier_arrive(&core.shared.routing.known);
        if constexpr (experts::ONCE) consumers_sync();
    }
    DEVICE static void choose(Core& core, int layer) {
        using Scores = several::Scores<experts::FOLDED>;
        experts::Met& met = core.met();
        const float weight = router::choose(Scores::await(core, layer), core.lane, met.chosen, [&] { return Scores::scale(core); });
        if (int(core.lane) < model::CHOSEN) met.weights[core.lane] = weight;
    }
    // For each request, with a core that stands where the thread does in the ring and among the groups.
    template <class Visit>
    DEVICE static void in_turn(Core& core, const Visit& visit) {
        for_each_running(core, [&](Core& other) {
            other.cursor = core.cursor;
            other.group = core.group;
            visit(other);
            core.cursor = other.cursor;
            core.group = other.group;
        });
    }
};

}  // namespace several
