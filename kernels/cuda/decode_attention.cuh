// Attention of one token: heads, and parts of heads where the context is long, spread over the SMs.
#pragma once
#include "ring_blocks.cuh"

namespace decode_attention {

constexpr bool PAIRED = QUERIES <= 4;
static_assert(QUERIES <= ATTENTION_ROWS, "the query heads of one KV head are the rows of one operand");
// All layers' items of the pass at `position`, a thread each of all warps but the first, which in `choose` has other things
// to do. A block barrier must lie between this and the last read of those before, and one before the first read of these. On an SM that
// the pass needs nothing more of, the producer may not have read those before yet.
DEVICE void plan_items(Core& core, int position) {
    if (core.warp == 0) return;
    if (position > core.params.prefill_end && in_ring(core.params, position - 1)) {
        await_in_place(&core.shared.items_read, phase_parity(core.params, position - 1), &core.params.control->aborted);
    }
    for (int layer = int(threadIdx.x) - 32; layer < model::LAYERS; layer += CONSUMERS - 32) {
        core.shared.items[layer] = item_of(position, window_of(layer), int(core.place.sm), core.params.blocks_a_split);
    }
}

// Queries, and for the last warp of a head's first part the newest key and value, through shared memory: each lane fetches
// whole pieces, all asked for before any is looked at, because a look at the mailbox takes about a microsecond while
// the weights stream. Queries wait in the rows that will hold the warp's result.
struct Inputs {
    static constexpr int HEAD_QUADS = model::HEAD_DIM / 4;
    static constexpr int QUERY_PIECES = ceil_div(QUERIES * HEAD_QUADS, 32);
    static constexpr int PIECES = QUERY_PIECES + ceil_div(2 * HEAD_QUADS, 32);
    static_assert(mail::VALUES == mail::KEYS + model::KV_DIM && PIECES < 32, "pieces of a head");

    u32* queries;  // this warp's, of each four numbers the high parts, then the low parts
    u16* newest;   // key, then value

    DEVICE explicit Inputs(Core& core)
        : queries(reinterpret_cast<u32*>(core.shared.merge() + core.warp * QUERIES * MERGE_ROW)), newest(core.shared.newest()) {}

    // QK_NORM: normalises and rotates what came, and appends the key. Until then queries lie as they are where their parts
    // will, the key where key and value will, and the value waits in `words`. All heads go side by side, the key with them.
    template <int COUNT>
    DEVICE void finish(Core& core, AttentionItem item, int layer, bool has_newest, const heads::Scales& query_scales,
                       const heads::Scales& key_scales, const heads::Turns& turns, const uint4 (&words)[PIECES]) {
        __syncwarp();
        const heads::Finished<COUNT + 1> finished(
            [&](int h, int q) {
                if (h < COUNT) return reinterpret_cast<const float4*>(queries + h * model::HEAD_DIM)[q];
                return has_newest ? reinterpret_cast<const float4*>(newest)[q] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            },
            [&](int h) { return h < COUNT ? query_scales : key_scales; }, turns, core.lane);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < heads::EACH; ++i) {
            const int q = i * 32 + int(core.lane);
            if (q >= HEAD_QUADS) continue;
#pragma unroll
            for (int r = 0; r < COUNT; ++r) store_query(queries + r * model::HEAD_DIM + 4 * q, finished.quads[r][i]);
            if (!has_newest) continue;
            const uint2 halves = cache::rounded(finished.quads[COUNT][i]);
            *reinterpret_cast<uint2*>(newest + q * 4) = halves;
            if (group_of(item) == 0) append_key(core.params.kv, layer, core.position, kv_head(item), q, halves);
        }
        if (!has_newest) return;
#pragma unroll
        for (int i = QUERY_PIECES; i < PIECES; ++i) {
            const int quad = (i - QUERY_PIECES) * 32 + int(core.lane);
            if (quad >= HEAD_QUADS && quad < 2 * HEAD_QUADS) store_newest(quad, untagged(words[i]));
        }
    }

