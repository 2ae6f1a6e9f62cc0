// Decode of several requests: the vectors of all of them times a matrix, in one pass over its weights.
//
// The tensor cores take sixteen rows of activations, and a vector fills two: request r's high parts are row r, its low parts
// row r + 8. So lane 4 r + j has of request r what lane j has of a request alone, from the same weights in the same order: the
// sums are the same to the bit. A window of the vectors' columns lies in shared memory at a time, each warp's own chunks of
// them, and longer vectors come window by window while the weights stream past.
#pragma once
#include "head_input.cuh"
#include "sampling.cuh"

namespace several {

// A core that works for another request: what all threads of a block do for one request after the other.
DEVICE Core for_request(const Core& core, int request) {
    const Seat& seat = core.shared.seats[request];
    Core other{core.own.launch->requests[request], core.shared, core.place, core.lane, core.warp, core.model_lane};
    other.own.launch = core.own.launch;
    other.own.request = request;
    other.own.mail = other.params.mail;
    other.staged = core.staged;
    other.position = other.place.position = seat.position;
    other.serial = seat.serial;
    other.epoch = seat.serial & 1u;
    return other;
}

DEVICE bool runs(const Shared& shared, int request) { return shared.seats[request].finish == FINISH_RUNNING; }

// Where the vectors of a phase come from: words of each request's mailbox, or rows of the embedding; NORMED by these weights.
struct Source {
    size_t at;
    bool embedded;
    const u16* norm;
};

// This thread's pieces of the vectors of all requests in one window: piece i of a request lies in the window's chunk
// warp + 8 (4 i + lane / 8), as of a request alone.
template <int COLUMNS, bool NORMED>
class Window {
    static constexpr int CHUNKS = chunks_of(COLUMNS);
    static constexpr bool WHOLE = CHUNKS <= OPERAND_CHUNKS;
    static constexpr int ROUNDS = ceil_div(smaller(CHUNKS, OPERAND_CHUNKS), ROUND_CHUNKS);
    static_assert(ROUNDS * REQUESTS <= 32, "a bit a piece");

public:
    float squares[REQUESTS] = {};

    // Vectors that fit are there from the begin; that takes much code, which is compiled once.
    DEVICE Window(Core& core, const Source& source) : core_(core), source_(source) {
        if constexpr (WHOLE) fill(0);
    }

    // Has the window with `chunk` in shared memory; the first chunk of it. `again`: the first window follows the last one.
    DEVICE int hold(int chunk, bool again) {
        if constexpr (WHOLE) return 0;
        const int first = chunk / OPERAND_CHUNKS * OPERAND_CHUNKS;
        if (first == held_) return first;
        __syncwarp();  // all lanes have read what lay there
        fill(first);
        held_ = first;
        const bool last = first + OPERAND_CHUNKS >= CHUNKS;
        seen_ = seen_ || last;
        if (!source_.embedded && (again || !last)) ask(last ? 0 : first + OPERAND_CHUNKS);  // while this one is multiplied
        return first;
    }

private:
    DEVICE int local(int i) const { return int(core_.warp) + WARPS * (4 * i + int(core_.lane >> 3)); }
    DEVICE int column(int first, int i) const { return (first + local(i)) * CHUNK_COLUMNS + int(core_.lane & 7) * 4; }
    DEVICE bool in_vector(int first, int i) const { return local(i) < OPERAND_CHUNKS && column(first, i) < COLUMNS; }

