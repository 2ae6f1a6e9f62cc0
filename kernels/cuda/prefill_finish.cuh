// What happens to a pair of finished rows in prefill, for every token of a chunk.
#pragma once
#include "shares.cuh"
#include "tiles.cuh"

namespace prefill {

constexpr int HISTORY = model::DELAY + 1;

struct Chunk {
    int first;   // position of its first token
    int tokens;
    bool tiled;  // ByTiles, else ByShares: a Way, which says how many tokens a chunk has at most and how operands lie

    // Whether its last token is the one that decode goes on with (last_token.cuh).
    DEVICE bool has_last(const Params& p) const { return first + tokens > p.prefill_end; }
};

// What a residual stream begins with, or takes in next.
enum Source { EMBEDDING, ATTENTION_OUTPUT, MLP_OUTPUT };

DEVICE void add(float4& x, const float4& v, float scale = 1.0f) {
    x.x += v.x * scale;
    x.y += v.y * scale;
    x.z += v.z * scale;
    x.w += v.w * scale;
}
DEVICE float4 unpacked(const uint2& four) {
    return make_float4(weight_low(four.x), weight_high(four.x), weight_low(four.y), weight_high(four.y));
}

// How lanes take in what a module of a layer produces.
DEVICE int exchange_of(bool attention, int layer) { return attention ? attention_exchange(layer) : mlp_exchange(layer); }

// Of lanes that take in each other's outputs late, another GPU needs the sum over a GPU's lanes and no more; the norm, which has
// read them all, tells it (prefill.cuh). Else products tell their outputs as they are.
constexpr bool TELLS_SUMS = model::RANKS > 1 && any_exchange(EXCHANGE_DELAYED) && !any_exchange(EXCHANGE_SYNC);

// Module outputs of a layer in the weights' type: [TOTAL_LANES][CHUNK][HIDDEN]. Other GPUs write here as well: each lane's, or
// in the place of their first lane their sum.
template <class Way>
DEVICE size_t outputs_offset(bool attention, int layer) {
    return ((attention ? 0 : HISTORY) + layer % HISTORY) * size_t(model::TOTAL_LANES) * Way::CHUNK * model::HIDDEN;
}

// Head `head` of a token, keys after queries, where the rows of the whole chunk are kept; keys only until they are finished.
template <class Way>
DEVICE float* raw_head(const Params& p, int token, int head) {
    const bool key = head >= model::HEADS;
    const size_t at = key ? size_t(Way::CHUNK) * model::Q_DIM + size_t(token) * model::KV_DIM : size_t(token) * model::Q_DIM;
    return p.queries + at + (key ? head - model::HEADS : head) * model::HEAD_DIM;
}

template <class Way>
struct QkvStore {
    static constexpr int TILES = 4;  // by tiles: eight rows each, at a time (tiles.cuh); much code for each
    Core& core;
    int layer;
    Chunk chunk;

    DEVICE void store(int pair, int token, float a, float b) const {
        const QkvPair at(pair, core.model_lane);
        if (at.kind == QkvPair::PADDING) return;
        const int position = chunk.first + token;
        float2 v = make_float2(a, b);
        if constexpr (model::QKV_BIAS) {
            const float2 bias = bias_of(core.params, layer, at);
            v = make_float2(a + bias.x, b + bias.y);
        }
        if (at.kind != QkvPair::VALUE && !travels_raw(at)) {
            v = rotated(v.x, v.y, __ldg(heads::rotation(core.params, layer, position) + at.turn));
        }
        if (at.kind != QkvPair::QUERY && !travels_raw(at)) {
            append(core.params.kv, layer, position, at, cache::rounded(v.x, v.y));
            return;
        }
        float* to = row_of(at, token);
        to[at.first] = v.x;
        to[at.second] = v.y;
    }

    // The rotations of four pairs from `at` on.
    struct Turns {
        float4 xy, zw;
    };
    DEVICE Turns turns(const QkvPair& at, int token) const {
        if constexpr (model::QK_NORM) return {};
        const float4* from = reinterpret_cast<const float4*>(heads::rotation(core.params, layer, chunk.first + token) + at.turn);
        return {__ldg(from), __ldg(from + 1)};
    }

