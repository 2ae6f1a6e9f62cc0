#include "worker.h"

#include <algorithm>

#include "panel.h"

namespace ml {

static const Tape* partner_tape(const Team& team, int index) {
  const int partner = team.partner(index);
  return partner < 0 ? nullptr : team.tapes[partner].get();
}
static const Claims* partner_claims(const Team& team, int index) {
  const int partner = team.partner(index);
  return partner < 0 ? nullptr : &team.claims[partner];
}

Worker::Worker(Team& team, int index)
    : team_(team),
      plan_(team.plan),
      index_(index),
      device_(index / team.options.threads),
      thread_(index % team.options.threads),
      local_(*team.device_mail[device_], thread_, team.options.barrier != 0, team.abort),
      global_(*team.team_mail, index, false, team.abort),
      cursor_(plan_, thread_, *team.tapes[index], partner_tape(team, index)),
      stealing_(team.claims[index], partner_claims(team, index)) {
  const MlShape& s = plan_.s;
  const int t = team.columns;
  const int64_t hidden = int64_t(plan_.out_panels) * kLine;
  const int64_t widest = std::max({plan_.qkv_panels, plan_.ffn_panels, plan_.out_panels}) * int64_t(kLine);
  const int64_t experts_met = s.experts ? int64_t(t) * s.experts_chosen : 0;
  const int64_t wide = s.streams > 1 && s.head == ML_LANE ? s.streams : plan_.streams;
  x_ = Vectors(plan_.streams * hidden, t);
  normed_ = Vectors(wide * hidden, t);
  gathered_ = Vectors(std::max(plan_.shards * widest, plan_.ffn_panels * int64_t(kLine) * s.experts_chosen), t);
  heads_ = Vectors(int64_t(plan_.shards) * plan_.q_cols, t);
  outputs_ = Vectors(plan_.shards * hidden, t);
  sum_ = allocate<float>(std::max<int64_t>(wide, 1) * hidden * t);
  received_ = allocate<float>(wide * hidden * t);
  total_ = allocate<float>(wide * hidden * t);
  lines_ = allocate<float>(2 * kLine * t);
  const int64_t most_cols = std::max({s.hidden, plan_.q_cols, plan_.ffn});
  const bool packed = std::any_of(plan_.units_in.begin(), plan_.units_in.end(),
                                  [](const UnitStorage& units) { return units.takes_integers; });
  const int64_t most_blocks = std::max(most_cols / kIntegers * t, int64_t(plan_.ffn / kIntegers) * experts_met);
  if (packed) integers_ = allocate<IntegerBlock>(most_blocks);
  if (s.experts) {
    column_of_ = allocate<float>(s.hidden * t);
    slots_ = allocate<float>(experts_met * kLine);
    routing_ = Routing(s.experts, s.experts_chosen, s.experts_renormalise != 0);
  }
  scores_stride_ = team.positions() + kBlock;
  scores_ = allocate<float>(kMostTogether * scores_stride_);
  // Zero, so that the words behind a head's last are no sentinel.
  const int most_queries = std::max(plan_.group, kMostTogether);
  const int64_t partials = int64_t(most_queries) * panels_of(s.head_dim + 2) * kLine;
  partials_ = allocate<float>(partials);
  std::fill(partials_.get(), partials_.get() + partials, 0.0f);
  parts_.resize(most_queries);
  seen_.resize(most_queries);
  cache_reads_.reserve(int64_t(2) * plan_.shards * plan_.kv_heads * team.options.rows);
  cos_ = allocate<float>(s.rotations * t * (s.head_dim / 2));
  sin_ = allocate<float>(s.rotations * t * (s.head_dim / 2));
  column_ = allocate<float>(std::max(2, most_queries) * s.head_dim);
  for (int kind = 0; kind < 2; ++kind) {
    past_[kind] = Vectors(s.delay * plan_.shards * hidden, t);
    past_sum_[kind] = Vectors(s.delay * hidden, t);
  }
  generations_.resize(team.options.rows);
  scratch_.reserve(s.vocab);
}

// One pass over the weights. With `last`, logits of the last token follow.
template <class Pass>
bool Worker::forward(Pass pass, const int32_t* ids, bool last) {
  embed(pass, ids);
  set_rotations(pass);
  mark(kEmbed, -1);
  for (int layer = 0; layer < plan_.s.layers; ++layer) {
    if (!qkv(pass, layer)) return false;
    mark(kQkv, layer);
    if (!attention(pass, layer)) return false;
    mark(kAttention, layer);
    if (!project(pass, ML_ATTN_OUT, layer, heads_, int64_t(plan_.q_cols) * pass.interleaved)) return false;
    add_out_bias(pass, layer);
    if (!add_outputs(pass, 0, layer)) return false;
    mark(kAttnOut, layer);
    if (!mlp(pass, layer)) return false;
  }
  if constexpr (std::is_same_v<Pass, TokenBlock>) {
    if (all_logits_) {
      if (!head(pass)) return false;
    } else if (last) {
      keep_last_column(pass);
      if (!head(OneToken{pass.position + pass.count - 1, pass.cache})) return false;
    }
  } else if (last || all_logits_) {
    if (!head(pass)) return false;
  }
  mark(kHead, -1);
  peer_base_ += team_.peer_exchanges - (team_.head_peer >= 0 && !all_logits_ && !last ? 1 : 0);
  return true;
}

template <class Pass>
void Worker::embed(Pass pass, const int32_t* ids) {
  const MlShape& s = plan_.s;
  float* x = x_.of(pass.column);
  for (int t = 0; t < pass.count; ++t) team_.read_embedding(ids[t], x + t, pass.count);
  if (s.embedding_scale != 1)
    for (int64_t i = 0; i < int64_t(s.hidden) * pass.count; ++i) x[i] *= s.embedding_scale;
  const int64_t stream = int64_t(s.hidden) * pass.count;
  for (int i = 1; i < plan_.streams; ++i) std::copy(x, x + stream, x + i * stream);
}
void Worker::embed(TokenRows pass, const int32_t* ids) {
  for (int row = 0; row < pass.count; ++row) embed(pass.tokens[row], ids + row);
}

template <class Pass>
bool Worker::qkv(Pass pass, int layer) {
  const int64_t stream = int64_t(plan_.s.hidden) * pass.interleaved;
  norm_streams(pass, team_.vector(ML_ATTN_NORM, layer));
  return project(pass, ML_QKV, layer, normed_, plan_.streams > 1 ? stream : 0);
}

template <class Pass>
bool Worker::gate_up(Pass pass, int layer) {
  const int64_t stream = int64_t(plan_.s.hidden) * pass.interleaved;
  norm_streams(pass, team_.vector(ML_FFN_NORM, layer));
  return project(pass, ML_GATE_UP, layer, normed_, plan_.streams > 1 ? stream : 0);
}

// The MLP of a layer, or its experts.
template <class Pass>
bool Worker::mlp(Pass pass, int layer) {
  if (plan_.s.experts) {
    if (!mix_experts(pass, layer)) return false;
  } else {
    if (!gate_up(pass, layer)) return false;
    mark(kGateUp, layer);
    if (!project(pass, ML_DOWN, layer, gathered_, int64_t(plan_.ffn_panels) * kLine * pass.interleaved)) return false;
  }
  if (!add_outputs(pass, 1, layer)) return false;
  mark(plan_.s.experts ? kExperts : kDown, layer);
  return true;
}

template bool Worker::forward(OneToken, const int32_t*, bool);
template bool Worker::forward(TokenRows, const int32_t*, bool);
template bool Worker::forward(TokenBlock, const int32_t*, bool);

// Ends a phase: adds its time to the profile, and to the trace.
void Worker::mark(Phase phase, int layer) {
  if (!timed_) return;
  const int64_t now = now_ns();
  const int64_t waiting = waited_[kLocal] + waited_[kPeer];
  phase_ns[phase][kWork] += double(now - last_ns_ - waiting);
  phase_ns[phase][kLocal] += double(waited_[kLocal]);
  phase_ns[phase][kPeer] += double(waited_[kPeer]);
  if (traced_) {
    // Waits come last within a phase's exchange; drawn in that order they sum to the truth.
    int64_t at = last_ns_;
    const int64_t parts[3] = {now - last_ns_ - waiting, waited_[kLocal], waited_[kPeer]};
    for (int kind = 0; kind < 3; ++kind) {
      if (parts[kind] > 0)
        spans.push_back({phase, layer, device_, thread_, kind, at - start_ns_, at + parts[kind] - start_ns_});
      at += parts[kind];
    }
  }
  waited_[kLocal] = waited_[kPeer] = 0;
  last_ns_ = now;
}

}  // namespace ml
