// Decode of several requests in one launch: a pass gives each of them a token, and reads every weight once.
//
// Each request has a Params of its own: its mailbox, cache, candidates, sampling and token ring, as if it were alone. Nothing in
// them is shared, so a request may end, or begin at the next launch, without a word to the others. What becomes of it does
// not depend on them: its sums are those of a request alone (several_products.cuh), an SM attends for one request after the
// other, and every REQUESTS-th warp works for a request where there is work for each: its team stages its vectors, finishes its
// rows and finds its next token.
#pragma once
#include "decode.cuh"
#include "several_experts.cuh"
#include "several_lanes.cuh"
#include "several_products.cuh"

namespace several {

// The request that a warp works for.
DEVICE int request_of(u32 warp) { return int(warp % REQUESTS); }

// Calls `visit` with the number of each request whose bit is set, the same in all lanes.
template <class Visit>
DEVICE void for_each_bit(u32 bits, const Visit& visit) {
#pragma unroll 1
    for (; bits; bits &= bits - 1) visit(int(__ffs(int(bits))) - 1);
}

// --- layers -------------------------------------------------------------------------------------------------------------

DEVICE AttentionItem item(const Core& core, int layer) { return core.shared.items[core.own.request * model::LAYERS + layer]; }

// The requests of which this SM has an item in a layer. Most often there is one at most, so it is worth finding out.
DEVICE u32 with_item(const Core& core, int layer) {
    const int r = int(core.lane) % REQUESTS;
    const bool has = runs(core.shared, r) && core.shared.items[r * model::LAYERS + layer].head >= 0;
    return __ballot_sync(ALL_LANES, has && core.lane < REQUESTS);
}
template <class Visit>
DEVICE void for_each_item(Core& core, int layer, const Visit& visit) {
    for_each_bit(with_item(core, layer), [&](int request) { visit_request(core, request, visit); });
}

// The order in which the SMs of a lane get items where some have no tile of attn_out: those first that have fewest tiles of the matrices
// before and after attention, so that who attends has nothing else to finish or to begin while all wait for it. That is where a request
// alone has its items of SmolLM2; 24 of four requests on every fifth SM made a token 5 % longer. Else in the order of their numbers.
struct ItemOrder {
    u8 place[model::SMS_A_LANE];  // of each SM
    u8 alike[model::SMS_A_LANE];  // of each place: how many SMs have no more tiles than the one there
};
constexpr int tiles_of(int sm, int tiles) { return (sm + 1) * tiles / model::SMS_A_LANE - sm * tiles / model::SMS_A_LANE; }
constexpr int tiles_beside_attention(int sm) {
    return OUT_LANE_TILES < model::SMS_A_LANE ? tiles_of(sm, QKV_LANE_TILES) + tiles_of(sm, OUT_LANE_TILES) : 0;
}
constexpr ItemOrder item_order() {
    static_assert(model::SMS_A_LANE < 256, "a byte each");
    ItemOrder order{};
    for (int sm = 0; sm < model::SMS_A_LANE; ++sm) {
        int place = 0, alike = 0;
        for (int other = 0; other < model::SMS_A_LANE; ++other) {
            const int more = tiles_beside_attention(other) - tiles_beside_attention(sm);
            place += more < 0 || (more == 0 && other < sm);
            alike += more <= 0;
        }
        order.place[sm] = u8(place);
        order.alike[place] = u8(alike);
    }
    return order;
}
__constant__ const ItemOrder ITEM_ORDER = item_order();

// Items of all requests lie side by side: an SM has more than one only where there are more items than SMs. Those of a lane's heads lie on
// the lane's SMs: lanes are some layers apart, and on another's they would wait for each other in each layer. As many items as
// alone, whatever there is room for: their number shows in the result's bits. Of the pass that comes `ahead` passes later; a request
// that has ended by then has items that nobody asks for. All consumer threads.
static_assert(model::KV_HEADS % model::LANES == 0, "as many items for each lane");
DEVICE int items_a_lane(const AttentionItem& item) { return decode_attention::items_of(item.blocks) / model::LANES * item.splits; }
DEVICE void plan_items(Core& core, int ahead) {
    constexpr int ALL = REQUESTS * model::LAYERS;
    AttentionItem* items = core.shared.items;
    const int thread = int(core.warp * 32 + core.lane);
#pragma unroll 1
    for (int i = thread; i < ALL; i += CONSUMERS) {
        const int position = core.shared.seats[i / model::LAYERS].position + ahead;
        items[i] = decode_attention::split_head(position, window_of(i % model::LAYERS), core.params.blocks_a_split);
    }
    consumers_sync();
#pragma unroll 1
    for (int i = thread; i < ALL; i += CONSUMERS) {
        const int request = i / model::LAYERS, layer = i % model::LAYERS;
        int before = 0, all = 0;
        for (int r = 0; r < REQUESTS; ++r) {
            if (r == request) before = all;
            if (runs(core.shared, r)) all += items_a_lane(items[r * model::LAYERS + layer]);
        }
        constexpr int SMS = model::SMS_A_LANE;
        const int alike = ITEM_ORDER.alike[larger(1, smaller(all, SMS)) - 1];
        const int stride = larger(1, alike / larger(1, all)), of_lane = items_a_lane(items[i]);
        const int sm = int(core.place.sm) - core.model_lane * SMS, place = ITEM_ORDER.place[smaller(sm, SMS - 1)];
        const int away = (place + SMS - before * stride % SMS) % SMS, in_lane = away / stride;
        if (sm < SMS && away % stride == 0 && in_lane < of_lane) decode_attention::take_part(items[i], core.model_lane * of_lane + in_lane);
    }
}

DEVICE const u16* row_of(const Core& core, int id) { return core.params.embed + size_t(id) * model::HIDDEN; }

// Each team its request's.
DEVICE void begin_residuals(Core& core) {
    if (runs(core.shared, core.own.request)) decode::begin_residual(core, row_of(core, core.shared.seats[core.own.request].id));
}

template <int PHASE, bool NORMED = false, class Finish>
DEVICE void product(Core& core, int layer, Finish& finish, const Source& source) {
    if (!core.share(PHASE).tiles) return;
    ++core.staged;
    with_storage<PHASE>(layer, [&](auto stored) {
        Products<PHASE, NORMED, stored.STORAGE, Finish> products(core, finish);
        products.run(source);
    });
}

// Of the layer that comes next, while attention is waited for: a qkv's begin is on the way on which all wait for it.
DEVICE void prefetch_cache(Core& core, int layer) {
    for_each_item(core, layer, [&](Core& other) { decode_attention::prefetch(other, item(other, layer), layer); });
}

DEVICE void qkv(Core& core, int layer) {
    if (layer == 0) prefetch_cache(core, 0);
    QkvFinish finish{core, layer};
    const size_t at = mail_at(layer ? layer - 1 : 0, mail::AFTER_MLP + core.stream() * model::HIDDEN);
    product<QKV, true>(core, layer, finish, {at, layer == 0, norm_of(core, 2 * layer)});
    if (layer == 0) begin_residuals(core);
}

DEVICE void attn_out(Core& core, int layer) {
    if (layer + 1 < model::LAYERS) prefetch_cache(core, layer + 1);
    ResidualFinish<true> finish(core, layer);
    product<ATTN_OUT>(core, layer, finish, {mail_at(layer, mail::HEADS_OUT + core.model_lane * LANE_Q), false, nullptr});
}

DEVICE void gate_up(Core& core, int layer) {
    if constexpr (experts::ANY) return Experts<experts::ANY>::gate_up(core, layer);
    GateUpFinish finish{core, layer};
    const size_t at = mail_at(layer, mail::AFTER_ATTENTION + core.model_lane * model::HIDDEN);
    product<GATE_UP, true>(core, layer, finish, {at, false, norm_of(core, 2 * layer + 1)});
}

DEVICE void down(Core& core, int layer) {
    if constexpr (experts::ANY) return Experts<experts::ANY>::down(core, layer);
    ResidualFinish<false> finish(core, layer);
    product<DOWN>(core, layer, finish, {mail_at(layer, mail::GATED + core.model_lane * LANE_FFN), false, nullptr});
}

DEVICE void layers(Core& core) {
#pragma unroll 1
    for (int l = 0; l < model::LAYERS; ++l) {
#pragma unroll 1
        for (int step = 0; step < STEP_HEAD; ++step) {
            core.place.layer = l;
            core.refresh();
            const int layer = core.place.layer;
            core.place.phase = step == STEP_QKV ? QKV : step == STEP_ATTENTION ? ATTENTION : step - 1;
            core.profile.begin();
            if (step == STEP_QKV) {
                qkv(core, layer);
            } else if (step == STEP_ATTENTION) {
                for_each_item(core, layer, [&](Core& other) { decode_attention::run(other, item(other, layer), layer); });
            } else if (step == STEP_ATTN_OUT) {
                attn_out(core, layer);
            } else if (step == STEP_GATE_UP) {
                gate_up(core, layer);
            } else {
                down(core, layer);
            }
            core.phase_end();
            decode::finish_step(core, StepKind(step), layer);
        }
    }
}

// --- head ---------------------------------------------------------------------------------------------------------------

// As decode::release_cache, by each thread that will post a candidate.
DEVICE void release_caches(Core& core) {
    if (!core.share(DOWN).tiles) consumers_sync();
    if (core.warp < REQUESTS && core.lane == 0) release_fence();
}

DEVICE Best head(Core& core) {
    core.place.phase = HEAD;
    core.place.layer = model::LAYERS;
    core.profile.begin();
    release_caches(core);
    plan_items(core, 1);  // while the last layer is waited for
    const u16* norm = norm_of(core, 2 * model::LAYERS);
    if constexpr (mail::JOINS_LANES) {
        join_lanes(core, norm);
        if (!core.share(HEAD).tiles) core.profile.input_ready();  // it waits for nothing more
        core.phase_end();
    }
    core.refresh();
    HeadFinish finish{core, nullptr};
    const size_t last = mail_at(model::LAYERS - 1, mail::AFTER_MLP + core.stream() * model::HIDDEN);
    product<HEAD, !HeadFinish::PRESCALED>(core, 0, finish, {mail::JOINS_LANES ? mail::HEAD_INPUT : last, false, norm});
    decode::finish_step(core, STEP_HEAD, 0);
    return finish.found;
}

// Asks for the row of the embedding with which the next pass begins, unless the filters want another one. One warp, of one SM.
DEVICE void prefetch_likely_row(const Core& core) {
    constexpr int HALVES = SECTOR_BYTES / int(sizeof(u16));
    if (core.place.sm != u32(core.own.request)) return;
    __syncwarp();
    const u16* row = row_of(core, int(core.shared.token[core.own.request]));
    for (int i = int(core.lane) * HALVES; i < model::HIDDEN; i += 32 * HALVES) prefetch_sector(row + i);
}

// Each request's next token, or why there is none: its team leaves it in `token` and `verdict`, for its first warp.
DEVICE void choose(Core& core, Best mine, bool stop_asked) {
    const bool filtered = model::FILTERS && core.params.sampling.filtered;
    mine.candidate = warp_max(mine.candidate);
    if (core.lane == 0) core.shared.best[core.warp] = mine.candidate;
    if (filtered) filters::begin(core, mine.top_key);
    consumers_sync();
    if (!runs(core.shared, core.own.request)) return;
    constexpr u32 SETTLES = Core::TEAM > 1 ? 1 : 0;  // which of the team's warps exchanges offers
    if (filtered && core.member() == SETTLES) filters::offer_first(core);  // on its way while the candidates are waited for
    if (core.member() == 0) {
        elect(core, stop_asked);
        prefetch_likely_row(core);
    }
    if (filtered && core.member() == SETTLES) filters::settle_offers(core, true);
    if (!filtered) return;
    core.team_sync();
    const StopIds stop_ids(core);  // on their way meanwhile
    filters::settle(core);
    if (core.member() == 0) {
        const u32 request = core.own.request, flags = (core.shared.verdict[request] & ~STOP_ID) | (core.shared.draw[request].lost ? ABORTED : 0u);
        __syncwarp();
        conclude(core, stop_ids, u32(core.shared.draw[request].id), flags);
    }
}

// --- tokens -------------------------------------------------------------------------------------------------------------

// What SM 0 tells the host of one request: the first GPU's, and of its end, every GPU's.
struct Report {
    const Params& params;
    u64 elapsed;
    bool speaks, ends;