    // Four pairs of one head from `at` on, whose turn is a multiple of four: a's and b's are its rows in turn.
    DEVICE void store(const QkvPair& at, int token, float4 a, float4 b, const Turns& turns) const {
        const int position = chunk.first + token;
        if constexpr (model::QKV_BIAS) {
            const float2 x = bias_of(core.params, layer, at), y = bias_of(core.params, layer, at.further(1));
            const float2 z = bias_of(core.params, layer, at.further(2)), w = bias_of(core.params, layer, at.further(3));
            a = make_float4(a.x + x.x, a.y + y.x, a.z + z.x, a.w + w.x);
            b = make_float4(b.x + x.y, b.y + y.y, b.z + z.y, b.w + w.y);
        }
        if (at.kind == QkvPair::VALUE) {
            append(core.params.kv, layer, position, at, cache::rounded(a.x, b.x));
            append(core.params.kv, layer, position, at.further(1), cache::rounded(a.y, b.y));
            append(core.params.kv, layer, position, at.further(2), cache::rounded(a.z, b.z));
            append(core.params.kv, layer, position, at.further(3), cache::rounded(a.w, b.w));
            return;
        }
        if (!travels_raw(at)) {
            const float4 &xy = turns.xy, &zw = turns.zw;
            const float2 x = rotated(a.x, b.x, make_float2(xy.x, xy.y)), y = rotated(a.y, b.y, make_float2(xy.z, xy.w));
            const float2 z = rotated(a.z, b.z, make_float2(zw.x, zw.y)), w = rotated(a.w, b.w, make_float2(zw.z, zw.w));
            a = make_float4(x.x, y.x, z.x, w.x);
            b = make_float4(x.y, y.y, z.y, w.y);
        }
        // Eight elements: two times four that lie apart, or side by side.
        const float4 first = model::ROPE_HALF ? a : make_float4(a.x, b.x, a.y, b.y);
        const float4 second = model::ROPE_HALF ? b : make_float4(a.z, b.z, a.w, b.w);
        const int behind = model::ROPE_HALF ? at.second : at.first + 4;
        if (at.kind == QkvPair::KEY && !travels_raw(at)) {
            append_key(core.params.kv, layer, position, at.head, at.first / 4, cache::rounded(first));
            append_key(core.params.kv, layer, position, at.head, behind / 4, cache::rounded(second));
            return;
        }
        float* to = row_of(at, token);
        store_words(to + at.first, first);
        store_words(to + behind, second);
    }

private:
    DEVICE float* row_of(const QkvPair& at, int token) const {
        return raw_head<Way>(core.params, token, at.head + (at.kind == QkvPair::KEY ? model::HEADS : 0));
    }
};

// What a module adds to the residual stream; of several GPUs the first one adds attention's bias.
template <class Way, bool BIASED = false>
struct OutputStore {
    static constexpr int TILES = 8;
    Core& core;
    size_t outputs;  // outputs_offset

    DEVICE void store(int pair, int token, float a, float b) const {
        store_row(2 * pair_in_lane(pair, core.model_lane, OUT_LANE_TILES), token, pair_of(pair, a, b));
    }
    // In sixteen bits.
    DEVICE u32 pair_of(int pair, float a, float b) const {
        if constexpr (BIASED) {
            const int row = 2 * pair_in_lane(pair, core.model_lane, OUT_LANE_TILES);
            if (core.whole_lane() == 0 && row < model::HIDDEN) {
                const float2 bias = heads::out_bias(core.params, core.place.layer, row);
                a += bias.x;
                b += bias.y;
            }
        }
        return split_weights_type(a, b).high;
    }
    template <class Words>
    DEVICE void store_row(int row, int token, const Words& words) const {
        if (row >= model::HIDDEN) return;
        const size_t at = outputs + (size_t(core.whole_lane()) * Way::CHUNK + token) * model::HIDDEN + row;
        store_words(core.params.outputs + at, words);
        if constexpr (!TELLS_SUMS) for_each_peer(core.params, [&](const Peer& peer) { store_words(peer.outputs + at, words); });
    }
};

template <class Way>
struct GatedStore {
    Core& core;

    DEVICE void store(int pair, int token, float gate, float up) const {
        const int f = pair_in_lane(pair, core.model_lane, GATE_UP_LANE_TILES);
        if (f < LANE_FFN) Way::template store<LANE_FFN>(core.params.operand_ffn, core.model_lane, f, token, swiglu(gate, up));
    }
};

}  // namespace prefill

namespace tiles {

// SwiGLU of a slice, whose 32 columns of a token are spread over four threads: turned so that each has eight of them. `Mlp` says
// how many columns there are, what is added to them, and where the eight from a column of a token go.
template <class Mlp>
struct GatedSlices {
    static constexpr int TILES = 8;
    Mlp mlp;
};

// A lane's MLP.
struct LaneMlp {
    static constexpr int COLUMNS = LANE_FFN;
    static constexpr bool BIASED = false;
    const Core& core;