    DEVICE static void store_query(u32* to, const float4& v) {
        const Split a = split_f16(v.x * QUERY_SCALE, v.y * QUERY_SCALE), b = split_f16(v.z * QUERY_SCALE, v.w * QUERY_SCALE);
        *reinterpret_cast<uint4*>(to) = make_uint4(a.high, b.high, a.low, b.low);
    }
    DEVICE void store_newest(int quad, const float4& v) {
        *reinterpret_cast<uint2*>(newest + quad * 4) = make_uint2(pack_f16(v.x, v.y), pack_f16(v.z, v.w));
    }

    DEVICE void fetch(Core& core, AttentionItem item, int layer, bool has_newest) {
        if constexpr (model::QK_NORM) {  // what finishing needs is asked for before the wait
            const heads::Scales query_scales(core.params, layer, false, core.lane), key_scales(core.params, layer, true, core.lane);
            const heads::Turns turns(core.params, layer, core.position, core.lane);
            uint4 words[PIECES];
            receive(core, item, layer, has_newest, words);
            by_cut(item.blocks, [&](auto cut) {
                finish<cut.QUERIES>(core, item, layer, has_newest, query_scales, key_scales, turns, words);
            });
        } else {
            uint4 words[PIECES];
            receive(core, item, layer, has_newest, words);
        }
        __syncwarp();
    }

    DEVICE void receive(Core& core, AttentionItem item, int layer, bool has_newest, uint4 (&words)[PIECES]) {
        const u32* mail = core.mail(layer);
        const u32* from[PIECES];
        u32 missing = 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            words[i] = make_uint4(0, 0, 0, 0);
            const int quad = (i < QUERY_PIECES ? i : i - QUERY_PIECES) * 32 + int(core.lane);
            if (i < QUERY_PIECES) {
                from[i] = mail + mail::QUERIES + first_query(item) * model::HEAD_DIM + quad * 4;
                if (quad < queries_of(item) * HEAD_QUADS) missing |= 1u << i;
            } else {
                const int value = quad >= HEAD_QUADS;
                from[i] = mail + mail::KEYS + value * model::KV_DIM + kv_head(item) * model::HEAD_DIM + (quad - value * HEAD_QUADS) * 4;
                if (has_newest && quad < 2 * HEAD_QUADS) missing |= 1u << i;
            }
        }
        const u32 wanted = missing;
        Spin spin(core.params, core.place, WAIT_QUERY);
#pragma unroll 1
        while (__any_sync(ALL_LANES, missing)) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (missing >> i & 1u) words[i] = peek4(from[i]);
            }
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (fresh(words[i], core.epoch)) missing &= ~(1u << i);
            }
            if (spin.hopeless()) missing = 0;
        }
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (!(wanted >> i & 1u)) continue;
            const int quad = (i < QUERY_PIECES ? i : i - QUERY_PIECES) * 32 + int(core.lane);
            const float4 v = untagged(words[i]);
            if constexpr (model::QK_NORM) {
                if (i < QUERY_PIECES) *reinterpret_cast<float4*>(queries + quad * 4) = v;
                else if (quad < HEAD_QUADS) reinterpret_cast<float4*>(newest)[quad] = v;
            } else if (i < QUERY_PIECES) {
                store_query(queries + quad * 4, v);
            } else {
                store_newest(quad, v);
            }
        }
    }

    DEVICE QueryColumns<PAIRED> columns(int count, u32 lane) const {
        QueryColumns<PAIRED> columns;
        const int g = int(lane >> 2), row = PAIRED ? g / 2 : g;
        const u32* from = queries + row * model::HEAD_DIM + int(lane & 3) * 4 + (PAIRED ? g % 2 * 2 : 0);
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) {
            const bool here = row < count && 16 * u + int(lane & 3) * 4 < model::HEAD_DIM;
#pragma unroll
            for (int part = 0; part < columns.PARTS; ++part) {
                columns.part[part][u] = here ? *reinterpret_cast<const uint2*>(from + 16 * u + 2 * part) : make_uint2(0, 0);
            }
        }
        return columns;
    }

    // The newest position's part of the result, the same for all rows but for its score; and what the sink of lane r's row,
    // if there are sinks, adds to the sum of row r. All warps wait for this one: its rows' sums go side by side.
    template <int COUNT>
    DEVICE void leave_newest(float* rows, u32 lane, float sink) const {
        const u32* key = reinterpret_cast<const u32*>(newest);
        const u32* value = key + model::HEAD_DIM / 2;
        constexpr int PAIRS = model::HEAD_DIM / 2;  // of elements, one a lane in each round
        float score[COUNT] = {};
#pragma unroll
        for (int first = 0; first < PAIRS; first += 32) {
            const int pair = first + int(lane);
            if (first + 32 > PAIRS && pair >= PAIRS) break;
            const u32 k = key[pair];
#pragma unroll
            for (int r = 0; r < COUNT; ++r) {
                const u32* query = queries + r * model::HEAD_DIM;
                const u32 high = query[pair / 2 * 4 + pair % 2], low = query[pair / 2 * 4 + 2 + pair % 2];
                score[r] += (f16_low(high) + f16_low(low)) * f16_low(k) + (f16_high(high) + f16_high(low)) * f16_high(k);
            }
        }
#pragma unroll
        for (int first = 0; first < PAIRS; first += 32) {
            const int pair = first + int(lane);
            if (first + 32 > PAIRS && pair >= PAIRS) break;
            const float2 v = make_float2(f16_low(value[pair]), f16_high(value[pair]));
#pragma unroll
            for (int r = 0; r < COUNT; ++r) *reinterpret_cast<float2*>(rows + r * MERGE_ROW + 2 * pair) = v;
        }
        warp_sums(score);
#pragma unroll
        for (int r = 0; r < COUNT; ++r) {
            score[r] = capped_score(score[r]);
            float sum = 1.0f;
            if constexpr (model::SINKS) sum += exp2f(fminf(__shfl_sync(ALL_LANES, sink, r) - score[r], 120.0f));
            if (lane == 0) *reinterpret_cast<float2*>(rows + r * MERGE_ROW + model::HEAD_DIM) = make_float2(score[r], sum);
        }
    }
};

