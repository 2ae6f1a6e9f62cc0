// The next token, by the same rule and the same random numbers as every backend (engine/sampling.py).
//
// Each SM keeps the best of its own vocabulary rows, all SMs exchange one word and take the largest. top-k, top-p and min-p
// may send it back for another one (filters.cuh).
#pragma once
#include "filters.cuh"

// The candidates of a pass: a word of every SM of every GPU, then one with bits of Verdict. They lie in two arrays that
// passes use in turn. An SM that has no part in the layers is waited for nowhere but here, so that the others may have come
// to the next exchange while it still reads the words of this one; to come to the one after they need its next candidate.
// Zeros, with which both begin, are not fresh in the first pass of either.
struct Ballot {
    static constexpr int SENDERS = model::RANKS * model::SMS;

    u32 first, parity;
    DEVICE explicit Ballot(u32 serial) : first((serial & 1u) * (SENDERS + 1)), parity((serial + 1u) >> 1 & 1u) {}
    DEVICE bool fresh(u64 word) const { return ((u32(word) ^ parity) & 1u) == 0; }
};

// The largest candidate, the word beside them, and whether the launch is to end as it is: an SM that has given up posts a
// candidate as well. All lanes of one warp; loads overlap.
struct Exchanged {
    u64 top;
    u32 word;
    bool aborted;
};

DEVICE Exchanged collect(Core& core, const Ballot& ballot) {
    constexpr int COUNT = Ballot::SENDERS;
    constexpr int EACH = ceil_div(COUNT + 1, 32);
    static_assert(EACH <= 64, "one bit a word");
    const u64* from = core.params.candidates + ballot.first + core.lane;
    u64 words[EACH];
    u64 missing = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        words[i] = 0;
        if (i * 32 + int(core.lane) <= COUNT) missing |= 1ull << i;
    }
    u32 aborted = 0, given_up = 0;
    bool near_missing = true;
    Spin spin(core.params, core.place, WAIT_CANDIDATE);
    while (__any_sync(ALL_LANES, missing != 0)) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (missing >> i & 1u) words[i] = load_far(from + i * 32);
        }
        aborted = load_relaxed(&core.params.control->aborted);  // after each word, but on the same trip
        bool near = false;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (ballot.fresh(words[i])) missing &= ~(1ull << i);
            near |= (missing >> i & 1u) && (i * 32 + int(core.lane)) / model::SMS == core.params.rank;
        }
        if constexpr (model::PROFILE && model::RANKS > 1) {
            core.profile.looked(near_missing);
            near_missing = __any_sync(ALL_LANES, near);
        }
        if (spin.hopeless()) {
            missing = 0;
            given_up = 1;
        }
    }
    acquire_fence();  // each lane for the SMs whose words it has read
    __syncwarp();
    core.profile.peers_ready();
    core.profile.input_ready();
    u64 top = 0;
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int sender = i * 32 + int(core.lane);
        if (sender == COUNT) word = u32(words[i]);
        if (sender < COUNT && words[i] > top) top = words[i];
    }
    return {warp_max(top), __shfl_sync(ALL_LANES, word, COUNT % 32), __any_sync(ALL_LANES, given_up || aborted) != 0};
}

// What a block is told about the pass just done. STOP_ASKED also goes around with the candidates, beside the parity.
enum Verdict : u32 { STOP_ASKED = 2, STOP_ID = 4, ABORTED = 8 };

struct Chosen {
    int id;
    bool stop_asked, ends, aborted;
};

// The ids that end a sequence, looked up by one warp. The first ones are asked for before the token is known.
class StopIds {
public:
    DEVICE explicit StopIds(const Core& core) : params_(core.params), lane_(int(core.lane)), own_(at(lane_)) {}
    DEVICE bool have(int id) const {
        bool found = own_ == id;
        for (int i = lane_ + 32; i < params_.stop_count; i += 32) found |= at(i) == id;
        return __any_sync(ALL_LANES, found) != 0;
    }

private:
    DEVICE int at(int i) const { return i < params_.stop_count ? __ldg(params_.stop_ids + i) : -1; }

    const Params& params_;
    const int lane_, own_;
};

// A word for every GPU, at the same place of `which` of its mailboxes.
DEVICE void tell_all(const Params& params, u64* Peer::*which, int at, u64 word) {
    post_far(params.peers[params.rank].*which + at, word);
    for_each_peer(params, [&](const Peer& peer) { post_far(peer.*which + at, word); });
}

// What is known of a pass once its token is. One warp.
DEVICE void conclude(Core& core, const StopIds& stop_ids, u32 id, u32 flags) {
    const u32 token = id < u32(model::VOCAB) ? id : 0u;
    const bool ends = stop_ids.have(int(token));
    if (core.lane == 0) {
        core.shared.token[core.own.request] = token;
        core.shared.verdict[core.own.request] = flags | (ends ? STOP_ID : 0u);
    }
}

// What the first warp does of `choose`: posts the SM's candidate, waits for all others, and leaves token and verdict.
DEVICE void elect(Core& core, u32 stop_flag) {
    const bool first = core.place.sm == 0 && core.params.rank == 0;
    const Ballot ballot(core.serial);
    const u64 best = warp_max(core.has_candidate(core.lane) ? core.shared.best[core.lane] : 0);
    if (core.lane == 0) {
        tell_all(core.params, &Peer::candidates, int(ballot.first) + core.params.rank * model::SMS + int(core.place.sm),
                 (best & ~1ull) | ballot.parity);
        if (first) {
            tell_all(core.params, &Peer::candidates, int(ballot.first) + Ballot::SENDERS,
                     (stop_flag ? u32(STOP_ASKED) : 0u) | ballot.parity);
        }
    }
    const StopIds stop_ids(core);
    const Exchanged all = collect(core, ballot);
    conclude(core, stop_ids, u32(candidate_id(all.top)), (all.word & STOP_ASKED) | (all.aborted ? ABORTED : 0u));
}

// Waits for: the best candidate of every SM of every GPU. This exchange is also what lets the next pass overwrite the
// mailboxes: what an SM read of them has arrived before it posts, for which no fence is needed. With the one before it
// (decode::release_cache) and the one in `collect` it makes this pass's cache entries visible to the next.
// `meanwhile` is called by the other warps; all threads of a block are told the same.
template <class Meanwhile>
DEVICE Chosen choose(Core& core, Best mine, u32 stop_flag, const Meanwhile& meanwhile) {
    const bool filtered = model::FILTERS && core.params.sampling.filtered;
    mine.candidate = warp_max(mine.candidate);
    if (core.lane == 0) core.shared.best[core.warp] = mine.candidate;
    if (filtered) filters::begin(core, mine.top_key);
    consumers_sync();
    if (core.warp == 0) {
        elect(core, stop_flag);
    } else {
        if (filtered && core.warp == 1) {
            filters::offer_first(core);
            filters::settle_offers(core, true);
        }
        meanwhile();
    }
    consumers_sync();  // the barrier above, in the next pass, parts these reads from what is written then
    if (filtered) {
        filters::settle(core);
        if (core.warp == 0) {
            const u32 flags = (core.shared.verdict[core.own.request] & ~STOP_ID) | (core.shared.draw[core.own.request].lost ? ABORTED : 0u);
            __syncwarp();
            conclude(core, StopIds(core), u32(core.shared.draw[core.own.request].id), flags);
        }
        consumers_sync();
    }
    const u32 verdict = core.shared.verdict[core.own.request];
    return {int(core.shared.token[core.own.request]), (verdict & STOP_ASKED) != 0, (verdict & STOP_ID) != 0, (verdict & ABORTED) != 0};
}
