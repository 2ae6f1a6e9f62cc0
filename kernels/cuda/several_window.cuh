// The vectors of several requests on their way from the mailboxes, or from rows of the embedding, to the operand of a product: a
// window of their columns lies in shared memory at a time.
#pragma once
#include "head_input.cuh"
#include "sampling.cuh"
#include "several_digits.cuh"
#include "several_quads.cuh"
#include "several_slots.cuh"

namespace several {

// Where the vectors of a phase come from: words of each request's mailbox, or rows of the embedding; NORMED by these weights.
struct Source {
    size_t at;
    bool embedded;
    const u16* norm;
};

// This thread's pieces of the vectors in one window. Eight lanes fetch a chunk of one request: of a warp's four such parts each works
// for a request of its own, of eight for two of them, and of two requests two parts share one. A warp fetches the chunks that it
// fetches of a request alone. It reads what it has stored itself, but of what warpgroups multiply, quad after quad, all do: SHARED.
template <int COLUMNS, bool NORMED, int STORAGE>
class Window {
    static constexpr bool SHARED = by_warpgroups(STORAGE);
    static constexpr int CHUNKS = chunks_of(COLUMNS);

public:
    static constexpr bool WHOLE = CHUNKS <= OPERAND_CHUNKS;

private:
    static constexpr int STORED = round_up(CHUNKS, SHARED ? 2 * QUAD_CHUNKS : 1);  // zeros fill the last turn
    static constexpr int PARTS = 4, OWN = ceil_div(REQUESTS, PARTS), SHARERS = ceil_div(PARTS, REQUESTS);
    static constexpr int STEP = SHARED ? ROUND_CHUNKS : WARPS * SHARERS;  // chunks that all threads fetch together
    static constexpr int TURNS = PARTS / SHARERS;                         // chunks of a part in a round of a request alone
    static constexpr int PIECES = ceil_div(smaller(STORED, OPERAND_CHUNKS), STEP) * (SHARED ? TURNS : 1);
    static_assert(PIECES * OWN <= 32, "a bit a piece");

public:
    // Vectors that fit are there from the begin; that takes much code, which is compiled once.
    DEVICE Window(Core& core, const Source& source) : core_(core), source_(source) {
#pragma unroll
        for (int k = 0; k < OWN; ++k) {
            from_[k] = core.own.launch->requests[request(k)].mail + source.at;
            epochs_[k] = core.shared.seats[request(k)].serial & 1u;
        }
        if constexpr (WHOLE) fill(0);
        if constexpr (WHOLE && SHARED) consumers_sync();
    }

    // Has the window with `chunk` in shared memory; the first chunk of it. `again`: the first window follows the last one.
    DEVICE int hold(int chunk, bool again) {
        const int first = chunk / OPERAND_CHUNKS * OPERAND_CHUNKS;
        if (first == held_) return first;
        meet();  // all have read what lay there
        fill(first);
        if constexpr (SHARED) consumers_sync();
        held_ = first;
        const bool last = first + OPERAND_CHUNKS >= CHUNKS;
        seen_ = seen_ || last;
        if (!source_.embedded && (again || !last)) ask(last ? 0 : first + OPERAND_CHUNKS);  // while this one is multiplied
        return first;
    }

