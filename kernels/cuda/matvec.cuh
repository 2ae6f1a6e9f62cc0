// Decode: one vector times a matrix whose rows are spread over the SMs.
//
// Waits for: the phase's input vector in the mailbox. Computes: the SM's tiles; warp w takes the 32-column chunks
// w, w + 8, .. of all of them, so that each warp fetches, splits and keeps only its own part of the vector and
// nobody waits for the block before multiplying. Publishes: a warp sums the eight partial results of a group,
// applies what follows (rotation, SwiGLU, residual, sampling scores) and posts.
#pragma once
#include "staging.cuh"
#include "windows.cuh"

// A warp's sums for T tiles. Few tiles get two chains each, so that one product need not wait for the one before.
template <int T>
struct Sums {
    static constexpr int CHAINS = T <= 4 ? 2 : 1;
    float chain[CHAINS][T][4];

    DEVICE Sums() {
#pragma unroll
        for (int k = 0; k < CHAINS; ++k) {
#pragma unroll
            for (int t = 0; t < T; ++t) chain[k][t][0] = chain[k][t][1] = chain[k][t][2] = chain[k][t][3] = 0.0f;
        }
    }
    DEVICE void join() {}  // lanes 0 .. 3 have all
    // Both parts of the vector, all chains: the two rows of a pair.
    DEVICE float2 pair(int t) const {
        float2 sum = make_float2(chain[0][t][0] + chain[0][t][2], chain[0][t][1] + chain[0][t][3]);
        if constexpr (CHAINS == 2) {
            sum.x += chain[1][t][0] + chain[1][t][2];
            sum.y += chain[1][t][1] + chain[1][t][3];
        }
        return sum;
    }
};

// A warp's part of one slot of a group of T tiles: every eighth chunk of columns. `MOST`: chunks that the matrix has, if that is known.
// HALVES: of tiles that the group is, if it is not whole ones.
constexpr int ANY_CHUNKS = 1 << 30;
template <int T, int MOST = ANY_CHUNKS, int HALVES = 0>
struct SlotPart {
    static_assert(!HALVES || T == ceil_div(HALVES, 2), "the last tile has a half's rows");
    static constexpr int CHUNKS = group_chunks_a_slot(HALVES, STORAGE_F16, T);
    static constexpr int EACH = ceil_div(smaller(CHUNKS, MOST), WARPS);  // chunks of a slot that fall to one warp, at most

    // The first of the warp's chunks from `first` on.
    DEVICE static int mine(u32 warp, int first) { return first + ((int(warp) - first) & (WARPS - 1)); }
};

// Whether the code for groups of T tiles serves those of one less: where an SM may have both. It has several groups then, and those
// have half of the most tiles at least (Groups). Where their sums have other chains, they would not be the same to the bit.
template <int T>
DEVICE constexpr bool takes_fewer() {
    if constexpr (T - 1 > MAX_TILES / 2) return SlotPart<T>::EACH == SlotPart<T - 1>::EACH && Sums<T>::CHAINS == Sums<T - 1>::CHAINS;
    return false;
}

// 16-bit weights of a warp's part of one slot in registers, of a group of however many tiles. Tiles lie side by side, or APART:
// one after the other. Of a matrix with few chunks a warp has fewer than a slot has room for, and each product that is not made is
// latency less.
// A group of T - 1 tiles may go the way of one of T: its last tile is multiplied twice, and nobody finishes the second one's sums.
template <bool APART, int MATRIX_CHUNKS = ANY_CHUNKS, int HALVES = 0>
struct SlotWeights {
    template <int T>
    using Sums = ::Sums<T>;
    template <int T>
    using Part = SlotPart<T, MATRIX_CHUNKS, HALVES>;
    template <int T>
    DEVICE static constexpr int chunks_a_slot() {
        return Part<T>::CHUNKS;
    }
    template <int T>
    static constexpr bool FEWER = !APART && !HALVES && takes_fewer<T>();
    template <int T>
    DEVICE static int chunks_a_slot(int tiles) {
        if constexpr (FEWER<T>) return tiles == T ? Part<T>::CHUNKS : Part<T - 1>::CHUNKS;
        return Part<T>::CHUNKS;
    }

