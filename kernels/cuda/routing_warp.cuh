// The warp that routes in decode: one of each SM, beside the producer's.
//
// Waits for: the parts of the SM's scores, once the consumers have the heads, or have neither; then for the scores of all SMs.
// Computes: who is met. Their order does not depend on the scale of the norm before the experts, so the producer is told while
// attention's output is still being multiplied; what each counts once the consumers have the squares of the stream after it.
// Publishes: the SM's scores to all GPUs, the chosen experts to the producer, and what each counts to the consumers.
//
// What it writes for a layer nobody reads any more of the layer before: all scores of a layer are there only after all SMs have
// added up their rows of the stream before it. Nor does it read what the consumers write over. So none of the waits for that
// (`taken`, await_routed) keeps anybody: they are there because race checkers follow barriers and not mailboxes.
#pragma once
#include "folded_router.cuh"

// Before any thread uses them. Who has written arrives, each thread for itself: so race checkers can follow, and no warp has to come
// together for it.
DEVICE void init_routing(experts::RoutingInDecode& routing) {
    barrier_init(&routing.scored, CONSUMERS);
    barrier_init(&routing.squared, WARPS);
    barrier_init(&routing.weighed, 32);
}

template <bool FOLDED>
struct RoutingWarp {
    DEVICE RoutingWarp(const Params&, Shared&, u32) {}
    DEVICE void run() {}
};

template <>
struct RoutingWarp<true> {
    const Params& params;
    Shared& shared;
    Place place;
    u32 lane, epoch = 0;
    bool ended = false;

    DEVICE RoutingWarp(const Params& p, Shared& s, u32 sm)
        : params(p), shared(s), place{sm, threadIdx.x / 32, ATTN_OUT, 0, 0}, lane(threadIdx.x % 32) {}

    // Layer after layer, pass after pass, until nobody wants more.
    DEVICE void run() {
        const bool meets = shared.groups[GATE_UP].count || shared.groups[DOWN].count;
        u32 parity = 0;
        for (u32 serial = params.serial; !ended; ++serial) {
            epoch = serial & 1u;
            for (place.layer = 0; place.layer < model::LAYERS && !ended; ++place.layer) {
                await(&shared.routing.decode().scored, parity);
                if (!ended) post_scores();
                if (!ended && meets) choose(parity);
                if (!ended) barrier_arrive(&shared.routing.decode().weighed);
                parity ^= 1u;
            }
        }
    }

private:
    // Until the consumers have come to the barrier, who have their own spins for whatever keeps them.
    DEVICE void await(u64* barrier, u32 parity) {
        QuietSpin spin(params);
        bool passed = barrier_passed(barrier, parity);
        while (!__all_sync(ALL_LANES, passed)) {
            if (__any_sync(ALL_LANES, barrier_has_passed(&shared.done, 0) || spin.hopeless())) {
                ended = true;
                return;
            }
            passed = passed || barrier_passed(barrier, parity);
        }
    }
    DEVICE void post_scores() {
#pragma unroll 1
        for (int row = 0; row < experts::ROWS; ++row) {
            if (!folded_router::has_row(place.sm, row)) return;
            const int expert = folded_router::expert_of(place.sm, row);
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) sum += shared.routing.decode().sums[row][w * 32 + lane];
            const u32 word = tagged(warp_sum(sum), epoch);
            const size_t at = size_t(place.layer) * mail::LAYER + mail::SCORES + params.rank * model::EXPERTS + expert;
            if (lane != 0) continue;
            ::post(params.mail + at, word);
            for_each_peer(params, [&](const Peer& peer) { post_far(peer.mail + at, word); });
        }
    }
    DEVICE float await_scale(u32 parity) {
        await(&shared.routing.decode().squared, parity);
        return inverse_rms(shared.routing.decode().squares);
    }
    DEVICE void choose(u32 parity) {
        await(&shared.routing.taken, parity ^ 1u);
        if (ended) return;
        const float weight = router::choose(folded_router::await_scores(*this, params.mail), lane, shared.routing.met.chosen, [&] {
            barrier_arrive(&shared.routing.known);
            return await_scale(parity);
        });
        if (int(lane) < model::CHOSEN) shared.routing.met.weights[lane] = weight;
    }
};
