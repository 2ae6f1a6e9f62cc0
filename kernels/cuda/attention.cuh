// Attention on tensor cores. Rows of operand A are query rows (decode: the query heads that share a KV head;
// prefill: eight tokens of one head), in two parts like every operand; eight positions of keys, then eight
// elements of values, are operand B. Scores come out in the lanes that need them for the second product, because
// the cache keeps values in that order: nothing is shuffled or staged.
#pragma once
#include "rows.cuh"

constexpr float NO_SCORE = -1e30f;

struct KvBlock {
    uint4 keys[cache::KEY_UNITS];
    uint4 values[cache::VALUE_TILES];

    // Asynchronous until used. Past the L1: another SM may have written the block one token ago.
    DEVICE void load_keys(const u16* block, u32 lane) {
        const u32* from = reinterpret_cast<const u32*>(block) + lane * 4;
#pragma unroll
        for (int u = 0; u < cache::KEY_UNITS; ++u) keys[u] = peek4(from + u * (cache::UNIT_HALVES / 2));
    }
    DEVICE void load_values(const u16* block, u32 lane) {
        const u32* from = reinterpret_cast<const u32*>(block) + cache::KEY_UNITS * (cache::UNIT_HALVES / 2) + lane * 4;
#pragma unroll
        for (int u = 0; u < cache::VALUE_TILES; ++u) values[u] = peek4(from + u * (cache::UNIT_HALVES / 2));
    }
    // Positions from `filled` on hold whatever an earlier request left: zero times that must be zero.
    DEVICE void forget_values_from(int filled, u32 lane) {
        u32 mask[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int p = 8 * i + 2 * int(lane & 3);
            mask[i] = (p < filled ? 0xffffu : 0u) | (p + 1 < filled ? 0xffff0000u : 0u);
        }
#pragma unroll
        for (int u = 0; u < cache::VALUE_TILES; ++u) {
            values[u].x &= mask[0];
            values[u].y &= mask[1];
            values[u].z &= mask[2];
            values[u].w &= mask[3];
        }
    }
};

// Scores are in units of log 2.
constexpr float QUERY_SCALE = model::ATTENTION_SCALE * 1.4426950408889634f;

// Eight columns of a query row in operand form.
struct QueryChunk {
    Split part[4];
};

// Query rows in registers.
struct QueryRows {
    QueryChunk chunks[cache::KEY_CHUNKS];

    DEVICE void set(int k, const float4& a, const float4& b) {
        chunks[k] = {{split_f16(a.x * QUERY_SCALE, a.y * QUERY_SCALE), split_f16(a.z * QUERY_SCALE, a.w * QUERY_SCALE),
                      split_f16(b.x * QUERY_SCALE, b.y * QUERY_SCALE), split_f16(b.z * QUERY_SCALE, b.w * QUERY_SCALE)}};
    }
    DEVICE const QueryChunk& chunk(int k) const { return chunks[k]; }
};

// Running softmax of query row lane / 4. `sum` counts this lane's own positions only.
struct RunningSoftmax {
    float maximum = NO_SCORE;
    float sum = 0.0f;
    float out[cache::VALUE_TILES][4];

    DEVICE RunningSoftmax() {
#pragma unroll
        for (int t = 0; t < cache::VALUE_TILES; ++t) out[t][0] = out[t][1] = out[t][2] = out[t][3] = 0.0f;
    }