    // Whether no slot reaches from one window of the vector into the next.
    template <int T>
    DEVICE static constexpr bool fills_windows() {
        if (LONG_WINDOW % Part<T>::CHUNKS) return false;
        if constexpr (FEWER<T>) return fills_windows<T - 1>();
        return true;
    }

    // Whether all warps have as many chunks in each slot that is full, and whether that is in each slot of the matrix.
    template <int T>
    DEVICE static constexpr bool even_if_full() {
        if (Part<T>::CHUNKS % WARPS) return false;
        if constexpr (FEWER<T>) return even_if_full<T - 1>();
        return true;
    }
    template <int T>
    DEVICE static constexpr bool even() {
        if (MATRIX_CHUNKS == ANY_CHUNKS || MATRIX_CHUNKS % Part<T>::CHUNKS) return false;
        if constexpr (FEWER<T>) return even_if_full<T>() && even<T - 1>();
        return even_if_full<T>();
    }

    static constexpr int HELD_UNITS = larger(MAX_TILES, ceil_div(SLOT_UNITS, WARPS));
    uint4 units[HELD_UNITS] = {};

    // A warp's way over many slots. What it has of the vector is nothing in the lanes that hold none: set to that for each slot, and its
    // chunks found anew twice, a third of a slot's instructions would be for that.
    template <int T>
    struct Walk {
        int mine;  // the warp's first chunk of the slot in hand, or of a later one
        Operand vector[Part<T>::EACH][2] = {};

        DEVICE explicit Walk(u32 warp) : mine(int(warp)) {}
        // To the next slot, which begins with chunk `first`.
        DEVICE void go_on(u32 warp, int first) {
            if constexpr (Part<T>::CHUNKS % WARPS == 0) mine = first + int(warp);
            else if constexpr (Part<T>::EACH == 1) mine += mine < first ? WARPS : 0;
            else mine = Part<T>::mine(warp, first);
        }
    };
    static constexpr bool WALKS = true;

    // Takes chunks first .. last - 1 of a group from the slot at the cursor, and frees it. Past the warp's last chunk:
    // some weights, which `multiply` takes times zero. LATE: it frees it once they are there, because loads of other kinds,
    // which may hold them up, are on their way.
    template <int T, bool LATE = false>
    DEVICE void load(Core& core, int first, int last, int tiles = T) {
        load<T, LATE>(core, core.warp, first, last, tiles);
    }
    // Whoever takes slot after slot in a loop may hold the warp's number in a register of the loop's.
    template <int T, bool LATE = false>
    DEVICE void load(Core& core, u32 warp, int first, int last, int tiles = T) {
        load_from<T, LATE>(core, Part<T>::mine(warp, first), first, last, tiles);
    }
    // `mine` is the warp's first chunk from `first` on. FULL: so is the slot.
    template <int T, bool LATE = false, bool FULL = false>
    DEVICE void load_from(Core& core, int mine, int first, int last, int tiles = T) {
        const int next_chunk = chunk_bytes(HALVES, APART ? 1 : FEWER<T> ? tiles : T);
        constexpr int TILE_BYTES = (APART ? Part<T>::CHUNKS : 1) * UNIT_BYTES;
        constexpr bool SURE = even<T>() || (FULL && even_if_full<T>());
        core.wait_full();
        const u8* slot = core.shared.ring[core.cursor.slot] + place_in_tile(core, core.lane);
        const int to_half = HALVES ? int(place_in_tile(core, core.lane % 16)) - int(place_in_tile(core, core.lane)) : 0;
#pragma unroll
        for (int e = 0; e < Part<T>::EACH; ++e) {
            const int c = mine + e * WARPS;
            const u8* from = slot + (SURE || c < last ? c - first : 0) * next_chunk;
#pragma unroll
            for (int t = 0; t < T; ++t) {
                const int at = FEWER<T> && t == T - 1 ? next_chunk - UNIT_BYTES : t * TILE_BYTES + (t == T - 1 ? to_half : 0);
                units[e * T + t] = *reinterpret_cast<const uint4*>(from + at);
            }
        }
        if constexpr (LATE) {
            u32 loaded = 0;  // a word of each load: its others come with it
#pragma unroll
            for (int u = 0; u < Part<T>::EACH * T; ++u) loaded |= units[u].x;
            core.free_slot_after(loaded);
        } else {
            core.free_slot();
        }
    }