    // Of those requests that run.
    DEVICE u32 pieces(int first) const {
        u32 mask = 0;
#pragma unroll
        for (int r = 0; r < REQUESTS; ++r) {
            const bool wanted = runs(core_.shared, r);
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
                if (wanted && in_vector(first, i)) mask |= 1u << (i * REQUESTS + r);
            }
        }
        return mask;
    }
    DEVICE void look(int first, u32 missing) {
#pragma unroll
        for (int r = 0; r < REQUESTS; ++r) {
            const u32* from = core_.own.launch->requests[r].mail + source_.at;
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
                if (missing >> (i * REQUESTS + r) & 1u) words_[i][r] = peek4(from + column(first, i));
            }
        }
    }
    // Looks at a window's words, and waits for nothing.
    DEVICE void ask(int first) {
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
#pragma unroll
            for (int r = 0; r < REQUESTS; ++r) words_[i][r] = make_uint4(0, 0, 0, 0);
        }
        look(first, pieces(first));
        asked_ = true;
    }
    DEVICE void receive(int first) {
        u32 missing = pieces(first);
        Spin spin(core_.params, core_.place, WAIT_VECTOR);
        while (true) {
            if (!asked_) look(first, missing);
            asked_ = false;
#pragma unroll
            for (int r = 0; r < REQUESTS; ++r) {
                const u32 epoch = core_.shared.seats[r].serial & 1u;
#pragma unroll
                for (int i = 0; i < ROUNDS; ++i) {
                    if (fresh(words_[i][r], epoch)) missing &= ~(1u << (i * REQUESTS + r));
                }
            }
            if (!__any_sync(ALL_LANES, missing)) break;
            if (missing && spin.hopeless()) missing = 0;
        }
    }
    // Rows of the table, as words of a mailbox would have them: the lowest bit of such a number is zero in any case.
    DEVICE void read_embedding(int first) {
#pragma unroll
        for (int r = 0; r < REQUESTS; ++r) {
            const bool wanted = runs(core_.shared, r);
            const u16* row = core_.own.launch->requests[0].embed + size_t(core_.shared.seats[r].id) * model::HIDDEN;
#pragma unroll
            for (int i = 0; i < ROUNDS; ++i) {
                uint2 w = make_uint2(0, 0);
                if (wanted && in_vector(first, i)) w = __ldg(reinterpret_cast<const uint2*>(row + column(first, i)));
                words_[i][r] = tagged(make_float4(weight_low(w.x), weight_high(w.x), weight_low(w.y), weight_high(w.y)), 0);
            }
        }
    }
    DEVICE void fill(int first) {
        uint2 norm[ROUNDS];
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            norm[i] = make_uint2(0, 0);
            if (NORMED && column(first, i) < COLUMNS) norm[i] = __ldg(reinterpret_cast<const uint2*>(source_.norm + column(first, i)));
        }
        if (source_.embedded) {
            read_embedding(first);
        } else {
            receive(first);
        }
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
#pragma unroll
            for (int r = 0; r < REQUESTS; ++r) {
                float4 value = untagged(words_[i][r]);
                if constexpr (NORMED) {
                    if (!seen_) squares[r] += dot_self(value);
                    scale_by(value, norm[i]);
                }
                if (local(i) < OPERAND_CHUNKS && first + local(i) < CHUNKS) store(local(i), r, value);
            }
        }
        __syncwarp();
    }
    DEVICE void store(int chunk, int request, const float4& value) {
        const Split a = split_weights_type(value.x, value.y), b = split_weights_type(value.z, value.w);
        const u32 quad = core_.lane & 7;
        u8* to = core_.shared.operand() + chunk * CHUNK_OPERAND_BYTES + (quad & 1) * OPERAND_STEP_BYTES + request * 64 + quad / 2 * 16;
        *reinterpret_cast<Operand*>(to) = make_uint4(a.high, a.low, b.high, b.low);
    }

    Core& core_;
    const Source source_;
    uint4 words_[ROUNDS][REQUESTS] = {};
    bool asked_ = false;  // words of the window that comes next, whether or not they were there
    int held_ = -1;
    bool seen_ = false;  // all windows have been here
};