    // Adds the block whose first position is `base`; the row attends to positions first .. last - 1.
    template <class Query>
    DEVICE void add(const Query& query, const KvBlock& block, int base, int first, int last, u32 lane) {
        float c[4][4], scores[4][2];
        float peak = NO_SCORE;
#pragma unroll
        for (int i = 0; i < 4; ++i) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;
#pragma unroll
        for (int k = 0; k < cache::KEY_CHUNKS; ++k) {
            const QueryChunk q = query.chunk(k);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint4& b = block.keys[i * cache::KEY_CHUNKS + k];
                mma_f16(c[i], q.part[0].high, q.part[0].low, q.part[1].high, q.part[1].low, b.x, b.y);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint4& b = block.keys[i * cache::KEY_CHUNKS + k];
                mma_f16(c[i], q.part[2].high, q.part[2].low, q.part[3].high, q.part[3].low, b.z, b.w);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int p = base + 8 * i + 2 * int(lane & 3) + e;
                scores[i][e] = p >= first && p < last ? c[i][e] + c[i][2 + e] : NO_SCORE;
                peak = fmaxf(peak, scores[i][e]);
            }
        }
        peak = fmaxf(peak, __shfl_xor_sync(ALL_LANES, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(ALL_LANES, peak, 2));
        const float top = fmaxf(maximum, peak);
        const float keep = exp2f(maximum - top);
        maximum = top;
        sum *= keep;
        Split weights[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float a = scores[i][0] == NO_SCORE ? 0.0f : exp2f(scores[i][0] - top);
            const float b = scores[i][1] == NO_SCORE ? 0.0f : exp2f(scores[i][1] - top);
            sum += a + b;
            weights[i] = split_f16(a, b);
        }
#pragma unroll
        for (int t = 0; t < cache::VALUE_TILES; ++t) {
#pragma unroll
            for (int e = 0; e < 4; ++e) out[t][e] *= keep;
            const uint4& v = block.values[t];
            mma_f16(out[t], weights[0].high, weights[0].low, weights[1].high, weights[1].low, v.x, v.y);
            mma_f16(out[t], weights[2].high, weights[2].low, weights[3].high, weights[3].low, v.z, v.w);
        }
    }

    // Leaves row lane / 4 in shared memory: accumulator, maximum, sum.
    DEVICE void leave(float* rows, int count, u32 lane) {
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        const int g = int(lane >> 2), j = int(lane & 3);
        if (g >= count) return;
        float* row = rows + g * MERGE_ROW;
#pragma unroll
        for (int t = 0; t < cache::VALUE_TILES; ++t) {
            *reinterpret_cast<float2*>(row + 8 * t + 2 * j) = make_float2(out[t][0] + out[t][2], out[t][1] + out[t][3]);
        }
        if (j == 0) *reinterpret_cast<float2*>(row + model::HEAD_DIM) = make_float2(maximum, sum);
    }
};

// One element of one row, over the warps of an SM or the splits of a head.
struct Merged {
    float maximum = NO_SCORE, sum = 0.0f, value = 0.0f;

    DEVICE void add(float other_maximum, float other_sum, float other_value) {
        const float top = fmaxf(maximum, other_maximum);
        const float keep = exp2f(maximum - top), take = exp2f(other_maximum - top);
        sum = sum * keep + other_sum * take;
        value = value * keep + other_value * take;
        maximum = top;
    }
    DEVICE float result() const { return sum > 0.0f ? value / sum : 0.0f; }
};

// Maxima first, so that the exponentials do not wait for each other.
DEVICE Merged merge_warps(const float* rows, int rows_a_warp, int g, int d) {
    Merged m;
    float2 scale[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        scale[w] = *reinterpret_cast<const float2*>(rows + (w * rows_a_warp + g) * MERGE_ROW + model::HEAD_DIM);
        m.maximum = fmaxf(m.maximum, scale[w].x);
    }
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        const float take = exp2f(scale[w].x - m.maximum);
        m.sum += scale[w].y * take;
        m.value += rows[(w * rows_a_warp + g) * MERGE_ROW + d] * take;
    }
    return m;
}

