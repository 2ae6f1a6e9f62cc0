// What the head of a model with several lanes reads, for all requests: head_input::join, with one exchange's wait for many of them.
#pragma once
#include "head_input.cuh"
#include "requests.cuh"

namespace several {

constexpr int JOINED_AT_ONCE = smaller(4, REQUESTS);  // requests whose words a warp asks for with one look
static_assert(!mail::JOINS_LANES || SLICE_QUADS <= 32, "a lane a piece");

// What one warp reads of one stream of some requests from `first_request` on, as head_input::Part of one.
struct JoinedParts {
    static constexpr int SQUARES = larger(1, head_input::SQUARES), COUNT = JOINED_AT_ONCE;
    static_assert(!mail::JOINS_LANES || SQUARES < 32, "a bit a word");

    u32 squares[COUNT][SQUARES];
    uint4 words[COUNT];

    DEVICE JoinedParts(Core& core, int stream, int first_request, int first, int count) {
        const size_t sums_at = mail::SQUARES + stream * mail::TILES + core.lane;
        const size_t columns_at = mail_at(model::LAYERS - 1, mail::AFTER_MLP + stream * model::HIDDEN) + (first + int(core.lane)) * 4;
        const u32* mail[COUNT];
        u32 epochs[COUNT], missing[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            const int request = first_request + k;
            mail[k] = core.own.launch->requests[request].mail;
            epochs[k] = core.shared.seats[request].serial & 1u;
            missing[k] = runs(core.shared, request) ? wanted(core, count) : 0;
            words[k] = make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int i = 0; i < SQUARES; ++i) squares[k][i] = 0;
        }
        Spin spin(core.params, core.place, WAIT_VECTOR);
        u32 any = 1;
        while (__any_sync(ALL_LANES, any)) {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
#pragma unroll
                for (int i = 0; i < SQUARES; ++i) {
                    if (missing[k] >> i & 1u) squares[k][i] = load_far(mail[k] + sums_at + i * 32);
                }
                if (missing[k] >> SQUARES & 1u) words[k] = peek4_far(mail[k] + columns_at);
            }
            const bool hopeless = spin.hopeless();  // between the loads and the first use of any (Spin)
            any = 0;
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                u32 still = stale(words[k], epochs[k]) << SQUARES;
#pragma unroll
                for (int i = 0; i < SQUARES; ++i) still |= ((squares[k][i] ^ epochs[k]) & 1u) << i;
                missing[k] &= hopeless ? 0u : still;
                any |= missing[k];
            }
        }
    }
    DEVICE float inverse_rms(int k) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < SQUARES; ++i) sum += untagged(squares[k][i]);
        return rsqrtf(warp_sum(sum) * (1.0f / float(model::HIDDEN)) + model::NORM_EPS);
    }

private:
    // A bit for each word that the lane reads: of the sums of squares, and the piece.
    DEVICE static u32 wanted(const Core& core, int count) {
        u32 bits = int(core.lane) < count ? 1u << SQUARES : 0u;
#pragma unroll
        for (int i = 0; i < head_input::SQUARES; ++i) {
            if (i * 32 + int(core.lane) < mail::TILES) bits |= 1u << i;
        }
        return bits;
    }
};

// This SM's slices of the joined lanes.
DEVICE void join_lanes(Core& core, const u16* norm_weights) {
    const int sm = int(core.place.sm), first = sm * head_input::QUADS / model::SMS, count = (sm + 1) * head_input::QUADS / model::SMS - first;
    if (!count) return;
    const int quad = int(core.lane);
    float4* slices = core.shared.slices();
    uint2 norm = make_uint2(0, 0);
    if (!head_input::SUM && quad < count) norm = __ldg(reinterpret_cast<const uint2*>(norm_weights + (first + quad) * 4));
#pragma unroll 1
    for (int r = 0; r < REQUESTS; r += JOINED_AT_ONCE) {
        head_input::for_each_stream(core, [&](int m) {
            const JoinedParts parts(core, m, r, first, count);
#pragma unroll
            for (int k = 0; k < JOINED_AT_ONCE; ++k) {
                const float scale = head_input::SUM ? 1.0f : parts.inverse_rms(k) / float(model::STREAMS);
                const float4 v = untagged(parts.words[k]);
                if (quad < count) slices[((r + k) * model::STREAMS + m) * SLICE_QUADS + quad] = times(v, scale);
            }
        });
    }
    consumers_sync();
    if (core.member() == 0 && quad < count && runs(core.shared, core.own.request)) {
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int m = 0; m < model::STREAMS; ++m) {
            const float4 v = slices[(core.own.request * model::STREAMS + m) * SLICE_QUADS + quad];
            total = make_float4(total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w);
        }
        if (!head_input::SUM) scale_by(total, norm);
        post(head_input::joined_lanes(core) + (first + quad) * 4, tagged(total, core.epoch));
    }
    consumers_sync();  // the slices in shared memory are free again
}

}  // namespace several