// GroupRun of several requests. A warp finishes one request's part of a group, always the same one's.
template <int PHASE, bool NORMED, class Finish>
class Products {
    static constexpr int COLUMNS = Matrix<PHASE>::COLUMNS, CHUNKS = chunks_of(COLUMNS);
    static constexpr int TURNS = WARPS / REQUESTS;  // warps that finish a request's groups in turn

public:
    DEVICE Products(Core& core, Finish& finish) : core_(core), finish_(finish), groups_(core.groups(PHASE)) {
        const int first = int((core.warp / REQUESTS - core.group) & (TURNS - 1));
        if (first < groups_.count && finishes(first)) finish.prepare(pair_of(first));
        load_first(0);
    }

    DEVICE void run(const Source& source) {
        Window<COLUMNS, NORMED> window(core_, source);
#pragma unroll 1
        for (int g = 0; g < groups_.count; ++g) {
            if (g) load_first(g);
            with_tiles<PHASE>(groups_.size(g), [&](auto tiles) {
                Sums<tiles.COUNT> sums;
                multiply(sums, window, g + 1 < groups_.count);
                if (NORMED && g == 0) leave_squares(window);
                leave_sums<tiles.COUNT>(sums);
            });
            consumers_sync();
            if (core_.warp / REQUESTS == (core_.group & (TURNS - 1)) && finishes(g)) finish_group(g);
            ++core_.group;
        }
    }

private:
    template <int T>
    DEVICE void multiply(Sums<T>& sums, Window<COLUMNS, NORMED>& window, bool again) {
        constexpr int STEP = SlotPart<T>::CHUNKS;
        int first = 0;
#pragma unroll 1
        while (true) {
            const int last = smaller(first + STEP, CHUNKS);
#pragma unroll 1
            for (int begin = first; begin < last;) {
                const int at = window.hold(begin, again), end = smaller(last, at + OPERAND_CHUNKS);
                weights_.template multiply_in_window<T>(core_, first, begin, end, at, sums);
                begin = end;
            }
            first = last;
            if (first >= CHUNKS) break;
            weights_.template load<T>(core_, first, smaller(first + STEP, CHUNKS));
        }
    }
    DEVICE void leave_squares(const Window<COLUMNS, NORMED>& window) {
#pragma unroll
        for (int r = 0; r < REQUESTS; ++r) {
            const float sum = warp_sum(window.squares[r]);
            if (core_.lane == 0) core_.shared.squares[(core_.staged & 1) * REQUESTS + r][core_.warp] = sum;
        }
    }
    // [request][warp][pair]
    DEVICE float2* partial(u32 request, u32 warp) const {
        return core_.shared.partial(core_.group & 1) + (request * WARPS + warp) * PAIRS;
    }
    template <int T>
    DEVICE void leave_sums(const Sums<T>& sums) {
        if (core_.lane >= 4 * REQUESTS) return;
        float2* mine = partial(core_.lane / 4, core_.warp) + core_.lane % 4;
#pragma unroll
        for (int t = 0; t < T; ++t) mine[t * 4] = sums.pair(t);
    }
    DEVICE bool finishes(int g) const {
        return runs(core_.shared, core_.own.request) && int(core_.lane) < groups_.size(g) * (TILE_ROWS / 2);
    }
    DEVICE int pair_of(int g) const {
        return (core_.share(PHASE).first + groups_.first(g)) * (TILE_ROWS / 2) + int(core_.lane);
    }
    DEVICE void load_first(int g) {
        with_tiles<PHASE>(groups_.size(g), [&](auto tiles) {
            weights_.template load<tiles.COUNT>(core_, 0, smaller(SlotPart<tiles.COUNT>::CHUNKS, CHUNKS));
        });
    }
    DEVICE void finish_group(int g) {
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float2 part = partial(core_.own.request, w)[core_.lane];
            sum.x += part.x;
            sum.y += part.y;
        }
        finish_.post(pair_of(g), sum.x, sum.y);
        const int next = g + TURNS;
        if (next < groups_.count && finishes(next)) finish_.prepare(pair_of(next));
    }

    Core& core_;
    Finish& finish_;
    const Groups groups_;
    SlotWeights<false> weights_;
};

}  // namespace several
