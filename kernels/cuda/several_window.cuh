// The vectors of several requests on their way from the mailboxes, or from rows of the embedding, to the operand of a product: a
// window of their columns lies in shared memory at a time.
#pragma once
#include "head_input.cuh"
#include "sampling.cuh"
#include "several_quads.cuh"

namespace several {

// Where the vectors of a phase come from: words of each request's mailbox, or rows of the embedding; NORMED by these weights.
struct Source {
    size_t at;
    bool embedded;
    const u16* norm;
};

// This thread's pieces of the vectors of all requests in one window: piece i of a request lies in the same of the window's chunks
// as of a request alone. Each warp reads what it has stored itself, but of what warpgroups multiply, quad after quad, all do: SHARED.
template <int COLUMNS, bool NORMED, int STORAGE>
class Window {
    static constexpr bool SHARED = by_warpgroups(STORAGE);
    static constexpr int CHUNKS = chunks_of(COLUMNS);
    static constexpr bool WHOLE = CHUNKS <= OPERAND_CHUNKS;
    static constexpr int STORED = round_up(CHUNKS, SHARED ? 2 * QUAD_CHUNKS : 1);  // zeros fill the last turn
    static constexpr int ROUNDS = ceil_div(smaller(CHUNKS, OPERAND_CHUNKS), ROUND_CHUNKS);
    static_assert(ROUNDS * REQUESTS <= 32, "a bit a piece");

public:
    float squares[REQUESTS] = {};

    // Vectors that fit are there from the begin; that takes much code, which is compiled once.
    DEVICE Window(Core& core, const Source& source) : core_(core), source_(source) {
        if constexpr (WHOLE) fill(0);
        if constexpr (WHOLE && SHARED) consumers_sync();
    }

    // Has the window with `chunk` in shared memory; the first chunk of it. `again`: the first window follows the last one.
    DEVICE int hold(int chunk, bool again) {
        if constexpr (WHOLE) return 0;
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

private:
    DEVICE static void meet() {
        if constexpr (SHARED) {
            consumers_sync();
        } else {
            __syncwarp();
        }
    }
    DEVICE int local(int i) const { return Pieces<COLUMNS, SHARED>(core_).chunk(i); }
    DEVICE int column(int first, int i) const { return (first + local(i)) * CHUNK_COLUMNS + int(core_.lane & 7) * 4; }
    DEVICE bool in_vector(int first, int i) const { return local(i) < OPERAND_CHUNKS && column(first, i) < COLUMNS; }

    // Known when the kernel is compiled where all rounds are whole.
    DEVICE bool in_operand(int first, int i) const {
        if constexpr (STORED % ROUND_CHUNKS == 0 && OPERAND_CHUNKS % ROUND_CHUNKS == 0) return true;
        return local(i) < OPERAND_CHUNKS && first + local(i) < STORED;
    }

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
            const bool hopeless = spin.hopeless();  // between the loads and the first use of any (Spin)
            u32 still = 0;
#pragma unroll
            for (int r = 0; r < REQUESTS; ++r) {
                const u32 epoch = core_.shared.seats[r].serial & 1u;
#pragma unroll
                for (int i = 0; i < ROUNDS; ++i) still |= stale(words_[i][r], epoch) << (i * REQUESTS + r);
            }
            missing &= still;
            if (!__any_sync(ALL_LANES, missing)) break;
            if (hopeless) missing = 0;
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
            if (in_operand(first, i)) split(i, norm[i]);
        }
        if constexpr (SHARED) {
            fence_operand();
        } else {
            __syncwarp();
        }
    }
    // Piece i of all requests.
    DEVICE void split(int i, uint2 norm) {
#pragma unroll
        for (int r = 0; r < REQUESTS; ++r) {
            float4 value = untagged(words_[i][r]);
            if constexpr (NORMED) {
                if (!seen_) squares[r] += dot_self(value);
                scale_by(value, norm);
            }
            store(local(i), r, value);
        }
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

}  // namespace several