    // Leaves the warp's part of each request's sum of squares, added up in the order of warp_sum for a request alone, whose four parts
    // have a chunk each.
    DEVICE void leave_squares(float (*to)[WARPS]) const {
#pragma unroll
        for (int k = 0; k < OWN; ++k) {
            float sum;
            if constexpr (SHARERS == 1) {
                sum = (squares_[k][0] + squares_[k][2]) + (squares_[k][1] + squares_[k][3]);
            } else {
                sum = squares_[k][0] + squares_[k][1];
                sum += __shfl_xor_sync(ALL_LANES, sum, 16);
            }
#pragma unroll
            for (int offset = 4; offset; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
            if ((core_.lane & 7) == 0 && sharer() == 0) to[request(k)][core_.warp] = sum;
        }
    }

private:
    DEVICE static void meet() {
        if constexpr (SHARED) {
            consumers_sync();
        } else {
            __syncwarp();
        }
    }
    DEVICE int request(int k) const { return int(core_.lane >> 3) % smaller(PARTS, REQUESTS) + PARTS * k; }
    DEVICE int sharer() const { return SHARERS == 1 ? 0 : int(core_.lane >> 3) / REQUESTS; }
    // Of the window's chunks: the first piece's, and from there to another's. As Pieces (staging.cuh) deals them to a request alone.
    DEVICE int local() const { return SHARED ? QUAD_CHUNKS * int(core_.warp) + sharer() : int(core_.warp) + WARPS * sharer(); }
    DEVICE static constexpr int further(int piece) {
        const int round = piece / TURNS, of_round = piece % TURNS * SHARERS;
        return SHARED ? ROUND_CHUNKS * round + of_round : ROUND_CHUNKS * round + WARPS * of_round;
    }
    DEVICE int local(int piece) const { return local() + further(piece); }
    DEVICE int column(int first) const { return (first + local()) * CHUNK_COLUMNS + int(core_.lane & 7) * 4; }

    // Known when the kernel is compiled: whether all threads have the piece, in every window of a vector of so many chunks.
    DEVICE static constexpr bool all_have(int piece, int chunks) {
        if (!WHOLE) return OPERAND_CHUNKS % STEP == 0 && chunks % OPERAND_CHUNKS == 0;
        return SHARED ? chunks % STEP == 0 : (piece + 1) * STEP <= chunks;
    }
    DEVICE bool in_operand(int first, int piece) const {
        if (all_have(piece, STORED)) return true;
        return local(piece) < OPERAND_CHUNKS && first + local(piece) < STORED;
    }
    DEVICE bool in_vector(int first, int piece) const {
        if (all_have(piece, COLUMNS / CHUNK_COLUMNS)) return true;
        return local(piece) < OPERAND_CHUNKS && column(first) + further(piece) * CHUNK_COLUMNS < COLUMNS;
    }

    // Of those requests that run.
    DEVICE u32 pieces(int first) const {
        u32 mask = 0;
#pragma unroll
        for (int k = 0; k < OWN; ++k) {
            u32 of_request = 0;
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                if (in_vector(first, i)) of_request |= 1u << (i * OWN + k);
            }
            if (runs(core_.shared, request(k))) mask |= of_request;
        }
        return mask;
    }
    DEVICE void look(int first, u32 missing) {
        const int begin = column(first);
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
#pragma unroll
            for (int k = 0; k < OWN; ++k) {
                if (missing >> (i * OWN + k) & 1u) words_[i][k] = peek4(from_[k] + begin + further(i) * CHUNK_COLUMNS);
            }
        }
    }
    // Looks at a window's words, and waits for nothing.
    DEVICE void ask(int first) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
#pragma unroll
            for (int k = 0; k < OWN; ++k) words_[i][k] = make_uint4(0, 0, 0, 0);
        }
        look(first, pieces(first));
        asked_ = true;
    }
    // Nothing is missing of rows of the embedding, which come before: to choose one way or the other, behind a wait, is a jump between the
    // last word and the post.
    DEVICE void receive(int first) {
        u32 missing = source_.embedded ? 0 : pieces(first);
        Spin spin(core_.params, core_.place, WAIT_VECTOR);
        while (true) {
            if (!asked_) look(first, missing);
            asked_ = false;
            const bool hopeless = spin.hopeless();  // between the loads and the first use of any (Spin)
            u32 still = 0;
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
#pragma unroll
                for (int k = 0; k < OWN; ++k) still |= stale(words_[i][k], epochs_[k]) << (i * OWN + k);
            }
            missing &= still;
            if (!__any_sync(ALL_LANES, missing)) break;
            if (hopeless) missing = 0;
        }
    }
    // Rows of the table, as words of a mailbox would have them: the lowest bit of such a number is zero in any case.
    DEVICE void read_embedding(int first) {
#pragma unroll
        for (int k = 0; k < OWN; ++k) {
            const bool wanted = runs(core_.shared, request(k));
            const u16* row = core_.own.launch->requests[0].embed + size_t(core_.shared.seats[request(k)].id) * model::HIDDEN + column(first);
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                uint2 w = make_uint2(0, 0);
                if (wanted && in_vector(first, i)) w = __ldg(reinterpret_cast<const uint2*>(row + further(i) * CHUNK_COLUMNS));
                words_[i][k] = tagged(make_float4(weight_low(w.x), weight_high(w.x), weight_low(w.y), weight_high(w.y)), 0);
            }
        }
    }
    DEVICE void fill(int first) {
        uint2 norm[PIECES];
        load_norms(first, norm);
        if (source_.embedded) read_embedding(first);
        receive(first);
        core_.profile.input_ready();
        constexpr int SPLIT = from_slots(STORAGE) ? TURNS : 1;  // pieces whose numbers may share a size
#pragma unroll
        for (int i = 0; i < PIECES; i += SPLIT) {
            if constexpr (by_digits(STORAGE)) {  // all lanes of the warp
                split_digits<SPLIT>(first, i, norm);
            } else {
                if (in_operand(first, i)) split(i, norm[i]);
            }
        }
        if constexpr (SHARED) {
            fence_operand();
        } else {
            __syncwarp();
        }
    }
    DEVICE void load_norms(int first, uint2 (&norm)[PIECES]) const {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            norm[i] = make_uint2(0, 0);
            if (NORMED && in_vector(first, i)) norm[i] = __ldg(reinterpret_cast<const uint2*>(source_.norm + column(first) + further(i) * CHUNK_COLUMNS));
        }
    }
    // A piece of a request, and what it adds to its squares.
    DEVICE float4 normed(int piece, int k, uint2 norm) {
        float4 value = untagged(words_[piece][k]);
        if constexpr (NORMED) {
            if (!seen_) squares_[k][piece % TURNS] += dot_self(value);
            scale_by(value, norm);
        }
        return value;
    }
    // A piece of all of the thread's requests.
    DEVICE void split(int piece, uint2 norm) {
        float4 values[OWN];
#pragma unroll
        for (int k = 0; k < OWN; ++k) values[k] = normed(piece, k, norm);
#pragma unroll
        for (int k = 0; k < OWN; ++k) store(local(piece), request(k), values[k]);
    }
    // COUNT pieces of all of the thread's requests, of which those of the operand are stored: a run of each, or a chunk's.
    template <int COUNT>
    DEVICE void split_digits(int first, int piece, const uint2 (&norm)[PIECES]) {
        float4 values[COUNT * OWN];
        u32 powers[COUNT * OWN];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
#pragma unroll
            for (int k = 0; k < OWN; ++k) values[i * OWN + k] = normed(piece + i, k, norm[piece + i]);
        }
        packed::powers_of_chunks(values, powers);
