// A draw from what top-k, top-p and min-p keep, without gathering or sorting the scores (engine/sampling.py has the rule).
//
// Waits for: every SM's best perturbed candidate, with its own score and the SM's largest. Computes: what scores more than
// the best of all, as a count and as a sum of weights. Publishes: that, in one exchange, after which every SM of every GPU
// knows whether the filters keep the candidate. If not, they keep nothing that scores less: the floor rises to its score and
// all draw again above it. Counts and weights are integers, so no order of additions shows.
#pragma once
#include "candidates.cuh"

namespace filters {

// floor(2^40 * exp(below)), `below` being a score less the largest one. Every operation is rounded by itself, as elsewhere.
DEVICE u64 weight(float below) {
    const float y = fmaxf(__fmul_rn(below, LOG2_E), -float(WEIGHT_BITS + 1));
    const float n = rintf(y), f = __fsub_rn(y, n);
    float power = EXP2_0;
    power = __fadd_rn(__fmul_rn(power, f), EXP2_1);
    power = __fadd_rn(__fmul_rn(power, f), EXP2_2);
    power = __fadd_rn(__fmul_rn(power, f), EXP2_3);
    power = __fadd_rn(__fmul_rn(power, f), EXP2_4);
    power = __fadd_rn(__fmul_rn(power, f), EXP2_5);
    power = __fadd_rn(__fmul_rn(power, f), EXP2_6);
    return __float2ull_rz(power * __int_as_float((int(n) + WEIGHT_BITS + 127) << 23));
}

// Two words that travel together. Each has the parity of its exchange in its lowest bit; mailboxes of one kind are used in
// turn, so that an SM may be one exchange ahead of another. They are zero when a launch begins.
constexpr int SENDERS = model::RANKS * model::SMS;
struct Mailbox {
    size_t first;
    u32 parity;

    DEVICE Mailbox(size_t base, int planes, int plane, u32 exchange)
        : first(base + ((exchange & 1u) * planes + plane) * size_t(2 * SENDERS)), parity((exchange + 1u) >> 1 & 1u) {}
    DEVICE bool fresh(const ulonglong2& v) const { return (((u32(v.x) ^ parity) | (u32(v.y) ^ parity)) & 1u) == 0; }
};
static_assert(size_t(4 * SENDERS) * (1 + PROBES) * sizeof(u64) == model::FILTER_BYTES, "the host reserves as much");
DEVICE Mailbox draws(const Core& core) { return Mailbox(0, 1, 0, core.shared.draw_exchanges[core.own.request]); }
DEVICE Mailbox probes(const Core& core, int plane) { return Mailbox(4 * SENDERS, PROBES, plane, core.shared.probe_exchanges[core.own.request]); }

// One thread of an SM, to all GPUs. The lowest bits are free.
DEVICE void publish(Core& core, const Mailbox& box, u64 first, u64 second) {
    const size_t at = box.first + size_t(2) * (core.params.rank * model::SMS + int(core.place.sm));
    const auto post = [&](u64* to) { post_far(to + at, (first & ~1ull) | box.parity, (second & ~1ull) | box.parity); };
    post(core.params.filters);
    for_each_peer(core.params, [&](const Peer& peer) { post(peer.filters); });
}

// Calls `visit` with every sender's words, in whichever lane of the warp read them. False if the launch is to end.
template <class Visit>
DEVICE bool collect(Core& core, const Mailbox& box, const Visit& visit) {
    constexpr int EACH = ceil_div(SENDERS, 32);
    static_assert(EACH <= 64, "one bit a sender");
    const u64* from = core.params.filters + box.first + 2 * core.lane;
    u64 missing = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (i * 32 + int(core.lane) < SENDERS) missing |= 1ull << i;
    }
    bool given_up = false;
    Spin spin(core.params, core.place, WAIT_CANDIDATE);
    while (__any_sync(ALL_LANES, missing != 0)) {
        ulonglong2 words[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            words[i] = missing >> i & 1u ? peek2_far(from + i * 64) : make_ulonglong2(0, 0);
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if ((missing >> i & 1u) && box.fresh(words[i])) {
                missing &= ~(1ull << i);
                visit(words[i]);
            }
        }
        if (spin.hopeless()) {
            missing = 0;
            given_up = true;
        }
    }
    return !__any_sync(ALL_LANES, given_up);
}