namespace decode_attention {

constexpr int QUERIES = model::QUERIES_PER_KV;
static_assert(QUERIES <= ATTENTION_ROWS, "the query heads of one KV head are the rows of one operand");
constexpr int HEADS_A_TURN = model::KV_HEADS / model::SEATS;
static_assert(HEADS_A_TURN <= model::SMS && HEADS_A_TURN * model::MAX_SPLITS <= model::SMS, "an SM has at most one item");

// Heads x splits spread evenly over the SMs.
DEVICE AttentionItem item_of(int position, int window, int sm, int seat, int blocks_a_split) {
    AttentionItem item{-1, 0, 1, 0, 0, 0};
    item.first = window && position + 1 > window ? position + 1 - window : 0;
    item.first_block = item.first / cache::BLOCK;
    item.blocks = position / cache::BLOCK - item.first_block + 1;
    item.splits = smaller(ceil_div(item.blocks, blocks_a_split), model::MAX_SPLITS);
    const int items = HEADS_A_TURN * item.splits;
    const int mine = ceil_div(sm * items, model::SMS);
    if (mine < items && mine * model::SMS / items == sm) {
        const int turn_head = mine / item.splits;
        item.head = (turn_head / LANE_KV_HEADS * model::SEATS + seat) * LANE_KV_HEADS + turn_head % LANE_KV_HEADS;
        item.split = mine % item.splits;
    }
    return item;
}

// All layers' items of a pass, a thread each. Read only after a block barrier.
DEVICE void plan_items(Core& core) {
    for (int i = int(threadIdx.x); i < model::SEATS * model::LAYERS; i += CONSUMERS) {
        const int seat = i / model::LAYERS, layer = i % model::LAYERS;
        core.shared.items[seat][layer] =
            item_of(core.position, window_of(layer), int(core.place.sm), seat, core.params.blocks_a_split);
    }
}

DEVICE float4 numbers(const uint4& v) {
    return make_float4(untagged(v.x), untagged(v.y), untagged(v.z), untagged(v.w));
}

// Queries, and for the warp that has the last block the newest key and value, through shared memory: each lane fetches
// whole pieces, all asked for before any is looked at, because a look at the mailbox takes about a microsecond while
// the weights stream. Queries wait in the rows that will hold the warp's result.
struct Inputs {
    static constexpr int HEAD_QUADS = model::HEAD_DIM / 4;
    static constexpr int QUERY_PIECES = ceil_div(QUERIES * HEAD_QUADS, 32);
    static constexpr int PIECES = QUERY_PIECES + ceil_div(2 * HEAD_QUADS, 32);
    static_assert(mail::VALUES == mail::KEYS + model::KV_DIM && PIECES < 32, "pieces of a head");

    int g, j;      // query row and column group of this lane
    u32* queries;  // this warp's, a quad of numbers in operand form every four words
    u16* newest;   // key, then value

    DEVICE explicit Inputs(Core& core)
        : g(int(core.lane >> 2)), j(int(core.lane & 3)), queries(reinterpret_cast<u32*>(core.shared.merge() + core.warp * QUERIES * MERGE_ROW)), newest(core.shared.newest()) {}

