// The last token of a prompt, which prefill takes along with the others. All that is left of it for decode is the last layer,
// whose other tokens need keys and values alone: a step of decode less, which would read every weight once more.
#pragma once
#include "decode.cuh"
#include "prefill_finish.cuh"

namespace last_token {

constexpr int LAYER = model::LAYERS - 1;  // where decode takes over
// Whether this kernel can take it along; Params::last_along says whether a launch does. Not with BF16: its activations in prefill
// have eight bits, which logits would show. Not with a profile, which is of whole steps; not on several GPUs, where other GPUs write
// into this one's mailboxes; not with several requests, which decode side by side, layer by layer.
constexpr bool TAKEN_ALONG = model::RANKS == 1 && REQUESTS == 1 && !experts::ANY && !model::POST_NORMS && !model::WEIGHTS_BF16 &&
                             !model::PROFILE && LAYER >= larger(1, model::DELAY);

// Calls `visit` with the numbers below `count`, each by one thread of all SMs.
template <class Visit>
DEVICE void share_out(const Core& core, int count, const Visit& visit) {
    for (int i = int(core.place.sm) * CONSUMERS + int(core.warp * 32 + core.lane); i < count; i += model::SMS * CONSUMERS) visit(i);
}

// Whether the last layer takes in what a module produced so many layers before.
DEVICE bool reads_late(bool attention) {
    return any_exchange(EXCHANGE_DELAYED) && prefill::exchange_of(attention, LAYER) == EXCHANGE_DELAYED;
}

// Whether a word of a layer before the last one is posted for it.
DEVICE bool is_posted(int layer, int word) {
    if (layer == LAYER - 1 && word >= mail::AFTER_MLP && word < mail::LANES_ATTENTION) return true;
    if (layer != LAYER - model::DELAY || word < mail::LANES_ATTENTION || word >= mail::SCORES) return false;
    return reads_late(word < mail::LANES_MLP);
}

// What the layers before would have posted and nobody reads any more: words that kept the parity of the pass before would be
// taken for those of the next one.
DEVICE void post_unread(const Core& core, u32 epoch) {
    constexpr int QUADS = mail::PARTIALS / 4;  // partial results have the pass's number
    share_out(core, LAYER * QUADS, [&](int i) {
        const int layer = i / QUADS, word = i % QUADS * 4;
        if (!is_posted(layer, word)) post(core.mail(layer) + word, make_uint4(epoch, epoch, epoch, epoch));
    });
}

DEVICE const float* stream(const Params& p, int chunk, int lane, int token) {
    return p.stream + (size_t(lane) * chunk + token) * model::HIDDEN;
}

template <class Way>
DEVICE void post_late(const Core& core, int token, bool attention, u32 epoch) {
    constexpr int QUADS = model::HIDDEN / 4, FROM = LAYER - model::DELAY;
    const u16* outputs = core.params.outputs + prefill::outputs_offset<Way>(attention, FROM);
    u32* to = core.mail(FROM) + (attention ? mail::LANES_ATTENTION : mail::LANES_MLP);
    share_out(core, model::LANES * QUADS, [&](int i) {
        const int lane = i / QUADS, q = i % QUADS;
        const uint2 v = __ldcg(reinterpret_cast<const uint2*>(outputs + (size_t(lane) * Way::CHUNK + token) * model::HIDDEN) + q);
        post(to + 4 * i, tagged(make_float4(weight_low(v.x), weight_high(v.x), weight_low(v.y), weight_high(v.y)), epoch));
    });
}

// Waits for: a barrier after the norm that the last layer begins with. Leaves all that decode's last layer reads of the others:
// their words in the mailboxes, and this SM's rows of the residual stream.
template <class Way>
DEVICE void hand_over(Core& core, int token) {
    constexpr int QUADS = model::HIDDEN / 4;
    core.refresh();
    const u32 epoch = core.serial & 1u;
    share_out(core, model::LANES * QUADS, [&](int i) {
        const float4* from = reinterpret_cast<const float4*>(stream(core.params, Way::CHUNK, i / QUADS, token));
        post(core.mail(LAYER - 1) + mail::AFTER_MLP + 4 * i, tagged(__ldcg(from + i % QUADS), epoch));
    });
    if (reads_late(true)) post_late<Way>(core, token, true, epoch);
    if (reads_late(false)) post_late<Way>(core, token, false, epoch);
    post_unread(core, epoch);
    decode::begin_residual(core, [&](int row) {
        return __ldcg(reinterpret_cast<const float2*>(stream(core.params, Way::CHUNK, core.model_lane, token) + row));
    });
}

}  // namespace last_token