// --- candidates ---------------------------------------------------------------------------------------------------------

// One SM's: 32 bits of the perturbed score, 20 of the id, and the score without noise; and the largest score of the SM, of
// which one bit found room in the first word.
struct Offer {
    u64 first, second;

    DEVICE Offer(u64 best, float score, u32 top_key)
        : first((best & 0xffffffff00000000ull) | (best ? u64(0xfffffu - u32(candidate_id(best))) << 12 : 0ull) |
                u64(top_key & 1u) << 1),
          second(u64(__float_as_uint(score)) << 32 | (top_key & ~1u)) {}
};

// What warp 1, or 0 in later rounds, leaves for all threads of the SM.
DEVICE void settle_offers(Core& core, bool first) {
    u64 best = 0, with = 0;
    u32 top_key = 0;
    const Mailbox box = draws(core);
    const bool whole = collect(core, box, [&](const ulonglong2& words) {
        if (words.x > best) {
            best = words.x;
            with = words.y;
        }
        const u32 key = (u32(words.y) & ~1u) | (u32(words.x) >> 1 & 1u);
        if (key > top_key) top_key = key;
    });
    const u64 winner = warp_max(best);
    const u32 owner = __ffs(__ballot_sync(ALL_LANES, best == winner)) - 1;
    const u32 score = u32(__shfl_sync(ALL_LANES, with, owner) >> 32);
    top_key = __reduce_max_sync(ALL_LANES, top_key);
    if (core.lane == 0) {
        core.shared.draw[core.own.request].id = int(0xfffffu - (u32(winner) >> 12));
        core.shared.draw[core.own.request].score = __uint_as_float(score);
        if (first) core.shared.draw[core.own.request].top = from_ordered(top_key);
        if (!whole) core.shared.draw[core.own.request].lost = 1;
    }
}

// Each warp's part of what a draw begins with.
DEVICE void begin(Core& core, u32 top_key) {
    top_key = __reduce_max_sync(ALL_LANES, top_key);
    if (core.lane == 0) core.shared.top_keys[core.warp] = top_key;
    if (int(threadIdx.x) == 32 * core.own.request) {
        core.shared.draw[core.own.request].lost = 0;
        ++core.shared.draw_exchanges[core.own.request];
    }
}

// The first round's offer: what `head` left in the SM. All lanes of one warp, which then settles the offers.
DEVICE void offer_first(Core& core) {
    const u64 best = warp_max(core.has_candidate(core.lane) ? core.shared.best[core.lane] : 0);
    const u32 top_key = __reduce_max_sync(ALL_LANES, core.has_candidate(core.lane) ? core.shared.top_keys[core.lane] : 0u);
    if (core.lane == 0) {
        const int row = best ? head_row_of(core, candidate_id(best)) : -1;
        const Offer offer(best, row < 0 ? 0.0f : core.scores()[row], top_key);
        publish(core, draws(core), offer.first, offer.second);
    }
}

// --- sums ---------------------------------------------------------------------------------------------------------------

// Weights of an SM's rows stay below 2^53, and their count below 2^20: both fit beside each other's parity.
static_assert(model::HEAD_ROWS < 1 << (53 - WEIGHT_BITS), "sums of weights of one SM");
DEVICE u64 packed(u64 sum, u32 part) { return sum << 11 | u64(part & 1023u) << 1; }
DEVICE u64 packed_sum(u64 word) { return word >> 11; }
DEVICE u32 packed_part(u64 word) { return u32(word >> 1) & 1023u; }