    // Times the chunks of the vector from `first`, with which the slot begins, to `last`.
    template <int T>
    DEVICE void multiply(const Core& core, int first, int last, Sums<T>& sums) const {
        multiply_within<T, false>(core, core.warp, first, first, last, 0, sums);
    }
    // The same of the slot to which `walk` has come, if FULL a full one; the operand begins with chunk `window`.
    template <int T, bool FULL = false>
    DEVICE void multiply(const Core& core, Walk<T>& walk, int last, Sums<T>& sums, int window = 0) const {
        constexpr bool EVEN = even<T>() || (FULL && even_if_full<T>());
        if (!EVEN && !model::ALL_WARPS_MULTIPLY && walk.mine >= last) return;
#pragma unroll
        for (int e = 0; e < Part<T>::EACH; ++e) {
            const bool sure = EVEN || (e == 0 && !model::ALL_WARPS_MULTIPLY);
            Operand(&a)[2] = walk.vector[e];
            const int c = walk.mine + e * WARPS;
            if (!sure) a[0] = a[1] = make_uint4(0, 0, 0, 0);
            if (core.lane < 4 && (sure || c < last)) {
                const u8* from = core.shared.operand() + (c - window) * VECTOR_CHUNK_BYTES + core.lane * 16;
                a[0] = *reinterpret_cast<const Operand*>(from);
                a[1] = *reinterpret_cast<const Operand*>(from + VECTOR_STEP_BYTES);
            }
        }
        multiply_units<T>(walk.vector, sums);
    }
    // Times those from `begin` to `end`; the window of the vector that the operand holds begins with chunk `window`.
    template <int T>
    DEVICE void multiply_in_window(const Core& core, int first, int begin, int end, int window, Sums<T>& sums) const {
        multiply_in_window<T>(core, core.warp, first, begin, end, window, sums);
    }
    template <int T>
    DEVICE void multiply_in_window(const Core& core, u32 warp, int first, int begin, int end, int window, Sums<T>& sums) const {
        multiply_within<T, true>(core, warp, first, begin, end, window, sums);
    }

private:
    // Where a lane's piece of a tile's rows lies.
    DEVICE static u32 place_in_tile(const Core& core, u32 lane) { return piece_place(lane) * 16 ^ half_turn(HALVES, core.place.sm); }
    template <int T, bool WINDOW>
    DEVICE void multiply_within(const Core& core, u32 warp, int first, int begin, int end, int window, Sums<T>& sums) const {
        constexpr u32 LANES = WINDOW ? 4 * REQUESTS : 4;  // that hold the vectors
        const int mine = Part<T>::mine(warp, first);
        if ((WINDOW || !model::ALL_WARPS_MULTIPLY) && mine >= end) return;
        Operand a[Part<T>::EACH][2];
#pragma unroll
        for (int e = 0; e < Part<T>::EACH; ++e) {
            const int c = mine + e * WARPS;
            a[e][0] = a[e][1] = make_uint4(0, 0, 0, 0);
            if (core.lane < LANES && (!WINDOW || c >= begin) && c < end) {
                const u8* from = core.shared.operand() + (WINDOW ? (c - window) * CHUNK_OPERAND_BYTES : c * VECTOR_CHUNK_BYTES) + core.lane * 16;
                a[e][0] = *reinterpret_cast<const Operand*>(from);
                a[e][1] = *reinterpret_cast<const Operand*>(from + (WINDOW ? second_step(core.lane) : VECTOR_STEP_BYTES));
            }
        }
        multiply_units<T>(a, sums);
    }
    template <int T>
    DEVICE void multiply_units(const Operand (&a)[Part<T>::EACH][2], Sums<T>& sums) const {
#pragma unroll
        for (int e = 0; e < Part<T>::EACH; ++e) {
#pragma unroll
            for (int t = 0; t < T; ++t) {
                mma_weights(sums.chain[0][t], a[e][0], units[e * T + t].x, units[e * T + t].y);
            }
#pragma unroll
            for (int t = 0; t < T; ++t) {
                mma_weights(sums.chain[Sums<T>::CHAINS - 1][t], a[e][1], units[e * T + t].z, units[e * T + t].w);
            }
        }
    }
};

// Warps that look at several vectors have so many loads on their way that the load of another warp's weights hangs behind them for as long
// as the copy engine takes to fill a slot anew, while its arrival does not (barrier_arrive_after): slots are left late.
constexpr bool SLOTS_LATE = mail::READ_IN_PARTS;

