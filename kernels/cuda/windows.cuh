// A vector that is too long for shared memory, a window of its columns after the other. Each warp has its own chunks of them, and
// asks for the next window's before it multiplies with those that it has: a look at the mailbox takes about a microsecond.
#pragma once
#include "core.cuh"

// Whether the vector that a matrix reads comes that way.
DEVICE constexpr bool in_windows(int phase) { return REQUESTS == 1 && phase_chunks(phase) > OPERAND_CHUNKS; }

// Chunks of a window: whole slots of most groups, whose slots then have parts of one window each. As many such steps as there is room for
// (_LEAST_WINDOW in shared_memory.py is one).
constexpr int LONG_WINDOW_STEP = 3 * ROUND_CHUNKS;
constexpr int LONG_WINDOW = OPERAND_CHUNKS - OPERAND_CHUNKS % smaller(LONG_WINDOW_STEP, OPERAND_CHUNKS);

template <int COLUMNS>
class Windows {
    static constexpr int CHUNKS = chunks_of(COLUMNS), ROUNDS = ceil_div(LONG_WINDOW, ROUND_CHUNKS);
    static_assert(COLUMNS % 4 == 0 && ROUNDS <= 32, "vectors are fetched in 16-byte pieces, a bit each");

public:
    DEVICE Windows(Core& core, const u32* from) : core_(core), from_(from) { ask(0); }

    // Has the window with `chunk` in shared memory, this warp's part of it; the first chunk of it.
    DEVICE int hold(int chunk) {
        const int first = chunk / LONG_WINDOW * LONG_WINDOW;
        if (__all_sync(ALL_LANES, first == held_)) return first;  // a branch of the whole warp, for the compiler too
        if (first != asked_) ask(first);
        receive();
        if (held_ < 0) core_.profile.input_ready();
        __syncwarp();  // all lanes have read what lies there
        store();
        __syncwarp();
        held_ = first;
        if (first + LONG_WINDOW < CHUNKS) ask(first + LONG_WINDOW);
        return first;
    }

private:
    // Piece i lies in the window's chunk warp + 8 (4 i + lane / 8).
    DEVICE int chunk_of(int i) const { return int(core_.warp) + WARPS * (4 * i + int(core_.lane >> 3)); }
    DEVICE int column(int i) const { return (asked_ + chunk_of(i)) * CHUNK_COLUMNS + int(core_.lane & 7) * 4; }

    DEVICE void ask(int first) {
        asked_ = first;
        missing_ = 0;
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            words_[i] = make_uint4(0, 0, 0, 0);
            if (column(i) < COLUMNS) missing_ |= 1u << i;
        }
        look();
    }
    DEVICE void look() {
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            if (missing_ >> i & 1u) words_[i] = peek4(from_ + column(i));
        }
    }
    DEVICE void drop_fresh() {
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            if (fresh(words_[i], core_.epoch)) missing_ &= ~(1u << i);
        }
    }
    // Polls until all that was asked for carries this pass's parity. The warp stays together, as in `fetch` (staging.cuh).
    DEVICE void receive() {
        Spin spin(core_.params, core_.place, WAIT_VECTOR);
        drop_fresh();
        while (__any_sync(ALL_LANES, missing_)) {
            look();
            if (spin.hopeless()) missing_ = 0;
            drop_fresh();
        }
    }
    DEVICE void store() const {
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
            const float4 value = untagged(words_[i]);
            const Split a = split_weights_type(value.x, value.y), b = split_weights_type(value.z, value.w);
            const u32 quad = core_.lane & 7;
            u8* to = core_.shared.operand() + chunk_of(i) * CHUNK_OPERAND_BYTES + (quad & 1) * OPERAND_STEP_BYTES + quad / 2 * 16;
            *reinterpret_cast<Operand*>(to) = make_uint4(a.high, a.low, b.high, b.low);
        }
    }

    Core& core_;
    const u32* from_;
    uint4 words_[ROUNDS];
    u32 missing_ = 0;
    int asked_ = -1, held_ = -1;
};