    DEVICE void token(int at, int id) const {
        if (!speaks) return;
        const u64 word = elapsed << TOKEN_ID_BITS | u64(id);
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(params.ring + at), "l"(word) : "memory");
    }
    DEVICE void prefilled(int tokens) const {
        if (!speaks) return;
        *static_cast<volatile u64*>(&params.status->prefill_ns) = elapsed;
        *static_cast<volatile u32*>(&params.status->prefilled) = u32(tokens);
    }
    // Its end, after all else: the host takes it as the end while others go on.
    DEVICE void end(const Seat& seat) const {
        if (!(model::RANKS > 1 ? ends : speaks)) return;
        params.status->generated = u32(seat.generated);
        params.status->passes = seat.serial - params.serial;
        __threadfence_system();
        *static_cast<volatile u32*>(&params.status->finish) = seat.finish;
    }
};

// Moves a request's seat to its next position, or ends it. One thread of an SM; on all SMs the same.
DEVICE void take_step(Core& core, const Report& report) {
    const Params& params = core.params;
    const u32 verdict = core.shared.verdict[core.own.request];
    Seat seat = core.shared.seats[core.own.request];
    ++seat.serial;
    const int next = seat.position + 1;
    if (verdict & ABORTED) {
        seat.finish = FINISH_ABORTED;
    } else if (next < params.ids_count) {
        seat.id = params.ids[next];
        if (verdict & STOP_ASKED) seat.finish = FINISH_CANCELLED;
    } else {
        seat.id = int(core.shared.token[core.own.request]);
        if (next == params.ids_count) report.prefilled(next);
        if (verdict & STOP_ID) {
            seat.finish = FINISH_STOP;
        } else {
            report.token(seat.generated, seat.id);
            ++seat.generated;
            if (model::FILTERS && params.sampling.adjusts) note_use(core, seat.id, true);
            if (seat.generated >= params.max_new || next + 1 >= model::CAPACITY) seat.finish = FINISH_LENGTH;
            if (verdict & STOP_ASKED) seat.finish = FINISH_CANCELLED;
        }
    }
    seat.position = next;
    core.shared.seats[core.own.request] = seat;
    if (seat.finish != FINISH_RUNNING) report.end(seat);
}