// The products of a group with weights that a warp holds in registers, its part of a slot at a time.
template <class Held, int CHUNKS>
struct HeldProducts {
    template <int T>
    using Sums = typename Held::template Sums<T>;

    // Takes the first slot of a group of T tiles, while its vector is still waited for.
    template <int T>
    DEVICE void begin(Core& core, int tiles, int chunks) {
        load<T>(core, 0, smaller(Held::template chunks_a_slot<T>(tiles), chunks), tiles);
    }

    // Adds this warp's part of each row's product to `sums`; `held`: begin() has its first slot. Keeping the next slot's weights in
    // registers meanwhile was tried and spilled.
    template <int T>
    DEVICE void multiply(Core& core, int tiles, int chunks, bool held, Sums<T>& sums) {
        multiply_beside<T>(core, tiles, chunks, held, sums, [] {});
    }
    // `meanwhile` is done beside the first slot's products if slots are few, else while the last ones end.
    template <int T, class Meanwhile>
    DEVICE void multiply_beside(Core& core, int tiles, int chunks, bool held, Sums<T>& sums, const Meanwhile& meanwhile) {
        constexpr bool FEW_SLOTS = ceil_div(CHUNKS, Held::template chunks_a_slot<T>()) <= 2;
        const int step = Held::template chunks_a_slot<T>(tiles);
        if constexpr (!FEW_SLOTS && Held::WALKS) {
            walk<T>(core, tiles, chunks, step, held, sums);
            meanwhile();
        } else {
#pragma unroll (FEW_SLOTS ? 2 : 1)
            for (int first = 0; first < chunks; first += step) {
                const int last = smaller(first + step, chunks);
                if (!held) load<T>(core, first, last, tiles);
                held = false;
                weights_.template multiply<T>(core, first, last, sums);
                if (FEW_SLOTS && first == 0) meanwhile();
            }
            if (!FEW_SLOTS) meanwhile();
        }
    }

    // The same where the vector comes in windows.
    template <int T, class Vector>
    DEVICE void multiply(Core& core, int tiles, int chunks, bool held, Sums<T>& sums, Vector& vector) {
        const int step = Held::template chunks_a_slot<T>(tiles);
        if constexpr (Held::WALKS && Held::template fills_windows<T>()) {
            walk_windows<T>(core, tiles, chunks, step, held, sums, vector);
        } else {
#pragma unroll 1
            for (int first = 0; first < chunks; first += step) {
                const int last = smaller(first + step, chunks);
                if (!held) weights_.template load<T, true>(core, first, last, tiles);
                held = false;
#pragma unroll 1
                for (int begin = first; begin < last;) {
                    const int at = vector.hold(begin), end = smaller(last, at + LONG_WINDOW);
                    weights_.template multiply_in_window<T>(core, first, begin, end, at, sums);
                    begin = end;
                }
            }
        }
    }