// Rows of nothing, where a warp has no positions.
DEVICE void leave_nothing(float* rows, int count, u32 lane) {
#pragma unroll 1
    for (int i = int(lane); i < count * MERGE_ROW; i += 32) rows[i] = 0.0f;
    __syncwarp();
    if (int(lane) < count) rows[int(lane) * MERGE_ROW + model::HEAD_DIM] = NO_SCORE;
}

// Asks for a warp's first blocks while the layer's earlier phases still compute.
DEVICE void prefetch(Core& core, const AttentionItem& item, int layer) {
    if (item.head < 0 || core.lane >= TOGETHER) return;
    const int index = item.begin + int(core.warp) + int(core.lane) * WARPS;  // they go to the warps in turn
    if (index < item.end) prefetch_l2(cache::block(core.params.kv, layer, kv_head(item), index), cache::BLOCK_BYTES);
}

// The second part of a head to the neighbour, which has the first one.
DEVICE void send_part(Core& core, int element, int g, int d, const Merged& m) {
    const u32 barrier = core.shared.neighbour.barrier();
    send(neighbours_address(core.shared.neighbours_values() + element), m.value, barrier);
    if (d == 0) send(neighbours_address(core.shared.neighbours_scales() + g), m.maximum, m.sum, barrier);
}
DEVICE void add_neighbours(Core& core, int element, int g, Merged& m) {
    core.shared.neighbour.await(core.params);
    const float2 scale = core.shared.neighbours_scales()[g];
    m.add(scale.x, scale.y, core.shared.neighbours_values()[element]);
}