DEVICE bool anybody_runs(const Shared& shared) {
    bool any = false;
#pragma unroll
    for (int r = 0; r < REQUESTS; ++r) any |= runs(shared, r);
    return any;
}

// Until all requests have ended that may generate any; returns how many passes that took, with the profile compiled in. `reader` is
// the core that has read a prompt's piece.
DEVICE int decode_all(const Together& launch, const Core& reader, u64 start) {
    const int request = request_of(reader.warp);
    Core core{launch.requests[request], reader.shared, reader.place, reader.lane, reader.warp, reader.model_lane, reader.cursor};
    core.group = reader.group;
    core.barriers = reader.barriers;
    core.own.launch = &launch;
    core.own.request = request;
    core.own.mail = core.params.mail;
    const bool leads = core.warp < REQUESTS && core.lane == 0;
    if (leads) {
        const Params& p = core.params;
        Seat& seat = core.shared.seats[request];
        seat = {p.prefill_end, p.ids[p.prefill_end], 0, p.serial, u32(p.max_new > 0 ? FINISH_RUNNING : FINISH_LENGTH)};
    }
    consumers_sync();
    if (model::FILTERS) for_each_running(core, [](Core& other) { begin_rows(other); });
    plan_items(core, 0);
    consumers_sync();
    while (anybody_runs(core.shared)) {
        core.serial = core.shared.seats[request].serial;
        core.epoch = core.serial & 1u;
        core.position = core.place.position = core.shared.seats[request].position;
        layers(core);
        const bool ends = leads && core.place.sm == 0, reports = ends && core.params.rank == 0;
        const bool stop_asked = reports && load_relaxed(core.params.stop_flag);
        const Best best = head(core);
        core.profile.begin();
        choose(core, best, stop_asked);
        if (leads && runs(core.shared, request)) take_step(core, Report{core.params, global_ns() - start + 1, reports, ends});
        consumers_sync();
        decode::finish_step(core, STEP_SAMPLE, 0);
        ++core.profile.passes;
    }
    return core.profile.passes;
}

}  // namespace several