    // Leaves the warp's sums of each row pair in shared memory: [warp][pair].
    template <int T>
    DEVICE void leave(Core& core, Sums<T>& sums) const {
        sums.join();
        if (core.lane >= 4) return;
        float2* mine = core.shared.partial(core.group & 1) + core.warp * PAIRS;
#pragma unroll
        for (int t = 0; t < T; ++t) mine[t * 4 + core.lane] = sums.pair(t);
    }

private:
    // Of many slots. The loop ends where the next one is loaded, so that it does not ask whether that is done.
    template <int T>
    DEVICE void walk(Core& core, int tiles, int chunks, int step, bool held, Sums<T>& sums) {
        constexpr bool TAIL = Held::template even_if_full<T>() && !Held::template even<T>();
        typename Held::template Walk<T> walk(core.warp);
        const int full = TAIL ? chunks / step * step : chunks;
        int first = 0, last = step;
        if (!held) weights_.template load_from<T, SLOTS_LATE>(core, walk.mine, first, last, tiles);
#pragma unroll 1
        while (true) {
            weights_.template multiply<T, TAIL>(core, walk, last, sums);
            first += step;
            if (first >= full) break;
            last = TAIL ? first + step : smaller(first + step, chunks);
            walk.go_on(core.warp, first);
            weights_.template load_from<T, SLOTS_LATE, TAIL>(core, walk.mine, first, last, tiles);
        }
        if (TAIL && first < chunks) {
            walk.go_on(core.warp, first);
            weights_.template load_from<T, SLOTS_LATE>(core, walk.mine, first, chunks, tiles);
            weights_.template multiply<T>(core, walk, chunks, sums);
        }
    }
    // The same, window after window, of which no slot has parts of two. All slots but the last one are full.
    template <int T, class Vector>
    DEVICE void walk_windows(Core& core, int tiles, int chunks, int step, bool held, Sums<T>& sums, Vector& vector) {
        typename Held::template Walk<T> walk(core.warp);
        const int full = chunks / step * step;
        int first = 0;
        if (!held) weights_.template load_from<T, true>(core, walk.mine, first, step, tiles);
#pragma unroll 1
        while (first < full) {
            const int window = vector.hold(first), end = smaller(window + LONG_WINDOW, full);
#pragma unroll 1
            while (true) {
                weights_.template multiply<T, true>(core, walk, first + step, sums, window);
                first += step;
                if (first < chunks) walk.go_on(core.warp, first);
                if (first >= end) break;
                weights_.template load_from<T, true, true>(core, walk.mine, first, first + step, tiles);
            }
            if (first < chunks) weights_.template load_from<T, true>(core, walk.mine, first, smaller(first + step, chunks), tiles);
        }
        if (first < chunks) weights_.template multiply<T>(core, walk, chunks, sums, vector.hold(first));
    }
    template <int T>
    DEVICE void load(Core& core, int first, int last, int tiles) {
        if constexpr (SLOTS_LATE) weights_.template load<T, true>(core, first, last, tiles);
        else weights_.template load<T>(core, first, last, tiles);
    }

    Held weights_;
};

// Calls `visit` with the number of tiles, which is one of the matrix's group sizes, as a constant. It has few; only those are compiled,
// and the last one is not asked for: what a layer runs should fit the instruction cache. PAIRED: where it can be, two sizes have one
// copy of the code.
template <int T>
struct Tiles {
    static constexpr int COUNT = T;
    int there = T;  // or one less
};
template <int PHASE, bool PAIRED = false, int T = MAX_TILES, class Visit>
DEVICE void with_tiles(int tiles, const Visit& visit) {
    if constexpr (T >= 1) {
        constexpr int SIZES = group_sizes(PHASE);
        constexpr bool PAIR = PAIRED && takes_fewer<T>() && (SIZES >> (T - 1) & 1);
        constexpr int LEAST = PAIR ? T - 1 : T, SMALLER_SIZES = SIZES & ((1 << LEAST) - 2);
        if constexpr ((SIZES >> T) & 1) {
            if (!SMALLER_SIZES || tiles >= LEAST) {
                visit(Tiles<T>{PAIR ? tiles : T});
                return;
            }
            with_tiles<PHASE, PAIRED, LEAST - 1>(tiles, visit);
        } else {
            with_tiles<PHASE, PAIRED, T - 1>(tiles, visit);
        }
    }
}

// How a group is multiplied in a format.
template <int STORAGE, bool APART, int CHUNKS, int HALVES, Way WAY = way_of(STORAGE)>
struct ProductsOf {
    using Type = HeldProducts<SlotWeights<APART, CHUNKS, HALVES>, CHUNKS>;
};
template <int STORAGE, bool APART, int CHUNKS>
struct ProductsOf<STORAGE, APART, CHUNKS, 0, Way::BY_WARPS> {
    using Type = HeldProducts<packed::SlotWeights<STORAGE, APART>, CHUNKS>;
};
template <int STORAGE, bool APART, int CHUNKS>
struct ProductsOf<STORAGE, APART, CHUNKS, 0, Way::BY_QUADS> {
    using Type = packed::QuadProducts<STORAGE, APART>;
};
template <int STORAGE, bool APART, int CHUNKS>
struct ProductsOf<STORAGE, APART, CHUNKS, 0, Way::BY_DIGITS> {
    using Type = packed::DigitProducts<STORAGE, APART>;
};
template <int STORAGE, bool APART, int CHUNKS>
struct ProductsOf<STORAGE, APART, CHUNKS, 0, Way::FROM_SLOTS> {
    using Type = packed::SlotProducts<STORAGE, APART>;
};