    DEVICE int first_column(int pair) const { return pair_in_lane(pair, core.model_lane, GATE_UP_LANE_TILES); }
    DEVICE u16* piece(int column, int token) const {
        return operand_piece(core.params.operand_ffn, LANE_FFN, core.model_lane, column, token);
    }
};

DEVICE float4 as_floats(const u32 (&words)[4]) {
    return make_float4(__uint_as_float(words[0]), __uint_as_float(words[1]), __uint_as_float(words[2]), __uint_as_float(words[3]));
}

// Word q of lane j and word j of lane q of four lanes change places.
DEVICE void transpose(u32 (&words)[4], u32 lane) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit <<= 1) {
        const bool upper = lane & bit;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            if (q & bit) continue;
            const u32 other = __shfl_xor_sync(ALL_LANES, upper ? words[q] : words[q + bit], bit);
            if (upper) words[q] = other;
            else words[q + bit] = other;
        }
    }
}

// The rotations of a thread's four pairs, of whatever kind, for both of its tokens: waiting for them took longer than all else in
// a finish.
template <class Way>
struct BothTurns {
    typename prefill::QkvStore<Way>::Turns of[2];
};
template <class Way>
DEVICE BothTurns<Way> look_ahead(const Core& core, const Slice<4>& slice, int first_pair, int tokens, const prefill::QkvStore<Way>& finish) {
    const QkvPair at(first_pair + 4 * int(core.lane & 3), core.model_lane);
    return {{finish.turns(at, smaller(slice.token, tokens - 1)), finish.turns(at, smaller(slice.token + 8, tokens - 1))}};
}

// Sixteen pairs of a token are spread over four threads: turned so that each has four in a row, of one head.
template <class Way>
DEVICE void finish_slice(Core& core, const Slice<4>& slice, int tokens, const prefill::QkvStore<Way>& finish, const BothTurns<Way>& turns) {
    static_assert(LANE_Q % 8 == 0 && LANE_KV % 8 == 0 && HALF_HEAD % 4 == 0, "four pairs never belong to two heads");
    const QkvPair at(slice.first_pair + 4 * int(core.lane & 3), core.model_lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        u32 a[4], b[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            a[t] = __float_as_uint(slice.sums[4 * t + 2 * i]);
            b[t] = __float_as_uint(slice.sums[4 * t + 2 * i + 1]);
        }
        transpose(a, core.lane);
        transpose(b, core.lane);
        const int token = slice.token + 8 * i;
        if (token < tokens && at.kind != QkvPair::PADDING) finish.store(at, token, as_floats(a), as_floats(b), turns.of[i]);
    }
}

// 32 columns of a token are spread over four threads: turned so that each has eight of them.
template <class Way, bool BIASED>
DEVICE void finish_slice(Core& core, const Slice<8>& slice, int tokens, const prefill::OutputStore<Way, BIASED>& finish,
                         const NothingAhead&) {
    const int row = 2 * pair_in_lane(slice.first_pair, core.model_lane, OUT_LANE_TILES) + 8 * int(core.lane & 3);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            u32 words[4];
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                const float* sums = slice.sums + 4 * (4 * half + q) + 2 * i;
                words[q] = finish.pair_of(slice.first_pair + 4 * (4 * half + q) + int(core.lane & 3), sums[0], sums[1]);
            }
            transpose(words, core.lane);
            const int token = slice.token + 8 * i;
            if (token < tokens) finish.store_row(row + 32 * half, token, make_uint4(words[0], words[1], words[2], words[3]));
        }
    }
}

template <class Mlp>
DEVICE void finish_slice(Core& core, const Slice<8>& slice, int tokens, const GatedSlices<Mlp>& gated, const NothingAhead&) {
    constexpr int COLUMNS = Mlp::COLUMNS;
    const int j = int(core.lane & 3);
    const int first = gated.mlp.first_column(slice.first_pair);
    float2 bias[4][2];
    if constexpr (Mlp::BIASED) {
#pragma unroll
        for (int k = 0; k < 8; ++k) bias[k / 2][k % 2] = gated.mlp.bias(smaller(first + 4 * k + j, COLUMNS - 1));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        u32 words[4];  // word q: columns 8 q + j and 8 q + 4 + j
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            float column[2];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const float* sums = slice.sums + 4 * (2 * q + k) + 2 * i;
                float gate = sums[0], up = sums[1];
                if constexpr (Mlp::BIASED) {
                    gate += bias[q][k].x;
                    up += bias[q][k].y;
                }
                // No condition where whole pieces are left out below: each would be a branch to wait at.
                column[k] = COLUMNS % 8 == 0 || first + 8 * q + 4 * k + j < COLUMNS ? swiglu(gate, up) : 0.0f;
            }
            words[q] = split_weights_type(column[0], column[1]).high;
        }
        transpose(words, core.lane);
        const uint4 eight = make_uint4(__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410),
                                       __byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632));
        const int column = first + 8 * j, token = slice.token + 8 * i;
        if (column >= COLUMNS || token >= tokens || 8 * j >= slice.pairs) continue;
        store_words(gated.mlp.piece(column, token), eight);
    }
}

}  // namespace tiles