DEVICE u64 warp_total(u64 v) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) v += __shfl_xor_sync(ALL_LANES, v, offset);
    return v;
}

// Rows of the vocabulary that this SM holds, padding among them: that scores less than everything.
DEVICE int head_rows(const Core& core) { return core.share(HEAD).tiles * TILE_ROWS; }

// This thread's part of them, of several requests: their scores lie in the GPU's memory, so it asks for some at once. (Of one request they
// lie in shared memory; its loop would have other instructions if it shared this one's.)
DEVICE void sum_rows(const Core& core, const float* scores, float bar, float top, FilterSums& mine) {
    constexpr int TOGETHER = smaller(8, ceil_div(model::HEAD_ROWS, Core::TEAM_THREADS));
    const int rows = head_rows(core);
#pragma unroll 1
    for (int first = core.team_thread(); first < rows; first += TOGETHER * Core::TEAM_THREADS) {
        float some[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
            const int row = first + i * Core::TEAM_THREADS;
            some[i] = row < rows ? scores[row] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
            if (first + i * Core::TEAM_THREADS >= rows) continue;
            const u64 w = weight(__fsub_rn(some[i], top));
            mine.all += w;
            if (some[i] > bar) {
                mine.above += w;
                ++mine.count;
            }
        }
    }
}

// Of all tokens: how many score more than the candidate, and the weights of those and of all. All threads of the team.
DEVICE void sum_above(Core& core) {
    Shared& shared = core.shared;
    const float bar = core.shared.draw[core.own.request].score, top = core.shared.draw[core.own.request].top;
    const float* scores = core.scores();
    FilterSums mine{0, 0, 0};
    if constexpr (REQUESTS == 1) {
        for (int row = core.team_thread(); row < head_rows(core); row += Core::TEAM_THREADS) {
            const float score = scores[row];
            const u64 w = weight(__fsub_rn(score, top));
            mine.all += w;
            if (score > bar) {
                mine.above += w;
                ++mine.count;
            }
        }
    } else {
        sum_rows(core, scores, bar, top, mine);
    }
    mine = {warp_total(mine.above), warp_total(mine.all), __reduce_add_sync(ALL_LANES, mine.count)};
    if (core.lane == 0) shared.sums()[core.warp] = mine;
    if (core.team_thread() == 0) ++core.shared.draw_exchanges[core.own.request];
    core.team_sync();
    if (core.member() == 0) {
        const bool has = core.has_candidate(core.lane);
        mine = has ? shared.sums()[core.lane] : FilterSums{0, 0, 0};
        mine = {warp_total(mine.above), warp_total(mine.all), __reduce_add_sync(ALL_LANES, mine.count)};
        const Mailbox box = draws(core);
        if (core.lane == 0) publish(core, box, packed(mine.above, mine.count), packed(mine.all, mine.count >> 10));
        FilterSums found{0, 0, 0};
        const bool whole = collect(core, box, [&](const ulonglong2& words) {
            found.above += packed_sum(words.x);
            found.all += packed_sum(words.y);
            found.count += packed_part(words.x) | packed_part(words.y) << 10;
        });
        found = {warp_total(found.above), warp_total(found.all), __reduce_add_sync(ALL_LANES, found.count)};
        if (core.lane == 0) {
            shared.found(core.own.request)[0] = found;
            if (!whole) core.shared.draw[core.own.request].lost = 1;
        }
    }
    core.team_sync();
}