// The groups of one phase on one SM. Group g is finished by one warp, in turn. What can be had before the phase's input
// is there is asked for first: the weights of the first slot, and what the finishing warps add (prepare).
template <int PHASE, class Finish, int STORAGE>
class GroupRun {
    static constexpr bool APART = experts::apart(PHASE);
    static constexpr int CHUNKS = chunks_of(Matrix<PHASE>::COLUMNS);
    static constexpr bool PAIRED = !is_packed(STORAGE) && !APART;
    static constexpr bool ONE_GROUP = !APART && one_group(PHASE);
    using Products = typename ProductsOf<STORAGE, APART, CHUNKS, halves_of(PHASE)>::Type;

public:
    DEVICE GroupRun(Core& core, Finish& finish) : core_(core), finish_(finish), groups_(core.groups(PHASE)) {
        const int first = int((core.warp - core.group) & (WARPS - 1));
        if constexpr (APART) {  // once its first weights are there, it is known who is met
            if constexpr (by_warpgroups(STORAGE)) core.wait_full();
            begin();
        }
        if (first < groups_.count) prepare(first);
        if constexpr (!APART) begin();
    }

    // With the vector at `from`, once it is there.
    DEVICE void run_plain(const u32* from) {
        constexpr int COLUMNS = Matrix<PHASE>::COLUMNS;
        if constexpr (in_windows(PHASE)) {
            Windows<COLUMNS> vector(core_, from);
            run(vector);
        } else {
            stage_plain<COLUMNS, STORAGE>(core_, from);
            run();
        }
    }

    // With the vector that is in shared memory, or comes there.
    template <class... Vector>
    DEVICE void run(Vector&... vector) {
        // Each reads all of the vector; the router's is staged before another barrier.
        if constexpr (by_warpgroups(STORAGE) && !(experts::ANY && !experts::FOLDED && PHASE == GATE_UP)) consumers_sync();
        int g = 0;
#pragma unroll 1
        do {  // whoever has a share has a group
            with_tiles<PHASE, PAIRED>(groups_.size(g), [&](auto tiles) {
                typename Products::template Sums<tiles.COUNT> sums;
                const auto squares = [&] {
                    if (NORMED && g == 0) leave_squares(core_);
                };
                if constexpr (NORMED && !is_packed(STORAGE)) {
                    products_.template multiply_beside<tiles.COUNT>(core_, tiles.there, CHUNKS, g == 0, sums, squares);
                } else {
                    products_.template multiply<tiles.COUNT>(core_, tiles.there, CHUNKS, g == 0, sums, vector...);
                    squares();
                }
                products_.template leave<tiles.COUNT>(core_, sums);
            });
            consumers_sync();
            if (core_.warp == (core_.group & (WARPS - 1)) && (Finish::BY_WARP || pair_ >= 0)) finish_group(g);
            ++core_.group;
        } while (!ONE_GROUP && ++g < groups_.count);
    }

private:
    static constexpr bool NORMED = PHASE == QKV || (PHASE == GATE_UP && !experts::ANY) || PHASE == HEAD;

    DEVICE bool in_group(int g) const { return int(core_.lane) < pairs_of_group(PHASE, groups_.size(g)); }
    DEVICE int pair_of(int g) const {
        return pairs_before(PHASE, core_.share(PHASE).first + groups_.first(g)) + int(core_.lane);
    }
    DEVICE void begin() {
        with_tiles<PHASE, PAIRED>(groups_.size(0), [&](auto tiles) {
            products_.template begin<tiles.COUNT>(core_, tiles.there, CHUNKS);
        });
    }
    DEVICE void prepare(int g) {
        pair_ = in_group(g) ? pair_of(g) : -1;
        if (pair_ >= 0) finish_.prepare(pair_);
    }
    DEVICE void finish_group(int g) {
        const float2* from = core_.shared.partial(core_.group & 1) + core_.lane;
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float2 part = from[w * PAIRS];
            sum.x += part.x;
            sum.y += part.y;
        }
        finish_.post(pair_, sum.x, sum.y);
        if (!ONE_GROUP && g + WARPS < groups_.count) prepare(g + WARPS);
    }

    Core& core_;
    Finish& finish_;
    const Groups groups_;
    int pair_ = -1;  // of rows, that this thread finishes next, if it does: known before others wait for it
    Products products_;
};