    DEVICE void fetch(Core& core, int layer, int head, bool has_newest) {
        const u32* mail = core.mail(layer);
        const u32* from[PIECES];
        uint4 words[PIECES];
        u32 missing = 0;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            words[i] = make_uint4(0, 0, 0, 0);
            const int quad = (i < QUERY_PIECES ? i : i - QUERY_PIECES) * 32 + int(core.lane);
            if (i < QUERY_PIECES) {
                from[i] = mail + mail::QUERIES + head * QUERIES * model::HEAD_DIM + quad * 4;
                if (quad < QUERIES * HEAD_QUADS) missing |= 1u << i;
            } else {
                const int value = quad >= HEAD_QUADS;
                from[i] = mail + mail::KEYS + value * model::KV_DIM + head * model::HEAD_DIM + (quad - value * HEAD_QUADS) * 4;
                if (has_newest && quad < 2 * HEAD_QUADS) missing |= 1u << i;
            }
        }
        const u32 wanted = missing;
        Spin spin(core.params, core.place, WAIT_QUERY);
#pragma unroll 1
        while (missing) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (missing >> i & 1u) words[i] = peek4(from[i]);
            }
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (fresh(words[i], core.epoch)) missing &= ~(1u << i);
            }
            if (missing && spin.hopeless()) break;
        }
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            if (!(wanted >> i & 1u)) continue;
            const int quad = (i < QUERY_PIECES ? i : i - QUERY_PIECES) * 32 + int(core.lane);
            const float4 v = numbers(words[i]);
            if (i < QUERY_PIECES) {
                const Split a = split_f16(v.x * QUERY_SCALE, v.y * QUERY_SCALE), b = split_f16(v.z * QUERY_SCALE, v.w * QUERY_SCALE);
                *reinterpret_cast<uint4*>(queries + quad * 4) = make_uint4(a.high, a.low, b.high, b.low);
            } else {
                *reinterpret_cast<uint2*>(newest + quad * 4) = make_uint2(pack_f16(v.x, v.y), pack_f16(v.z, v.w));
            }
        }
        __syncwarp();
    }

    DEVICE QueryChunk chunk(int k) const {
        const int d = k * CHUNK_COLUMNS + 8 * j;
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        if (g < QUERIES && d < model::HEAD_DIM) {
            const u32* row = queries + g * model::HEAD_DIM + d;
            a = *reinterpret_cast<const uint4*>(row);
            b = *reinterpret_cast<const uint4*>(row + 4);
        }
        return {{{a.x, a.y}, {a.z, a.w}, {b.x, b.y}, {b.z, b.w}}};
    }

    // Puts the newest key and value where the cache would have them, position `p` of the block.
    DEVICE void insert(int p, KvBlock& block) const {
        const int group = p >> 3;
        if (g == (p & 7)) {
#pragma unroll
            for (int k = 0; k < cache::KEY_CHUNKS; ++k) {
                const int d = k * CHUNK_COLUMNS + 8 * j;
                uint4 key = make_uint4(0, 0, 0, 0);
                if (d < model::HEAD_DIM) key = *reinterpret_cast<const uint4*>(newest + d);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if (i == group) block.keys[i * cache::KEY_CHUNKS + k] = key;
                }
            }
        }
        if (j == (p >> 1 & 3)) {
            const u32 shift = (p & 1) * 16, keep = p & 1 ? 0x0000ffffu : 0xffff0000u;
#pragma unroll
            for (int t = 0; t < cache::VALUE_TILES; ++t) {
                const u32 half = u32(newest[model::HEAD_DIM + 8 * t + g]) << shift;
                uint4& v = block.values[t];
                if (group == 0) v.x = (v.x & keep) | half;
                if (group == 1) v.y = (v.y & keep) | half;
                if (group == 2) v.z = (v.z & keep) | half;
                if (group == 3) v.w = (v.w & keep) | half;
            }
        }
    }
};

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

// Adds the parts of splits 1 .. splits - 1, in order, a few at a time so that their loads overlap.
DEVICE void add_partials(Core& core, const u64* partials, int splits, int g, int d, Merged& m) {
    constexpr int AT_ONCE = 4;
    for (int first = 1; first < splits; first += AT_ONCE) {
        u64 value[AT_ONCE] = {};  // as rows.cuh's `past`
        ulonglong2 scale[AT_ONCE] = {};
        u32 missing = 0;
#pragma unroll
        for (int s = 0; s < AT_ONCE; ++s) {
            if (first + s < splits) missing |= 1u << s;
        }
        const u32 here = missing;
        Spin spin(core.params, core.place, WAIT_PARTIAL);
        while (missing) {
#pragma unroll
            for (int s = 0; s < AT_ONCE; ++s) {
                if (!(missing >> s & 1u)) continue;
                const u64* row = partials + (first + s) * mail::PARTIAL_ITEM + g * mail::PARTIAL_ROW;
                value[s] = load_relaxed(row + d);
                scale[s] = peek2(row + model::HEAD_DIM);
            }
#pragma unroll
            for (int s = 0; s < AT_ONCE; ++s) {
                if ((missing >> s & 1u) && is_current(core, value[s]) && is_current(core, scale[s].x) &&
                    is_current(core, scale[s].y)) {
                    missing &= ~(1u << s);
                }
            }
            if (missing && spin.hopeless()) break;
        }
#pragma unroll
        for (int s = 0; s < AT_ONCE; ++s) {
            if (here >> s & 1u) m.add(number(scale[s].x), number(scale[s].y), number(value[s]));
        }
    }
}

