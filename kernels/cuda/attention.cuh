// Attention on tensor cores. Operand A is the cache as it lies in memory: 16 positions of keys, then 16 elements of the
// values. Operand B are up to eight columns of query rows (decode: the query heads that share a KV head; prefill: eight
// tokens of one head), in two parts like every vector: up to four rows have their parts side by side in one product,
// more take two. Scores come out by position and column and are turned round (movmatrix) for the second product.
#pragma once
#include "rows.cuh"

constexpr float NO_SCORE = -1e30f;
// Scores are in units of log 2.
constexpr float QUERY_SCALE = model::ATTENTION_SCALE * 1.4426950408889634f;

// A score is capped before it is in units of log 2.
DEVICE float capped_score(float score) {
    constexpr float LOG2_OF_E = 1.4426950408889634f;
    if constexpr (model::ATTENTION_CAP > 0.0f) return soft_capped(score, model::ATTENTION_CAP * LOG2_OF_E);
    return score;
}

DEVICE float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// The same for many scores, without a branch: tanh z is 1 - 2 / (1 + exp(2 z)), here within 1e-6 of it.
DEVICE float capped_score_fast(float score) {
    constexpr float LOG2_OF_E = 1.4426950408889634f, CAP = model::ATTENTION_CAP * LOG2_OF_E;
    if constexpr (CAP > 0.0f) return CAP - __fdividef(2.0f * CAP, 1.0f + exp2_fast(score * (2.0f * LOG2_OF_E / CAP)));
    return score;
}

// An 8 x 8 matrix of 16-bit numbers, row g in lanes 4 g .. 4 g + 3, two to a lane, with rows for columns.
DEVICE u32 transposed(u32 rows) {
    u32 columns;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
    return columns;
}

// Query rows as operand B, lane 4 g + j: for each unit the words of elements 4 j, 4 j + 1 and 4 j + 2, 4 j + 3 of column g.
// PAIRED: column 2 r is the high part of row r, column 2 r + 1 the low one. Else column r is row r, one part at a time.
template <bool PAIRED>
struct QueryColumns {
    static constexpr int PARTS = PAIRED ? 1 : 2;
    static constexpr int ROWS = PAIRED ? 1 : 2;  // that a lane has scores of: row j, or rows 2 j and 2 j + 1
    uint2 part[PARTS][cache::UNITS];

    DEVICE static int row(int r, u32 lane) { return ROWS * int(lane & 3) + r; }
};

struct KvBlock {
    using Words = cache::Kept::Words;
    Words keys[cache::UNITS];
    Words values[cache::UNITS];

    // Asynchronous until used. Past the L1: another SM may have written the block one token ago.
    DEVICE void load(const cache::Number* block, u32 lane) {
        load_keys(block, lane);
        load_values(block, lane);
    }
    DEVICE void load_keys(const cache::Number* block, u32 lane) {
        const u32* from = reinterpret_cast<const u32*>(block) + lane * cache::LANE_WORDS;
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) keys[u] = cache::Kept::peek(from + u * (32 * cache::LANE_WORDS));
    }
    DEVICE void load_values(const cache::Number* block, u32 lane) {
        const u32* from = reinterpret_cast<const u32*>(block) + lane * cache::LANE_WORDS;
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) values[u] = cache::Kept::peek(from + (cache::UNITS + u) * (32 * cache::LANE_WORDS));
    }
    // From a block that lies in shared memory. A word of each load: its others come with it.
    DEVICE u32 take(const u8* block, u32 lane) {
        const Words* from = reinterpret_cast<const Words*>(block) + lane;
        u32 loaded = 0;
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) {
            keys[u] = from[u * 32];
            loaded |= keys[u].x;
        }
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) {
            values[u] = from[(cache::UNITS + u) * 32];
            loaded |= values[u].x;
        }
        return loaded;
    }
    // As operand A.
    DEVICE uint4 key(int u) const { return cache::Kept::widened(keys[u]); }
    DEVICE uint4 value(int u) const { return cache::Kept::widened(values[u]); }
    // Positions from `filled` on hold whatever an earlier request left: zero times that must be zero.
    DEVICE void forget_values_from(int filled, u32 lane) {
        u32 mask[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int p = 8 * i + 2 * int(lane & 3);
            mask[i] = cache::Kept::known(p < filled, p + 1 < filled);
        }
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) cache::Kept::keep(values[u], mask);
    }
};

