// Products of several requests with packed weights by warps, as packed.cuh has them of one. There a vector fills two rows of
// operand A, and the chunks of a slot fill the others, so that each chunk's sums meet its scales in lanes of their own. Here the
// requests fill the rows, so a warp takes a chunk after the other, and keeps apart in registers what lies in different lanes
// there: it adds the same numbers in the same order, and has the same bits.
#pragma once
#include "requests.cuh"

namespace several {

// The weights of a group, straight from the slots.
template <int STORAGE>
class UnitWeights : public SlotInPlace<STORAGE, false> {
    using SlotInPlace<STORAGE, false>::loaded_;

public:
    static constexpr int WORDS = packed::words(STORAGE), PARTS = scales_of_a_chunk(STORAGE);
    template <int T>
    using Map = packed::SlotMap<STORAGE, T, false>;

    // How many of a warp's chunks a request alone adds up apart, and of how many columns they are.
    template <int T>
    DEVICE static constexpr int alone_chunks() {
        return ::chunks_a_slot(T, STORAGE, false, model::ALONE_SLOT_UNITS * UNIT_BYTES);
    }

    // Lane 4 r + j has of request r those of the rows 2 j and 2 j + 1 of each tile, of each part of a slot's chunks.
    template <int T>
    struct Sums {
        static constexpr int APART = ceil_div(alone_chunks<T>(), WARPS) * PARTS;
        static_assert(APART <= 8, "rows of operand A");
        float2 rows[APART][T];

        DEVICE Sums() {
#pragma unroll
            for (int i = 0; i < APART; ++i) {
#pragma unroll
                for (int t = 0; t < T; ++t) rows[i][t] = make_float2(0.0f, 0.0f);
            }
        }
        DEVICE float2 pair(int t) const {
            constexpr float BACK = packed::reduced(STORAGE) * packed::lowered();
            const float2 sum = joined(t);
            return make_float2(sum.x * BACK, sum.y * BACK);
        }

    private:
        // In pairs, and pairs of pairs, as lanes of a request alone do (packed::Sums::join).
        template <int FIRST = 0, int COUNT = 8>
        DEVICE float2 joined(int t) const {
            if constexpr (COUNT == 1) {
                if constexpr (FIRST < APART) {
                    return rows[FIRST][t];
                } else {
                    return make_float2(0.0f, 0.0f);
                }
            } else {
                const float2 a = joined<FIRST, COUNT / 2>(t), b = joined<FIRST + COUNT / 2, COUNT / 2>(t);
                return make_float2(a.x + b.x, a.y + b.y);
            }
        }
    };

    // Chunks from `begin` to `end`, in a slot that begins with `first`, times those of a window that begins with `window`.
    template <int T>
    DEVICE void multiply_in_window(const Core& core, int first, int begin, int end, int window, Sums<T>& sums) {
#pragma unroll 1
        for (int c = begin + int(core.warp - u32(begin) & (WARPS - 1)); c < end; c += WARPS) {
            const u8* slot = core.shared.ring[core.cursor.slot];
            loaded_ |= multiply_chunk<T>(core, slot, u32(c - first), c - window, c % alone_chunks<T>() / WARPS, sums);
        }
    }

private:
    // The slot's chunk `chunk`, of the vectors' window chunk `column`; `apart` is which of the sums it belongs to. Returns what
    // depends on all loads.
    template <int T>
    DEVICE static u32 multiply_chunk(const Core& core, const u8* slot, u32 chunk, int column, int apart, Sums<T>& sums) {
        using Map = UnitWeights::Map<T>;
        const u8* unit = slot + Map::unit(chunk) + core.lane * lane_bytes(STORAGE);
        const u8 *of_unit = slot + Map::unit_scales(chunk), *of_run = slot + Map::run_scales(chunk);
        u32 word[T][WORDS], loaded = 0;
        packed::Scales<STORAGE> scales[T][PARTS];
#pragma unroll
        for (int t = 0; t < T; ++t) {
            packed::load_words<STORAGE>(word[t], core.lane, unit + t * Map::NEXT_UNIT);
            loaded |= word[t][0] | word[t][WORDS - 1];
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                scales[t][part].load(of_unit + t * Map::NEXT_UNIT_SCALES, of_run + t * Map::NEXT_RUN_SCALES, core.lane & 3, u32(part));
                loaded |= scales[t][part].loaded();
            }
        }
        Operand vectors[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
        if (core.lane < 4 * REQUESTS) {
            const u8* from = core.shared.operand() + column * CHUNK_OPERAND_BYTES + core.lane * 16;
            vectors[0] = *reinterpret_cast<const Operand*>(from);
            vectors[1] = *reinterpret_cast<const Operand*>(from + second_step(core.lane));
        }
        constexpr int CHAINS = T <= 4 ? 2 : 1;  // as alone
        float chain[PARTS][CHAINS][T][4] = {}, ones[4] = {};
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            if constexpr (packed::has_offsets(STORAGE)) multiply_part(ones, vectors[step], make_uint2(0x3c003c00u, 0x3c003c00u));
#pragma unroll
            for (int t = 0; t < T; ++t) {
                const uint2 w = packed::operands<STORAGE>(word[t], step);
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    const bool here = PARTS == 1 || (core.lane >> 1 & 1) == part;  // half of the columns each
                    multiply_part(chain[part][step * (CHAINS - 1)][t], packed::only_of(vectors[step], here), w);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < Sums<T>::APART; ++i) {
            if (i / PARTS != apart) continue;  // registers have no addresses
#pragma unroll
            for (int t = 0; t < T; ++t) add(sums.rows[i][t], scales[t][i % PARTS], chain[i % PARTS], t, ones);
        }
        return loaded;
    }
    DEVICE static void multiply_part(float (&sums)[4], const Operand& a, uint2 w) { mma_f16(sums, a.x, a.y, a.z, a.w, w.x, w.y); }

    template <int CHAINS, int T>
    DEVICE static void add(float2& to, const packed::Scales<STORAGE>& of, const float (&chain)[CHAINS][T][4], int t,
                           const float (&ones)[4]) {
        const float2 scale = of.pair();
        float2 sum = make_float2(chain[0][t][0] + chain[0][t][2], chain[0][t][1] + chain[0][t][3]);
        if constexpr (CHAINS == 2) {
            sum.x += chain[1][t][0] + chain[1][t][2];
            sum.y += chain[1][t][1] + chain[1][t][3];
        }
        if constexpr (packed::has_offsets(STORAGE)) {
            const float2 offset = of.offsets();
            to.x = fmaf(-offset.x, ones[0] + ones[2], to.x);
            to.y = fmaf(-offset.y, ones[1] + ones[3], to.y);
        }
        to.x = fmaf(scale.x, sum.x, to.x);
        to.y = fmaf(scale.y, sum.y, to.y);
    }
};

}  // namespace several