// Blocks of an item go to its warps in turn; those of a head to its splits in turn before that.
DEVICE int first_index(const Core& core, const AttentionItem& item) { return item.split + item.splits * int(core.warp); }

// Asks for a warp's first blocks while the layer's earlier phases still compute.
DEVICE void prefetch(Core& core, const AttentionItem& item, int layer) {
    if (item.head < 0 || core.lane >= 2) return;
    const int index = first_index(core, item) + int(core.lane) * item.splits * WARPS;
    if (index < item.blocks) {
        prefetch_l2(cache::block(core.params.kv, layer, item.head, item.first_block + index), cache::BLOCK_HALVES * 2);
    }
}

// Waits for: queries, and the newest key and value. Publishes: the head's result, or its part of it to the SM that
// has the head's first part.
DEVICE void run(Core& core, const AttentionItem& item, int layer) {
    if (item.head < 0) return;
    const u32 lane = core.lane;
    const int stride = item.splits * WARPS;
    int index = first_index(core, item);
    float* rows = core.shared.merge();
    float* mine = rows + core.warp * QUERIES * MERGE_ROW;
    if (index < item.blocks) {
        KvBlock block;
        const auto at = [&](int i) { return cache::block(core.params.kv, layer, item.head, item.first_block + i); };
        block.load_keys(at(index), lane);  // before the queries are there
        block.load_values(at(index), lane);
        const int last = item.blocks - 1;
        Inputs inputs(core);
        inputs.fetch(core, layer, item.head, last % stride == index);
        core.profile.input_ready();
        RunningSoftmax row;
#pragma unroll 1
        while (true) {
            const int base = (item.first_block + index) * cache::BLOCK;
            if (index == last) {
                block.forget_values_from(core.position - base, lane);
                inputs.insert(core.position - base, block);
            }
            row.add(inputs, block, base, item.first, core.position + 1, lane);
            index += stride;
            if (index >= item.blocks) break;
            block.load_keys(at(index), lane);
            block.load_values(at(index), lane);
        }
        __syncwarp();  // all lanes have read their queries, which lie where the result goes
        row.leave(mine, QUERIES, lane);
    } else {
        for (int i = int(lane); i < QUERIES * MERGE_ROW; i += 32) mine[i] = i % MERGE_ROW == model::HEAD_DIM ? NO_SCORE : 0.0f;
    }
    consumers_sync();
    u64* partials = reinterpret_cast<u64*>(core.mail(layer) + mail::PARTIALS) + item.head * model::MAX_SPLITS * mail::PARTIAL_ITEM;
#pragma unroll 1
    for (int e = int(threadIdx.x); e < QUERIES * model::HEAD_DIM; e += CONSUMERS) {
        const int g = e / model::HEAD_DIM, d = e % model::HEAD_DIM;
        Merged m = merge_warps(rows, QUERIES, g, d);
        if (item.split) {
            post_partial(core, partials + item.split * mail::PARTIAL_ITEM, g, d, m);
            continue;
        }
        if (item.splits > 1) add_partials(core, partials, item.splits, g, d, m);
        post(core.mail(layer) + mail::HEADS_OUT + (item.head * QUERIES + g) * model::HEAD_DIM + d,
             tagged(m.result(), core.epoch));
    }
    consumers_sync();  // the rows in shared memory are free again
}

}  // namespace decode_attention