// Positions that a row attends to: first .. end - 1.
struct Reach {
    int first, end;
};

// Scores of positions g and g + 8 of a block for the rows of this lane.
template <bool PAIRED>
struct Scores {
    using Query = QueryColumns<PAIRED>;
    float c[2][4] = {};  // two chains of products, so that one need not wait for the one before
    float of[2][Query::ROWS];

    DEVICE void multiply(const Query& query, const KvBlock& block, int u) {
#pragma unroll
        for (int part = 0; part < Query::PARTS; ++part) {
            const uint4 k = block.key(u);
            mma_f16(c[u & 1], k.x, k.y, k.z, k.w, query.part[part][u].x, query.part[part][u].y);
        }
    }
    // Once all units are multiplied. The block's first position is `base`; positions that a row does not attend to have no score,
    // whatever the block holds there.
    DEVICE void finish(int base, const Reach (&reach)[Query::ROWS], u32 lane) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int r = 0; r < Query::ROWS; ++r) {
                float score = c[0][2 * i + r] + c[1][2 * i + r];
                if (PAIRED) score += c[0][2 * i + 1] + c[1][2 * i + 1];
                const int p = base + 8 * i + int(lane >> 2);
                of[i][r] = p >= reach[r].first && p < reach[r].end ? capped_score(score) : NO_SCORE;
            }
        }
    }
};

// Running softmax of this lane's rows. `sum` counts this lane's own positions only.
template <bool PAIRED>
struct RunningSoftmax {
    using Query = QueryColumns<PAIRED>;
    static constexpr int ROWS = Query::ROWS;
    float maximum[ROWS], sum[ROWS];
    float out[cache::UNITS][4];

    DEVICE RunningSoftmax() {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            maximum[r] = NO_SCORE;
            sum[r] = 0.0f;
        }
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) out[u][0] = out[u][1] = out[u][2] = out[u][3] = 0.0f;
    }

    // Over the lanes that have positions of the same row.
    template <class Join>
    DEVICE static float over_positions(float v, const Join& join) {
#pragma unroll
        for (int offset = 4; offset < 32; offset <<= 1) v = join(v, __shfl_xor_sync(ALL_LANES, v, offset));
        return v;
    }
    // Makes room for scores of up to `peak`, which is this lane's own. `first`: nothing has been added yet.
    DEVICE void raise(const float (&peak)[ROWS], bool first) {
        float keep[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float top = fmaxf(maximum[r], over_positions(peak[r], [](float a, float b) { return fmaxf(a, b); }));
            keep[r] = exp2_fast(maximum[r] - top);
            maximum[r] = top;
            sum[r] *= keep[r];
        }
        if (first) return;
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) {
#pragma unroll
            for (int e = 0; e < 4; ++e) out[u][e] *= keep[PAIRED ? 0 : e & 1];
        }
    }
    // What a block's positions weigh, as operand B: positions 2 j and 2 j + 1 of either half of the block.
    struct Weights {
        u32 part[Query::PARTS][2];
    };
    DEVICE Weights weigh(const Scores<PAIRED>& scores) {
        Weights weights;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float w[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                w[r] = scores.of[i][r] == NO_SCORE ? 0.0f : exp2_fast(scores.of[i][r] - maximum[r]);
                sum[r] += w[r];
            }
            if constexpr (PAIRED) {
                weights.part[0][i] = transposed(pack_f16(w[0], w[0] - f16_low(pack_f16(w[0], 0.0f))));
            } else {
                const u32 high = pack_f16(w[0], w[1]);
                weights.part[0][i] = transposed(high);
                weights.part[1][i] = transposed(pack_f16(w[0] - f16_low(high), w[1] - f16_high(high)));
            }
        }
        return weights;
    }
    DEVICE void add(const Weights& weights, const KvBlock& block) {
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) {
#pragma unroll
            for (int part = 0; part < Query::PARTS; ++part) {
                const uint4 v = block.value(u);
                mma_f16(out[u], v.x, v.y, v.z, v.w, weights.part[part][0], weights.part[part][1]);
            }
        }
    }

    // Leaves the first `count` rows in shared memory: accumulator, maximum, sum.
    DEVICE void leave(float* rows, int count, u32 lane) {
        const int g = int(lane >> 2);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            sum[r] = over_positions(sum[r], [](float a, float b) { return a + b; });
            if (Query::row(r, lane) >= count) continue;
            float* row = rows + Query::row(r, lane) * MERGE_ROW;
#pragma unroll
            for (int u = 0; u < cache::UNITS; ++u) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    if (16 * u + 8 * half >= model::HEAD_DIM) continue;
                    row[16 * u + 8 * half + g] = PAIRED ? out[u][2 * half] + out[u][2 * half + 1] : out[u][2 * half + r];
                }
            }
            if (g == 0) *reinterpret_cast<float2*>(row + model::HEAD_DIM) = make_float2(maximum[r], sum[r]);
        }
    }
};