#pragma unroll
        for (int k = 0; k < OWN; ++k) {
            if constexpr (from_slots(STORAGE)) share_power<COUNT>(powers, k);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const packed::Digits digits(values[i * OWN + k], powers[i * OWN + k]);
                if (!in_operand(first, piece + i)) continue;
                packed::store_columns<STORAGE, REQUESTS>(core_.shared, local(piece + i), request(k), core_.lane & 7, digits);
            }
        }
    }
    // The largest power of a run's chunks, which this part has and those that share the request.
    template <int COUNT>
    DEVICE static void share_power(u32 (&powers)[COUNT * OWN], int k) {
        u32 most = powers[k];
#pragma unroll
        for (int i = 1; i < COUNT; ++i) most = powers[i * OWN + k] > most ? powers[i * OWN + k] : most;
        if constexpr (SHARERS > 1) {
            const u32 others = __shfl_xor_sync(ALL_LANES, most, 16);
            most = others > most ? others : most;
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) powers[i * OWN + k] = most;
    }
    DEVICE void store(int chunk, int request, float4 value) {
        if constexpr (is_packed(STORAGE) && packed::lowered() != 1.0f) value = times(value, 1.0f / packed::lowered());
        const auto split = is_packed(STORAGE) ? split_f16 : split_weights_type;
        const Split a = split(value.x, value.y), b = split(value.z, value.w);
        const u32 quad = core_.lane & 7;
        if constexpr (SHARED) {
            store_quarter(core_.shared.operand(), chunk, request, quad, a, b);
            return;
        }
        const int step = int(quad & 1);
        u8* to = core_.shared.operand() + chunk * CHUNK_OPERAND_BYTES + step * OPERAND_STEP_BYTES + request_row(request, step) * 64 + quad / 2 * 16;
        *reinterpret_cast<Operand*>(to) = make_uint4(a.high, a.low, b.high, b.low);
    }

    Core& core_;
    const Source source_;
    const u32* from_[OWN];  // the requests' vectors
    u32 epochs_[OWN];
    uint4 words_[PIECES][OWN] = {};
    float squares_[OWN][TURNS] = {};
    bool asked_ = false;  // words of the window that comes next, whether or not they were there
    int held_ = -1;
    bool seen_ = false;  // all windows have been here
};

}  // namespace several