// This SM's part of what is above one of the bars, and what all SMs found. One warp each.
DEVICE Mailbox tell_probe(Core& core, int which) {
    Shared& shared = core.shared;
    FilterSums sums = core.has_candidate(core.lane) ? shared.probe_sums(core.lane)[which] : FilterSums{0, 0, 0};
    sums = {warp_total(sums.above), 0, __reduce_add_sync(ALL_LANES, sums.count)};
    const Mailbox box = probes(core, which);
    if (core.lane == 0) publish(core, box, packed(sums.above, sums.count), u64(sums.count >> 10) << 1);
    return box;
}
DEVICE void find_probe(Core& core, int which, const Mailbox& box) {
    FilterSums found{0, 0, 0};
    const bool whole = collect(core, box, [&](const ulonglong2& words) {
        found.above += packed_sum(words.x);
        found.count += packed_part(words.x) | packed_part(words.y) << 10;
    });
    found = {warp_total(found.above), 0, __reduce_add_sync(ALL_LANES, found.count)};
    if (core.lane == 0) {
        core.shared.found(core.own.request)[which] = found;
        if (!whole) core.shared.draw[core.own.request].lost = 1;
    }
}

// The same for PROBES scores at once, without the weights of all: each warp finds one of them, or several. All threads of the
// team.
DEVICE void probe(Core& core, const float* bars) {
    Shared& shared = core.shared;
    const float top = core.shared.draw[core.own.request].top;
    const float* scores = core.scores();
    u64 above[PROBES] = {};
    u32 counts[PROBES] = {};
    for (int row = core.team_thread(); row < head_rows(core); row += Core::TEAM_THREADS) {
        const float score = scores[row];
        const u64 w = weight(__fsub_rn(score, top));
#pragma unroll
        for (int i = 0; i < PROBES; ++i) {
            if (score > bars[i]) {
                above[i] += w;
                ++counts[i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < PROBES; ++i) {
        const FilterSums sums{warp_total(above[i]), 0, __reduce_add_sync(ALL_LANES, counts[i])};
        if (core.lane == 0) shared.probe_sums(core.warp)[i] = sums;
    }
    if (core.team_thread() == 0) ++core.shared.probe_exchanges[core.own.request];
    core.team_sync();
    if constexpr (REQUESTS == 1) {
        const int mine = int(core.warp);
        find_probe(core, mine, tell_probe(core, mine));
    } else {
#pragma unroll 1
        for (int i = int(core.member()); i < PROBES; i += Core::TEAM) tell_probe(core, i);
#pragma unroll 1
        for (int i = int(core.member()); i < PROBES; i += Core::TEAM) find_probe(core, i, probes(core, i));
    }
    core.team_sync();
}

// --- top-k --------------------------------------------------------------------------------------------------------------

// What top-k keeps: all that scores more than `floor`, of this weight together.
struct Kept {
    float floor;
    u64 weight;
};

// Narrows the interval (low, high] of the k-th largest score, nine times an exchange, until no score parts its ends or a probe
// has exactly k above it. At `low` or above it are k tokens or more (of the weight `at_low`), above `high` fewer; `low` may
// be minus infinity. All threads of the team.
DEVICE Kept find_top_k(Core& core, float low, float high, u64 at_low) {
    float span = 0.25f;  // between probes while nothing bounds them below
    for (;;) {
        if (ordered(low) + 1u >= ordered(high)) return {low, at_low};
        float bars[PROBES];
#pragma unroll
        for (int i = 0; i < PROBES; ++i) {
            bars[i] = low == -INFINITE ? high - span * float(1 << i) : high - (high - low) * (float(i + 1) / float(PROBES + 1));
        }
        probe(core, bars);
        if (core.shared.draw[core.own.request].lost) return {low, at_low};
        for (int i = 0; i < PROBES; ++i) {
            const FilterSums found = core.shared.found(core.own.request)[i];
            if (found.count == u32(core.params.sampling.top_k)) return {bars[i], found.above};
            if (found.count > u32(core.params.sampling.top_k)) {
                low = bars[i];
                at_low = found.above;
                break;
            }
            high = bars[i];
        }
        span *= float(1 << PROBES);
    }
}

// --- rounds -------------------------------------------------------------------------------------------------------------

// Another candidate, among what scores more than `floor` and weighs no less than min-p asks. All threads of the team.
DEVICE void draw_again(Core& core, float floor) {
    Shared& shared = core.shared;
    const Sampling& s = core.params.sampling;
    const float top = core.shared.draw[core.own.request].top;
    const float* scores = core.scores();
    u64 best = 0;
    float best_score = 0.0f;
    for (int row = 2 * core.team_thread(); row < head_rows(core); row += 2 * Core::TEAM_THREADS) {
        const float two[] = {scores[row], scores[row + 1]};
        bool may[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) may[i] = two[i] > floor && weight(__fsub_rn(two[i], top)) >= s.least_weight;
        if (!may[0] && !may[1]) continue;
        const int id = head_pair_at(core, row).id;
        const float2 noise = gumbel_pair(core, id);
        const float noises[] = {noise.x, noise.y};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u64 word = candidate(two[i] + noises[i], id + i);
            if (may[i] && word > best) {
                best = word;
                best_score = two[i];
            }
        }
    }
    const u64 winner = warp_max(best);
    const u32 owner = __ffs(__ballot_sync(ALL_LANES, best == winner)) - 1;
    const float score = __shfl_sync(ALL_LANES, best_score, owner);
    if (core.lane == 0) {
        shared.best[core.warp] = winner;
        shared.best_scores[core.warp] = score;
    }
    if (core.team_thread() == 0) ++core.shared.draw_exchanges[core.own.request];
    core.team_sync();
    if (core.member() == 0) {
        const u64 mine = core.has_candidate(core.lane) ? shared.best[core.lane] : 0;
        const u64 all = warp_max(mine);
        const u32 from = __ffs(__ballot_sync(ALL_LANES, mine == all)) - 1;
        if (core.lane == 0) {
            const Offer offer(all, shared.best_scores[from], 0);
            publish(core, draws(core), offer.first, offer.second);
        }
        settle_offers(core, false);
    }
    core.team_sync();
}

// Whether the candidate stays; else raises `kept.floor` above which the next one lies. `bounded`: the floor is top-k's own,
// and `kept.weight` the weight of what it keeps. All threads of the team, with the same answer on every SM.
DEVICE bool keeps(Core& core, Kept& kept, bool& bounded) {
    const Sampling& s = core.params.sampling;
    const Draw draw = core.shared.draw[core.own.request];
    if (weight(__fsub_rn(draw.score, draw.top)) < s.least_weight) return false;
    const bool nucleus = s.top_p < 1.0f;
    if (bounded && !nucleus) return true;
    if (s.top_k == 0 && !nucleus) return true;
    sum_above(core);
    const FilterSums sums = core.shared.found(core.own.request)[0];
    if (core.shared.draw[core.own.request].lost) return true;
    if (s.top_k && !bounded) {
        const bool outside = sums.count >= u32(s.top_k);
        const u64 least = sums.above + weight(__fsub_rn(draw.score, draw.top));  // that top-k can leave, if this is inside
        const double share = double(s.top_p);
        if (!outside && (!nucleus || double(sums.above) < double(least) * share)) return true;
        const bool far_out = !outside && double(sums.above) >= double(sums.all) * share;
        if (!far_out) {
            kept = find_top_k(core, outside ? draw.score : -INFINITE, outside ? draw.top : draw.score,
                              outside ? sums.above : sums.all);
            bounded = true;
            if (outside) return false;
        } else {
            kept.floor = draw.score;
            return false;
        }
    }
    if (!nucleus) return true;
    if (double(sums.above) < double(bounded ? kept.weight : sums.all) * double(s.top_p)) return true;
    kept.floor = draw.score;
    return false;
}

// From the first candidate to the one that the filters keep, which it leaves in `draw`. All threads of the team.
DEVICE void settle(Core& core) {
    Kept kept{-INFINITE, 0};
    bool bounded = false;
    while (!core.shared.draw[core.own.request].lost && !keeps(core, kept, bounded)) {
        if (core.shared.draw[core.own.request].lost) break;
        draw_again(core, kept.floor);
    }
}

}  // namespace filters