// Up to N blocks in registers at once: index, index + stride, .. below `end`.
template <int N, bool PAIRED>
struct KvBlocks {
    using Query = QueryColumns<PAIRED>;
    KvBlock blocks[N] = {};

    template <class At>
    DEVICE void load(const At& at, int index, int stride, int end, u32 lane) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            if (index + k * stride < end) blocks[k].load(at(index + k * stride), lane);
        }
    }
    // Adds those of their positions that a row attends to, of which none lies behind the blocks; the cache holds `filled` positions.
    // `first`: as in `raise`.
    DEVICE void attend(RunningSoftmax<PAIRED>& softmax, const Query& query, int index, int stride, int end,
                       const Reach (&reach)[Query::ROWS], int filled, bool first, u32 lane) {
        if (N > 1 && index + stride < end) {
            attend_to<N>(softmax, query, index, stride, end, reach, filled, first, lane);
        } else {
            attend_to<1>(softmax, query, index, stride, end, reach, filled, first, lane);
        }
    }

private:
    // To COUNT of them side by side, so that none waits for another's products; the last ones need not be there, and weigh nothing.
    template <int COUNT>
    DEVICE void attend_to(RunningSoftmax<PAIRED>& softmax, const Query& query, int index, int stride, int end,
                          const Reach (&reach)[Query::ROWS], int filled, bool first, u32 lane) {
        Scores<PAIRED> scores[COUNT];
        float peak[Query::ROWS];
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) scores[k].multiply(query, blocks[k], u);
        }
#pragma unroll
        for (int r = 0; r < Query::ROWS; ++r) peak[r] = NO_SCORE;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            scores[k].finish((index + k * stride) * cache::BLOCK, reach, lane);
#pragma unroll
            for (int r = 0; r < Query::ROWS; ++r) peak[r] = fmaxf(peak[r], fmaxf(scores[k].of[0][r], scores[k].of[1][r]));
        }
        softmax.raise(peak, first);
        if (index + (COUNT - 1) * stride >= end - 1) forget(index, stride, end, filled, lane);
        typename RunningSoftmax<PAIRED>::Weights weights[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; ++k) weights[k] = softmax.weigh(scores[k]);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) softmax.add(weights[k], blocks[k]);
    }
    // Of the last block what lies behind the cache's end.
    DEVICE void forget(int index, int stride, int end, int filled, u32 lane) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            if (index + k * stride == end - 1) blocks[k].forget_values_from(filled - (end - 1) * cache::BLOCK, lane);
        }
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
template <int PARTS>
DEVICE Merged merge_parts(const float* rows, int rows_a_part, int g, int d) {
    Merged m;
    float2 scale[PARTS];
#pragma unroll
    for (int w = 0; w < PARTS; ++w) {
        scale[w] = *reinterpret_cast<const float2*>(rows + (w * rows_a_part + g) * MERGE_ROW + model::HEAD_DIM);
        m.maximum = fmaxf(m.maximum, scale[w].x);
    }
#pragma unroll
    for (int w = 0; w < PARTS; ++w) {
        const float take = exp2f(scale[w].x - m.maximum);
        m.sum += scale[w].y * take;
        m.value += rows[(w * rows_a_part + g) * MERGE_ROW + d] * take;
    }
    return m;
}
