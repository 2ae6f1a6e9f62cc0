// What happens to a pair of finished rows in decode: the end of each phase, folded in where the data is.
#pragma once
#include "expert_biases.cuh"

// Constant memory: a table in a function would be written to the stack each time it is read.
__constant__ const u8 ATTENTION_EXCHANGES[] = MODEL_ATTENTION_EXCHANGE;
__constant__ const u8 MLP_EXCHANGES[] = MODEL_MLP_EXCHANGE;
__constant__ const int WINDOWS[] = MODEL_WINDOWS;

DEVICE int attention_exchange(int layer) { return ATTENTION_EXCHANGES[layer]; }
DEVICE int mlp_exchange(int layer) { return MLP_EXCHANGES[layer]; }
DEVICE int window_of(int layer) { return WINDOWS[layer]; }
// Whether some layer of the model has this exchange.
constexpr bool any_exchange(Exchange kind) {
    constexpr u8 attention[] = MODEL_ATTENTION_EXCHANGE, mlp[] = MODEL_MLP_EXCHANGE;
    for (int layer = 0; layer < model::LAYERS; ++layer) {
        if (attention[layer] == kind || mlp[layer] == kind) return true;
    }
    return false;
}

constexpr int LANE_HEADS = model::HEADS / model::LANES;
constexpr int LANE_KV_HEADS = model::KV_HEADS / model::LANES;
constexpr int LANE_Q = model::Q_DIM / model::LANES;
constexpr int LANE_KV = model::KV_DIM / model::LANES;
constexpr int LANE_FFN = model::FFN / model::LANES;
constexpr int HALF_HEAD = model::HEAD_DIM / 2;

// Tiles of one lane in each matrix; a lane's last tile may be padded with zero rows.
constexpr int QKV_LANE_TILES = ceil_div(LANE_Q + 2 * LANE_KV, TILE_ROWS);
constexpr int OUT_LANE_TILES = ceil_div(model::HIDDEN, TILE_ROWS);
constexpr int GATE_UP_LANE_TILES = ceil_div(2 * LANE_FFN, TILE_ROWS);
constexpr int HEAD_PARTS = model::HEAD_KIND == HEAD_VOCAB_PARALLEL ? model::LANES : 1;  // vocab_parallel: a part a lane
constexpr int HEAD_PART = model::VOCAB_SHARE / HEAD_PARTS;            // vocabulary rows of one
constexpr int HEAD_PART_TILES = ceil_div(HEAD_PART, TILE_ROWS);

// The pair `pair` (rows 2 pair, 2 pair + 1 of the packed matrix), counted within its lane.
DEVICE int pair_in_lane(int pair, int lane, int lane_tiles) { return pair - lane * lane_tiles * (TILE_ROWS / 2); }

// What a pair of rows of qkv is. The packer puts the two elements that one rotation turns side by side.
struct QkvPair {
    enum Kind { QUERY, KEY, VALUE, PADDING } kind;
    int head;      // of its kind, over all lanes
    int turn;      // which rotation of the head
    int first, second;  // elements within the head

    QkvPair() = default;
    DEVICE QkvPair(int pair, int lane) {
        int p = pair_in_lane(pair, lane, QKV_LANE_TILES);
        int heads = LANE_HEADS;
        kind = QUERY;
        if (p >= LANE_Q / 2) {
            p -= LANE_Q / 2;
            heads = LANE_KV_HEADS;
            kind = KEY;
            if (p >= LANE_KV / 2) {
                p -= LANE_KV / 2;
                kind = p < LANE_KV / 2 ? VALUE : PADDING;
            }
        }
        head = lane * heads + p / HALF_HEAD;
        turn = p % HALF_HEAD;
        const bool apart = model::ROPE_HALF && kind != VALUE;
        first = apart ? turn : 2 * turn;
        second = apart ? turn + HALF_HEAD : 2 * turn + 1;
    }
    // The pair `k` further, of the same head.
    DEVICE QkvPair further(int k) const {
        const int elements = second - first == 1 ? 2 * k : k;
        QkvPair next = *this;
        next.turn += k;
        next.first += elements;
        next.second += elements;
        return next;
    }
};