// Joins what the warps left in shared memory, and posts it: the head's result, or a part of it to the SMs that join the parts. Of
// many parts this SM joins a slice itself.
DEVICE void publish(Core& core, const AttentionItem& item, int layer, const float* rows) {
    const bool by_slices = MOST_SPLITS > FEW_SPLITS && item.splits > FEW_SPLITS;
    u64* partials = reinterpret_cast<u64*>(core.mail(layer) + mail::PARTIALS) + item.head * most_splits(item.blocks) * mail::PARTIAL_ITEM;
    u32* result = core.mail(layer) + mail::HEADS_OUT + first_query(item) * model::HEAD_DIM;
    const bool in_pair = IN_PAIRS && item.splits == 2;
    if (in_pair && item.split == 0 && threadIdx.x == 0) {
        core.shared.neighbour.expect(u32(queries_of(item) * (model::HEAD_DIM + 2)) * 4);
    }
#pragma unroll 1
    for (int e = int(core.warp * 32 + core.lane); e < queries_of(item) * model::HEAD_DIM; e += CONSUMERS) {
        const int g = e / model::HEAD_DIM, d = e % model::HEAD_DIM;
        Merged m = merge_parts<PARTS>(rows, QUERIES, g, d);
        if constexpr (IN_PAIRS) {
            if (in_pair) {
                if (item.split) {
                    send_part(core, e, g, d, m);
                    continue;
                }
                add_neighbours(core, e, g, m);
                post(result + e, tagged(m.result(), core.epoch));
                continue;
            }
        }
        if (item.split || by_slices) {
            post_partial(core, partials + item.split * mail::PARTIAL_ITEM, g, d, m);
            continue;
        }
        if (item.splits > 1) add_partials(core, partials + g * mail::PARTIAL_ROW, item.splits, d, m);
        post(result + e, tagged(m.result(), core.epoch));
    }
    if (by_slices) join_slice(core, item, partials, result);
}

// Waits for: queries, and the newest key and value; of a head in many parts also for the others. Publishes: the head's result, a slice
// of it, or its part of it to the SM that has the first one.
DEVICE void run(Core& core, const AttentionItem& item, int layer) {
    if (item.head < 0) return;
    const u32 lane = core.lane;
    const int end = item.end;
    int index = item.begin + int(core.warp);
    const bool last_warp = core.warp == WARPS - 1, newest = last_warp && item.split == 0;
    float* rows = core.shared.merge();
    float* mine = rows + core.warp * QUERIES * MERGE_ROW;
    float* newest_rows = rows + WARPS * QUERIES * MERGE_ROW;
    if (last_warp && !newest) leave_nothing(newest_rows, queries_of(item), lane);
    if (index < end || newest) {
        const int head = kv_head(item);
        const auto at = [&](int i) { return cache::block(core.params.kv, layer, head, i); };
        KvBlocks<TOGETHER, PAIRED> blocks;
        blocks.load(at, index, WARPS, end, lane);  // before the queries are there
        float sink = 0.0f;
        if constexpr (model::SINKS) {
            if (newest && int(lane) < queries_of(item)) sink = heads::sink(core.params, layer, first_query(item) + int(lane)) * LOG2_E;
        }
        Inputs inputs(core);
        inputs.fetch(core, item, layer, newest);
        core.profile.input_ready();
        const QueryColumns<PAIRED> query = inputs.columns(queries_of(item), lane);
        const Reach cached{item.first, smaller(core.position, end * cache::BLOCK)};  // what lies behind is another part's
        Reach reach[query.ROWS];
#pragma unroll
        for (Reach& r : reach) r = cached;
        RunningSoftmax<PAIRED> softmax;
        RingWalk walk{core, item.begin + ROUND};
#pragma unroll 1
        for (bool first = true;; first = false) {
            blocks.attend(softmax, query, index, WARPS, end, reach, core.position, first, lane);
            index += ROUND;
            if (index >= end) break;
            if constexpr (IN_RING) {
                walk.take(blocks.blocks, index, end);
            } else {
                blocks.load(at, index, WARPS, end, lane);
            }
        }
        if constexpr (IN_RING) walk.leave(end);
        if (newest) {
            by_cut(item.blocks, [&](auto cut) { inputs.leave_newest<cut.QUERIES>(newest_rows, lane, sink); });
        }
        __syncwarp();  // all lanes have read their queries, which lie where the result goes
        softmax.leave(mine, queries_of(item), lane);
    } else {
        leave_nothing(mine, queries_of(item), lane);
    }
    consumers_sync();
    publish(core, item, layer, rows);
    consumers_sync();  // the rows in shared memory are free again
    if constexpr (IN_PAIRS) {
        if (item.splits == 2 && item.split == 0 && threadIdx.x == 0) core.shared.neighbour.end_round();
    }
}

}  // namespace decode_attention
