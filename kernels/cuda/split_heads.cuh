// Heads of decode's attention that are split over SMs: what an SM makes of its positions is a part of the head's result.
//
// Of few parts the SM of the first one adds up all others with one look at the mailbox. Of more, each SM that has a part joins a
// slice of the head's elements: a warp has a lane for every part of a few elements, so that all it needs is asked for with one look,
// which takes about a microsecond, however many parts there are.
#pragma once
#include "attention.cuh"

namespace decode_attention {

// The query heads of a KV head are shared out in groups, each an item of its own, split over so many SMs at most. Where that leaves
// fewer for the last group, it begins with some of the one before: both post the same.
template <int GROUPS_, int QUERIES_, int SPLITS_>
struct Cut {
    static constexpr int GROUPS = GROUPS_, QUERIES = QUERIES_, SPLITS = SPLITS_, ITEMS = model::KV_HEADS * GROUPS;
    static_assert(ITEMS * SPLITS <= model::SMS, "an SM has at most one item");
    static_assert(SPLITS <= 16, "a warp has a lane for every part of two pairs of elements");

    DEVICE static int kv_head(int item_head) { return item_head / GROUPS; }
    DEVICE static int first_query(int item_head) {
        if constexpr (GROUPS * QUERIES == model::QUERIES_PER_KV) return item_head * QUERIES;
        return kv_head(item_head) * model::QUERIES_PER_KV + smaller(item_head % GROUPS * QUERIES, model::QUERIES_PER_KV - QUERIES);
    }
};
using Long = Cut<model::QUERY_GROUPS, model::ITEM_QUERIES, model::MAX_SPLITS>;
using Short = Cut<model::SHORT_QUERY_GROUPS, model::SHORT_ITEM_QUERIES, model::SHORT_MAX_SPLITS>;
constexpr int QUERIES = Long::QUERIES;  // of an item, at most
constexpr int MOST_SPLITS = larger(Long::SPLITS, Short::SPLITS);
static_assert(Short::QUERIES <= QUERIES, "rows in shared memory and in the mailbox are those of the long cut");

// What `of` makes of the cut of a layer that attends to so many blocks. Which one that is depends on nothing else: how many splits
// there are shows in the bits of the result (attention_cut.py).
template <class Of>
DEVICE auto by_cut(int blocks, const Of& of) {
    if constexpr (model::SHORT_BLOCKS > 0) {
        if (blocks <= model::SHORT_BLOCKS) return of(Short());
    }
    return of(Long());
}
DEVICE int items_of(int blocks) {
    return by_cut(blocks, [](auto cut) { return cut.ITEMS; });
}
DEVICE int most_splits(int blocks) {
    return by_cut(blocks, [](auto cut) { return cut.SPLITS; });
}
DEVICE int queries_of(const AttentionItem& item) {
    return by_cut(item.blocks, [](auto cut) { return cut.QUERIES; });
}
DEVICE int kv_head(const AttentionItem& item) {
    return by_cut(item.blocks, [&](auto cut) { return cut.kv_head(item.head); });
}
DEVICE int first_query(const AttentionItem& item) {
    return by_cut(item.blocks, [&](auto cut) { return cut.first_query(item.head); });
}
DEVICE int group_of(const AttentionItem& item) {
    return by_cut(item.blocks, [&](auto cut) { return item.head % cut.GROUPS; });
}

constexpr int PARTS = WARPS + 1;  // of an SM's result: the newest position is one of its own, as the cache has it only later
constexpr int AT_ONCE = 4;        // other parts that the SM of the first one asks for with one look
constexpr int FEW_SPLITS = AT_ONCE + 1;

// How many splits there are changes with the position, so a partial result is not written in every pass and parity
// alone could mistake an old one: its words carry the number of the pass instead.
DEVICE u64 numbered(const Core& core, float value) { return u64(core.serial) << 32 | __float_as_uint(value); }
DEVICE bool is_current(const Core& core, u64 word) { return u32(word >> 32) == core.serial; }
DEVICE float number(u64 word) { return __uint_as_float(u32(word)); }

DEVICE void post_partial(Core& core, u64* item, int g, int d, const Merged& m) {
    u64* row = item + g * mail::PARTIAL_ROW;
    post(row + d, numbered(core, m.value));
    if (d == 0) {
        post(row + model::HEAD_DIM, numbered(core, m.maximum));
        post(row + model::HEAD_DIM + 1, numbered(core, m.sum));
    }
}

// Adds the parts of splits 1 .. splits - 1, in order, all asked for with one look. `row`: of the head's first part.
DEVICE void add_partials(Core& core, const u64* row, int splits, int d, Merged& m) {
    u64 value[AT_ONCE] = {};  // as rows.cuh's `past`
    ulonglong2 scale[AT_ONCE] = {};
    const u32 wanted = (1u << (splits - 1)) - 1u;
    u32 missing = wanted;
    Spin spin(core.params, core.place, WAIT_PARTIAL);
    while (missing) {
#pragma unroll
        for (int s = 0; s < AT_ONCE; ++s) {
            if (!(missing >> s & 1u)) continue;
            const u64* part = row + (1 + s) * mail::PARTIAL_ITEM;
            value[s] = load_relaxed(part + d);
            scale[s] = peek2(part + model::HEAD_DIM);
        }
#pragma unroll
        for (int s = 0; s < AT_ONCE; ++s) {
            if ((missing >> s & 1u) && is_current(core, value[s]) && is_current(core, scale[s].x) && is_current(core, scale[s].y)) {
                missing &= ~(1u << s);
            }
        }
        if (spin.hopeless()) break;
    }
#pragma unroll
    for (int s = 0; s < AT_ONCE; ++s) {
        if (!(wanted >> s & 1u)) break;
        m.add(number(scale[s].x), number(scale[s].y), number(value[s]));
    }
}

// Two neighbouring elements of a head's result, of which the lane has one part. The order of the sums depends on the number of
// parts alone: lanes `apart` from each other have the parts of the same elements.
DEVICE float2 joined(const ulonglong2& values, const ulonglong2& scale, int apart) {
    constexpr int LEAST_APART = MOST_SPLITS > 8 ? 2 : 4;
    const auto over_parts = [apart](float v, const auto& join) {
#pragma unroll
        for (int offset = 16; offset >= LEAST_APART; offset /= 2) {
            if (offset < apart) break;
            v = join(v, __shfl_xor_sync(ALL_LANES, v, offset));
        }
        return v;
    };
    const auto add = [](float a, float b) { return a + b; };
    const float maximum = number(scale.x);
    const float take = exp2f(maximum - over_parts(maximum, [](float a, float b) { return fmaxf(a, b); }));
    const float sum = over_parts(number(scale.y) * take, add);
    const float x = over_parts(number(values.x) * take, add), y = over_parts(number(values.y) * take, add);
    return sum > 0.0f ? make_float2(x / sum, y / sum) : make_float2(0.0f, 0.0f);
}

// Waits for: all parts of the head. Publishes: this SM's slice of the head's result.
DEVICE void join_slice(Core& core, const AttentionItem& item, const u64* partials, u32* result) {
    // Lanes are in as many parts as the next power of two, so that less than half of them have none.
    constexpr int ROUNDS = ceil_div(QUERIES * model::HEAD_DIM, CONSUMERS);
    const int pairs = queries_of(item) * model::HEAD_DIM / 2;
    const int lane = int(core.lane), doublings = 32 - __clz(item.splits - 1), apart = 32 >> doublings;
    const int part = lane >> (5 - doublings);
    const int first = (int(core.warp) * item.splits + item.split) * apart + (lane & (apart - 1));
    const auto pair = [&](int i) { return first + i * item.splits * WARPS * apart; };
    const auto are_current = [&](const ulonglong2& words) { return is_current(core, words.x) && is_current(core, words.y); };
    ulonglong2 values[ROUNDS], scale[ROUNDS];
    u32 missing = 0;
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        values[i] = make_ulonglong2(0, 0);
        scale[i] = make_ulonglong2(__float_as_uint(NO_SCORE), 0);
        if (part < item.splits && pair(i) < pairs) missing |= 1u << i;
    }
    Spin spin(core.params, core.place, WAIT_PARTIAL);
    while (__any_sync(ALL_LANES, missing)) {
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            if (!(missing >> i & 1u)) continue;
            const u64* row = partials + part * mail::PARTIAL_ITEM + 2 * pair(i) / model::HEAD_DIM * mail::PARTIAL_ROW;
            values[i] = peek2(row + 2 * pair(i) % model::HEAD_DIM);
            scale[i] = peek2(row + model::HEAD_DIM);
        }
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            if (are_current(values[i]) && are_current(scale[i])) missing &= ~(1u << i);
        }
        if (spin.hopeless()) missing = 0;
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const float2 of_pair = joined(values[i], scale[i], apart);
        if (part > 0 || pair(i) >= pairs) continue;
        post(result + 2 * pair(i), tagged(of_pair.x, core.epoch), tagged(of_pair.y, core.epoch));
    }
}

}  // namespace decode_attention