DEVICE float2 rotated(float a, float b, float2 turn) {
    return make_float2(a * turn.x - b * turn.y, b * turn.x + a * turn.y);
}

DEVICE float swiglu(float gate, float up) {
    if constexpr (model::SWIGLU_LIMIT > 0.0f) {  // clamped, with a steeper gate (engine/activations.py)
        gate = fminf(gate, model::SWIGLU_LIMIT);
        up = fminf(fmaxf(up, -model::SWIGLU_LIMIT), model::SWIGLU_LIMIT);
        return __fdividef(gate, 1.0f + __expf(-1.702f * gate)) * (up + 1.0f);
    }
    if constexpr (model::GELU) {  // by tanh: gate (1 + tanh z) / 2 is gate over 1 + exp(-2 z)
        const float z = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
        return __fdividef(gate, 1.0f + __expf(-2.0f * z)) * up;
    }
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

// Keeps what is beyond `cap` on either side near it.
DEVICE float soft_capped(float v, float cap) { return cap * tanhf(v / cap); }

// The cache: [layer][kv head][block of 16 positions], a block first its keys, then its values, in units of 16 elements of
// the head, each as the tensor cores take it for operand A (attention.cuh): lane 4 g + j has four consecutive words. FP16,
// whatever the weights' type; or E4M3 (engine/e4m3.py says by which rule) in the same order, half as wide, which become
// FP16 where they are read.
namespace cache {
template <bool FP8>
struct Format {
    using Number = u16;
    using Words = uint4;  // eight numbers: what a lane has of a unit
    DEVICE static uint4 widened(const uint4& words) { return words; }
    // Of two numbers side by side those that there are; of eight, the first and the last two words.
    DEVICE static u32 known(bool first, bool second) { return (first ? 0xffffu : 0u) | (second ? 0xffff0000u : 0u); }
    DEVICE static void keep(uint4& words, const u32 (&mask)[2]) {
        words.x &= mask[0];
        words.y &= mask[0];
        words.z &= mask[1];
        words.w &= mask[1];
    }
    DEVICE static uint4 peek(const u32* from) { return peek4(from); }
};
template <>
struct Format<true> {
    using Number = u8;
    using Words = uint2;
    DEVICE static uint4 widened(const uint2& words) {
        return make_uint4(widen_e4m3(u16(words.x)), widen_e4m3(u16(words.x >> 16)), widen_e4m3(u16(words.y)), widen_e4m3(u16(words.y >> 16)));
    }
    DEVICE static u32 known(bool first, bool second) { return (first ? 0xff00ffu : 0u) | (second ? 0xff00ff00u : 0u); }
    DEVICE static void keep(uint2& words, const u32 (&mask)[2]) {
        words.x &= mask[0];
        words.y &= mask[1];
    }
    DEVICE static uint2 peek(const u32* from) { return peek2(from); }
};
using Kept = Format<model::FP8_CACHE>;
using Number = Kept::Number;
constexpr int NUMBER_BYTES = sizeof(Number);
constexpr int LANE_WORDS = 2 * NUMBER_BYTES;

constexpr int BLOCK = 16;
constexpr int UNITS = ceil_div(model::HEAD_DIM, 16);
constexpr int UNIT_NUMBERS = UNIT_BYTES / 2;
constexpr int BLOCK_NUMBERS = 2 * UNITS * UNIT_NUMBERS;
constexpr int BLOCK_BYTES = BLOCK_NUMBERS * NUMBER_BYTES;
constexpr int BLOCKS = model::CAPACITY / BLOCK;
// Half a unit may lie past HEAD_DIM: it is never written, and must stay the zeros that it was allocated with.
static_assert(model::HEAD_DIM % 8 == 0 && model::CAPACITY % BLOCK == 0, "whole units");
static_assert(size_t(model::LAYERS) * model::KV_HEADS * BLOCKS * BLOCK_BYTES == size_t(model::KV_HALVES) * 2, "the host reserves as much");

DEVICE Number* block(u16* kv, int layer, int head, int index) {
    return reinterpret_cast<Number*>(kv) + ((size_t(layer) * model::KV_HEADS + head) * BLOCKS + index) * BLOCK_NUMBERS;
}
// Two numbers as the cache keeps them, in FP16.
DEVICE u32 rounded(float low, float high) {
    if constexpr (model::FP8_CACHE) return widen_e4m3(pack_e4m3(low, high));
    return saturated_f16(low, high);
}
DEVICE uint2 rounded(const float4& v) { return make_uint2(rounded(v.x, v.y), rounded(v.z, v.w)); }
// Numbers from the start of the block to element `d` of the key at position `p` (mod 16). Rows of the operand are
// positions; lane j has the elements 4 j .. 4 j + 3 of a unit.
DEVICE int key_offset(int p, int d) {
    const int lane = (p & 7) * 4 + (d >> 2 & 3), word = (d >> 1 & 1) * 2 + (p >> 3);
    return (d >> 4) * UNIT_NUMBERS + lane * 8 + word * 2 + (d & 1);
}
// To element `d` of its value. Rows are the elements; lane j has the positions 2 j, 2 j + 1, 2 j + 8 and 2 j + 9.
DEVICE int value_offset(int p, int d) {
    const int lane = (d & 7) * 4 + (p >> 1 & 3), word = (p >> 3) * 2 + (d >> 3 & 1);
    return (UNITS + (d >> 4)) * UNIT_NUMBERS + lane * 8 + word * 2 + (p & 1);
}
}  // namespace cache

// `halves` as cache::rounded leaves them.
DEVICE void append(u16* kv, int layer, int position, const QkvPair& at, u32 halves) {
    cache::Number* block = cache::block(kv, layer, at.head, position / cache::BLOCK);
    const int p = position % cache::BLOCK;
    const bool key = at.kind == QkvPair::KEY;
    const u32 kept = model::FP8_CACHE ? narrow_e4m3(halves) : halves;
    block[key ? cache::key_offset(p, at.first) : cache::value_offset(p, at.first)] = cache::Number(kept);
    block[key ? cache::key_offset(p, at.second) : cache::value_offset(p, at.second)] = cache::Number(kept >> 8 * cache::NUMBER_BYTES);
}

// Four of a key from an element 4 `quad` on.
DEVICE void append_key(u16* kv, int layer, int position, int head, int quad, uint2 halves) {
    cache::Number* at = cache::block(kv, layer, head, position / cache::BLOCK) + cache::key_offset(position % cache::BLOCK, 4 * quad);
    if constexpr (model::FP8_CACHE) {
        *reinterpret_cast<u16*>(at) = narrow_e4m3(halves.x);
        *reinterpret_cast<u16*>(at + 4) = narrow_e4m3(halves.y);
    } else {
        *reinterpret_cast<u32*>(at) = halves.x;
        *reinterpret_cast<u32*>(at + 4) = halves.y;
    }
}

// QK_NORM: what reads the whole head finishes this pair.
DEVICE bool travels_raw(const QkvPair& at) { return model::QK_NORM && at.kind != QkvPair::VALUE; }

DEVICE float2 bias_of(const Params& p, int layer, const QkvPair& at) {
    constexpr int KEYS = model::RANKS * model::Q_DIM, VALUES = KEYS + model::RANKS * model::KV_DIM;
    const int first_row = at.kind == QkvPair::QUERY ? 0 : at.kind == QkvPair::KEY ? KEYS : VALUES;
    const int rows = at.kind == QkvPair::QUERY ? model::Q_DIM : model::KV_DIM, row = at.head * model::HEAD_DIM;
    return make_float2(heads::bias(p, layer, first_row, rows, row + at.first), heads::bias(p, layer, first_row, rows, row + at.second));
}

// Each of these: `prepare` asks early for what a pair's end needs, `post` takes its sums. To one that is BY_WARP the whole warp comes, also
// threads without a pair (-1), for it waits or shuffles: where only some threads do, the compiler takes lanes for apart from there on, and
// all of decode keeps nothing in uniform registers.

// Rotation, then queries to the mailbox; keys and values to the mailbox (this token) and the cache (later ones).
struct QkvFinish {
    static constexpr bool BY_WARP = false;

    Core& core;
    int layer;
    QkvPair at{};
    u32* to = nullptr;  // where the first element is posted
    float2 turn = make_float2(1.0f, 0.0f);
    float2 bias = make_float2(0.0f, 0.0f);

    DEVICE void prepare(int pair) {
        at = QkvPair(pair, core.model_lane);
        const int base = at.kind == QkvPair::QUERY ? mail::QUERIES : at.kind == QkvPair::KEY ? mail::KEYS : mail::VALUES;
        to = core.mail(layer) + base + at.head * model::HEAD_DIM + at.first;
        if constexpr (model::QKV_BIAS) {
            if (at.kind != QkvPair::PADDING) bias = bias_of(core.params, layer, at);
        }
        if (at.kind <= QkvPair::KEY && !travels_raw(at)) turn = __ldg(heads::rotation(core.params, layer, core.position) + at.turn);
    }
    DEVICE void post(int, float a, float b) {
        if (at.kind == QkvPair::PADDING) return;
        const float scale = inverse_rms(core.squares_left());
        float2 v = make_float2(a * scale, b * scale);
        if constexpr (model::QKV_BIAS) v = make_float2(v.x + bias.x, v.y + bias.y);
        if (at.kind != QkvPair::VALUE && !travels_raw(at)) v = rotated(v.x, v.y, turn);
        const bool cached = at.kind != QkvPair::QUERY && !travels_raw(at);
        const u32 halves = cache::rounded(v.x, v.y);
        if (cached) v = make_float2(f16_low(halves), f16_high(halves));
        ::post(to, tagged(v.x, core.epoch));
        ::post(to + (at.second - at.first), tagged(v.y, core.epoch));
        if (cached) append(core.params.kv, layer, core.position, at, halves);
    }
};

// FOLDED: until it is known how much each expert counts. BY_WARP: by whole warps.
template <bool BY_WARP>
DEVICE void await_weights(Core& core, int layer) {
    u64* weighed = &core.shared.routing.decode().weighed;
    if constexpr (BY_WARP) await_in_place(weighed, core.layer_parity(layer), &core.params.control->aborted);
    else barrier_wait(weighed, core.layer_parity(layer), core.params, core.place, WAIT_ROUTE);
}

struct GateUpFinish {
    // Products from slots want their descriptors in registers of the whole warp, which a wait by some of its threads would take from all of
    // decode. Others were slower by it: docs/performance-log.md.
    static constexpr bool BY_WARP = experts::FOLDED && REQUESTS == 1 && from_slots(experts::STORAGE<GATE_UP>);

    Core& core;
    int layer;

    int f = 0;          // which gated number
    u32* to = nullptr;  // where it is posted
    float2 bias = make_float2(0.0f, 0.0f);

    DEVICE void prepare(int pair) {
        f = pair_in_lane(pair, core.model_lane, GATE_UP_LANE_TILES);
        to = core.mail(layer) + mail::GATED + core.model_lane * LANE_FFN + f;
        if constexpr (experts::BIASED) bias = experts::gate_up_bias(core.params, core.met(), layer, pair);
    }
    DEVICE void post(int pair, float gate, float up) {
        const bool posts = (!BY_WARP || pair >= 0) && f < LANE_FFN;
        if (!BY_WARP && !posts) return;
        const float scale = inverse_rms(core.squares_left());
        gate *= scale;
        up *= scale;
        if constexpr (experts::BIASED) {
            gate += bias.x;
            up += bias.y;
        }
        float gated = swiglu(gate, up);
        if constexpr (experts::FOLDED && REQUESTS == 1) await_weights<BY_WARP>(core, layer);
        if constexpr (experts::ANY) gated *= core.met().weights[f / experts::COLUMNS];  // so that `down` adds them up
        if (posts) ::post(to, tagged(gated, core.epoch));
    }
};

// Adds a module's output to the residual stream and posts the stream: attention's if ATTENTION, else the MLP's.
template <bool ATTENTION>
struct ResidualFinish {
    static constexpr int OWN = ATTENTION ? mail::LANES_ATTENTION : mail::LANES_MLP;
    static constexpr int STREAM = ATTENTION ? mail::AFTER_ATTENTION : mail::AFTER_MLP;
    static constexpr int LANES = model::TOTAL_LANES;
    static constexpr bool BIASED = ATTENTION ? model::OUT_BIAS : experts::BIASED;
    static constexpr bool TO_HEAD = !ATTENTION && mail::JOINS_LANES && !model::POST_NORMS;
    static_assert(!TO_HEAD || !model::OUT_HALVES, "whole tiles' sums of squares go to the head");
    static constexpr bool ADDS_BEFORE = mail::READ_IN_PARTS && !model::POST_NORMS;  // on the first GPU
    static constexpr bool ADDS_DELAYED = LANES > 1 && !mail::IN_PARTS;
    static constexpr bool BY_WARP = REQUESTS == 1 && (ADDS_BEFORE || ADDS_DELAYED || TO_HEAD);

    Core& core;
    int layer;
    int exchange;
    bool read_later;
    int r = 0;                     // the first of the pair's rows
    float2* residual = nullptr;    // what the stream had of them
    u32* to = nullptr;             // where it is posted
    float2 bias = make_float2(0.0f, 0.0f);
    float2 stream = make_float2(0.0f, 0.0f);  // TO_HEAD: what was posted
    uint2 past[LANES] = {};  // unset on some path it would be live, and spilled, all the way back to the start

    DEVICE ResidualFinish(Core& c, int l) : core(c), layer(l) {
        exchange = how(l);
        read_later = exchange == EXCHANGE_SYNC || (l + model::DELAY < model::LAYERS && how(l + model::DELAY) == EXCHANGE_DELAYED);
    }
    DEVICE static int how(int l) { return ATTENTION ? attention_exchange(l) : mlp_exchange(l); }
    DEVICE const u32* outputs(int l, int other, int r) const {
        return core.mail(l) + OWN + other * model::HIDDEN + r;
    }
    // Asks for the other lanes' outputs early; they are `DELAY` layers old and have most likely arrived.
    DEVICE void prepare(int pair) {
        r = 2 * pair_in_lane(pair, core.model_lane, OUT_LANE_TILES);
        residual = reinterpret_cast<float2*>(core.residual()) + (pair - pairs_before(ATTN_OUT, core.share(ATTN_OUT).first));
        to = core.mail(layer) + STREAM + (ATTENTION ? core.model_lane : core.stream()) * model::HIDDEN + r;
        if (r >= model::HIDDEN) return;
        if (mail::IN_PARTS && core.params.rank != 0) return;
        if constexpr (BIASED) {
            bias = ATTENTION ? heads::out_bias(core.params, layer, r) : experts::down_bias(core.params, core.met(), layer, r);
        }
        if constexpr (ADDS_BEFORE) {
            look_before();
        } else if constexpr (LANES > 1) {
            if (exchange != EXCHANGE_DELAYED) return;
#pragma unroll
            for (int m = 0; m < LANES; ++m) {
                if (m != core.whole_lane()) past[m] = peek2_far(outputs(layer - model::DELAY, m, r));
            }
        }
    }
    // This lane's output of the layer, where every lane can read it: in each GPU's own memory.
    DEVICE void share(int r, u32 a, u32 b) {
        const size_t at = size_t(layer) * mail::LAYER + OWN + core.whole_lane() * model::HIDDEN + r;
        for_each_peer(core.params, [&](const Peer& peer) { post_far(peer.mail + at, a, b); });
        ::post(core.mailbox() + at, a, b);
    }
    // The last stream, and the sum of squares of each of its tiles, to every GPU: each makes the head's input for itself. By all that
    // come to `post`.
    DEVICE void tell_head(bool posted) const {
        const size_t at = to - core.mailbox();
        if (posted) {
            const u32 a = tagged(stream.x, core.epoch), b = tagged(stream.y, core.epoch);
            for_each_peer(core.params, [&](const Peer& peer) { post_far(peer.mail + at, a, b); });
        }
        if constexpr (model::SUM_BEFORE_NORM) return;
        const u32 tile = BY_WARP ? ALL_LANES : 0xfu << (core.lane & ~3u);  // four threads have its rows
        float squares = stream.x * stream.x + stream.y * stream.y;
        squares += __shfl_xor_sync(tile, squares, 1);
        squares += __shfl_xor_sync(tile, squares, 2);
        if (!posted || core.lane & 3u) return;
        const size_t sum_at = mail::SQUARES + core.stream() * mail::TILES + r / TILE_ROWS;
        ::post(core.params.mail + sum_at, tagged(squares, core.epoch));
        for_each_peer(core.params, [&](const Peer& peer) { post_far(peer.mail + sum_at, tagged(squares, core.epoch)); });
    }
    // TOGETHER: by a whole warp, of whose threads some ask.
    template <bool TOGETHER>
    DEVICE void await_lanes(int l, bool asks = true) {
        constexpr StepKind STEP = ATTENTION ? STEP_ATTN_OUT : STEP_DOWN;
        u32 missing = asks ? missing_lanes() : 0;
        const PeerWait waited(core.shared.totals, STEP, (missing & ~(((1u << model::LANES) - 1u) << core.params.rank * model::LANES)) != 0);
        Spin spin(core.params, core.place, WAIT_LANES);
        while (TOGETHER ? __any_sync(ALL_LANES, missing) : missing) {
#pragma unroll
            for (int m = 0; m < LANES; ++m) {
                if (missing >> m & 1u) past[m] = peek2_far(outputs(l, m, r));
            }
            if (missing) missing = missing_lanes();
            if (spin.hopeless()) missing = 0;
        }
    }
    // The sum over lanes in their order, so that it is the same wherever it is made; `own` takes this lane's place.
    DEVICE float2 sum_of_lanes(float2 own) const {
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int m = 0; m < LANES; ++m) {
            const bool here = m == core.whole_lane();
            sum.x += here ? own.x : untagged(past[m].x);
            sum.y += here ? own.y : untagged(past[m].y);
        }
        return sum;
    }
    // Bit m: lane m's output has not arrived.
    DEVICE u32 missing_lanes() const {
        u32 missing = 0;
#pragma unroll
        for (int m = 0; m < LANES; ++m) {
            if (m != core.whole_lane() && !fresh(past[m], core.epoch)) missing |= 1u << m;
        }
        return missing;
    }
    // READ_IN_PARTS: asks for the stream before the module. This SM has seen it, most often, but kept none of it; of the first layer it
    // has kept its rows of the embedding.
    DEVICE bool has_kept() const { return !mail::READ_IN_PARTS || (ATTENTION && layer == 0); }
    DEVICE void look_before() {
        if (has_kept()) return;
        const u32* from = core.mail(ATTENTION ? layer - 1 : layer) + (ATTENTION ? mail::STREAM_AFTER_MLP : mail::STREAM_AFTER_ATTENTION) + r;
#pragma unroll
        for (int m = 0; m < LANES; ++m) past[m] = peek2_far(from + m * model::HIDDEN);
    }
    DEVICE void await_before(bool asks) {
        if (has_kept() || core.params.rank != 0) return;
        Spin spin(core.params, core.place, WAIT_LANES);
        bool missing = asks && missing_before();
        while (__any_sync(ALL_LANES, missing)) {
            if (missing) look_before();
            missing = missing && missing_before();
            if (spin.hopeless()) missing = false;
        }
    }
    DEVICE bool missing_before() const {
        bool all = true;
#pragma unroll
        for (int m = 0; m < LANES; ++m) all = all && fresh(past[m], core.epoch);
        return !all;
    }
    DEVICE float2 stream_before() const {
        if (has_kept()) return *residual;
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int m = 0; m < LANES; ++m) {
            sum.x += untagged(past[m].x);
            sum.y += untagged(past[m].y);
        }
        return make_float2(as_posted(sum.x), as_posted(sum.y));
    }
    // IN_PARTS: what this GPU's part of the module gives, to all.
    DEVICE void post_part(float2 sum) {
        if (core.params.rank == 0) {
            if constexpr (BIASED) sum = make_float2(sum.x + bias.x, sum.y + bias.y);
            if constexpr (!model::POST_NORMS) {
                const float2 before = stream_before();
                sum = make_float2(sum.x + before.x, sum.y + before.y);
            }
        }
        const u32 first = tagged(sum.x, core.epoch), second = tagged(sum.y, core.epoch);
        share(r, first, second);
        if constexpr (!mail::READ_IN_PARTS) {
#pragma unroll
            for (int m = 0; m < LANES; ++m) past[m] = make_uint2(core.epoch ^ 1u, core.epoch ^ 1u);
            await_lanes<false>(layer);
            const float2 all = sum_of_lanes(make_float2(untagged(first), untagged(second)));
            if constexpr (!model::POST_NORMS) *residual = make_float2(as_posted(all.x), as_posted(all.y));
            ::post(to, tagged(all.x, core.epoch), tagged(all.y, core.epoch));
        }
    }
    DEVICE void post(int pair, float a, float b) {
        const bool posts = pair >= 0 && r < model::HIDDEN;
        if constexpr (ADDS_BEFORE) await_before(posts);
        if (ADDS_DELAYED && exchange == EXCHANGE_DELAYED) await_lanes<BY_WARP>(layer - model::DELAY, posts);
        if (posts) {
            if constexpr (mail::IN_PARTS) post_part(make_float2(a, b));
            else post_stream(a, b);
        }
        if constexpr (TO_HEAD) {
            if (layer == model::LAYERS - 1) tell_head(posts);
        }
    }
    // What is left to this SM: the stream after the module, with the other lanes' outputs that it has to have.
    DEVICE void post_stream(float a, float b) {
        float2 add = make_float2(a, b);
        const u32 first = tagged(a, core.epoch), second = tagged(b, core.epoch);
        if constexpr (LANES > 1) {
            if (exchange == EXCHANGE_LOCAL) {
                add = make_float2(a * model::SQRT_LANES, b * model::SQRT_LANES);
            } else if (any_exchange(EXCHANGE_SYNC) && exchange == EXCHANGE_SYNC) {
                share(r, first, second);
#pragma unroll
                for (int m = 0; m < LANES; ++m) past[m] = make_uint2(core.epoch ^ 1u, core.epoch ^ 1u);
                await_lanes<false>(layer);
                add = sum_of_lanes(make_float2(untagged(first), untagged(second)));
            } else {
                const float2 sum = sum_of_lanes(make_float2(0.0f, 0.0f));
                add = make_float2(a + sum.x, b + sum.y);
            }
        }
        if constexpr (BIASED) add = make_float2(add.x + bias.x, add.y + bias.y);  // once, also where GPUs have added up
        if constexpr (model::POST_NORMS) {  // whoever reads it adds it to the stream
            ::post(to, tagged(add.x, core.epoch), tagged(add.y, core.epoch));
            return;
        }
        const float2 x = make_float2(residual->x + add.x, residual->y + add.y);
        *residual = x;
        const u32 stream_a = tagged(x.x, core.epoch), stream_b = tagged(x.y, core.epoch);
        ::post(to, stream_a, stream_b);
        if constexpr (TO_HEAD) stream = x;
        if constexpr (LANES > 1) {
            if (read_later && exchange != EXCHANGE_SYNC) share(r, first, second);
        }
    }
};
