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
  const int64_t t = team.block, hidden = int64_t(plan_.out_panels) * kLine;
  const int64_t widest = std::max({plan_.qkv_panels, plan_.ffn_panels, plan_.out_panels}) * int64_t(kLine);
  const int64_t experts_met = s.experts ? t * s.experts_chosen : 0;
  const int64_t wide = s.streams > 1 && s.head == ML_LANE ? s.streams : plan_.streams;
  x_ = allocate<float>(plan_.streams * hidden * t);
  normed_ = allocate<float>(wide * hidden * t);
  gathered_ = allocate<float>(std::max(plan_.shards * widest * t, plan_.ffn_panels * int64_t(kLine) * experts_met));
  heads_ = allocate<float>(int64_t(plan_.shards) * plan_.q_cols * t);
  outputs_ = allocate<float>(plan_.shards * hidden * t);
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
  scores_ = allocate<float>(kTogether * scores_stride_);
  // Zero, so that the words behind a head's last are no sentinel.
  const int64_t partials = int64_t(plan_.group) * panels_of(s.head_dim + 2) * kLine;
  partials_ = allocate<float>(partials);
  std::fill(partials_.get(), partials_.get() + partials, 0.0f);
  parts_.resize(plan_.group);
  cache_reads_.reserve(int64_t(2) * plan_.shards * plan_.kv_heads);
  cos_ = allocate<float>(s.rotations * t * (s.head_dim / 2));
  sin_ = allocate<float>(s.rotations * t * (s.head_dim / 2));
  column_ = allocate<float>(std::max(2, plan_.group) * s.head_dim);
  for (int kind = 0; kind < 2; ++kind) {
    past_[kind] = allocate<float>(s.delay * plan_.shards * hidden * t);
    past_sum_[kind] = allocate<float>(s.delay * hidden * t);
  }
  seen_.assign(s.vocab, 0);
  sampled_.assign(s.vocab, 0);
  scratch_.reserve(s.vocab);
}

void Worker::reset() {
  const Job& job = team_.job;
  std::fill(seen_.begin(), seen_.end(), 0);
  for (int32_t token : job.tokens) seen_[token] = 1;
  std::fill(sampled_.begin(), sampled_.end(), 0);
  for (auto token = job.tokens.end() - job.params.sampled; token != job.tokens.end(); ++token) ++sampled_[*token];
  for (auto& phase : phase_ns) std::fill(phase, phase + 3, 0.0);
  decoded = 0;
  generated_ = 0;
  spans.clear();
  traced_ = job.params.trace_first == 0 && job.params.trace_last > 0;
  timed_ = traced_;
  last_ns_ = now_ns();
  waited_[kLocal] = waited_[kPeer] = 0;
}

int Worker::run() {
  const Job& job = team_.job;
  const MlJob& params = job.params;
  reset();
  bool stopped = false;
  if (!prefill(&stopped) || stopped) return ML_CANCELLED;
  if (params.all_logits) return ML_LENGTH;

  while (true) {
    int32_t id;
    const Verdict verdict = sample(&id);
    if (verdict == Verdict::kAborted) return ML_CANCELLED;
    mark(kSample, -1);
    // The first token comes out of the prefill: its phases are no part of a decode token's mean.
    if (generated_ == 0) {
      for (auto& phase : phase_ns) std::fill(phase, phase + 3, 0.0);
    } else {
      ++decoded;
    }
    if (std::find(job.stop_ids.begin(), job.stop_ids.end(), id) != job.stop_ids.end()) return ML_STOP;
    seen_[id] = 1;
    ++sampled_[id];
    if (index_ == 0) team_.ring.push(id, now_ns() - team_.start_ns);
    ++generated_;
    if (verdict == Verdict::kTokenThenStop) return ML_CANCELLED;
    if (generated_ == job.limit) return ML_LENGTH;
    traced_ = params.trace_first <= generated_ && generated_ < params.trace_last;
    const bool was_timed = timed_;
    timed_ = params.profile != 0 || traced_;
    if (timed_ && !was_timed) last_ns_ = now_ns();
    ++position_;
    if (!forward(OneToken{position_}, &id, true)) return ML_CANCELLED;
    if (index_ == 0) team_.filled.store(position_ + 1, std::memory_order_relaxed);
  }
}

// The prompt, in blocks. Worker 0 says before each block whether the host wants to stop.
bool Worker::prefill(bool* stopped) {
  const std::vector<int32_t>& tokens = team_.job.tokens;
  const int total = int(tokens.size());
  for (int at = team_.job.params.cached; at < total;) {
    if (!stop_requested(stopped)) return false;
    if (*stopped) return true;
    const int count = std::min(team_.block, total - at);
    if (!run_pass(at, count, tokens.data() + at, at + count == total)) return false;
    at += count;
    if (index_ == 0) {
      team_.prefilled.store(at, std::memory_order_relaxed);
      team_.filled.store(at, std::memory_order_relaxed);
      team_.ring.ring();
    }
  }
  position_ = total - 1;
  if (index_ == 0) team_.prefill_ns = now_ns() - team_.start_ns;
  return true;
}

bool Worker::run_pass(int position, int count, const int32_t* ids, bool last) {
  return count == 1 ? forward(OneToken{position}, ids, last) : forward(TokenBlock{count, position}, ids, last);
}

// All workers must agree, so worker 0 reads the flag for everyone.
bool Worker::stop_requested(bool* stopped) {
  const float requested = index_ == 0 && team_.stop.load(std::memory_order_relaxed) ? 1.0f : 0.0f;
  broadcast(&requested, 1);
  float line[kLine] __attribute__((aligned(64)));
  for (int worker = 0; worker < team_.workers; ++worker) {
    if (!read_from(worker, line)) return false;
    if (worker == 0) *stopped = line[0] != 0;
  }
  global_.close();
  return true;
}

// One pass over the weights. With `last`, logits of the last token follow.
template <class Pass>
bool Worker::forward(Pass pass, const int32_t* ids, bool last) {
  embed(pass, ids);
  set_rotations(pass.position, pass.count);
  mark(kEmbed, -1);
  for (int layer = 0; layer < plan_.s.layers; ++layer) {
    if (!qkv(pass, layer)) return false;
    mark(kQkv, layer);
    if (!attention(pass, layer)) return false;
    mark(kAttention, layer);
    if (!project(pass, ML_ATTN_OUT, layer, heads_.get(), int64_t(plan_.q_cols) * pass.count)) return false;
    add_out_bias(pass, layer);
    if (!add_outputs(pass, 0, layer)) return false;
    mark(kAttnOut, layer);
    if (!mlp(pass, layer)) return false;
  }
  const bool all = team_.job.params.all_logits != nullptr;
  if (all) {
    if (!head(pass)) return false;
  } else if (last) {
    if constexpr (std::is_same_v<Pass, TokenBlock>) keep_last_column(pass);
    if (!head(OneToken{pass.position + pass.count - 1})) return false;
  }
  mark(kHead, -1);
  peer_base_ += team_.peer_exchanges - (team_.head_peer >= 0 && !all && !last ? 1 : 0);
  return true;
}

template <class Pass>
void Worker::embed(Pass pass, const int32_t* ids) {
  const MlShape& s = plan_.s;
  for (int t = 0; t < pass.count; ++t) team_.read_embedding(ids[t], x_.get() + t, pass.count);
  if (s.embedding_scale != 1)
    for (int64_t i = 0; i < int64_t(s.hidden) * pass.count; ++i) x_[i] *= s.embedding_scale;
  const int64_t stream = int64_t(s.hidden) * pass.count;
  for (int i = 1; i < plan_.streams; ++i) std::copy(x_.get(), x_.get() + stream, x_.get() + i * stream);
}

template <class Pass>
bool Worker::qkv(Pass pass, int layer) {
  const int64_t stream = int64_t(plan_.s.hidden) * pass.count;
  norm_streams(pass, team_.vector(ML_ATTN_NORM, layer));
  return project(pass, ML_QKV, layer, normed_.get(), plan_.streams > 1 ? stream : 0);
}

template <class Pass>
bool Worker::gate_up(Pass pass, int layer) {
  norm_streams(pass, team_.vector(ML_FFN_NORM, layer));
  return project(pass, ML_GATE_UP, layer, normed_.get(), plan_.streams > 1 ? int64_t(plan_.s.hidden) * pass.count : 0);
}

// The MLP of a layer, or its experts.
template <class Pass>
bool Worker::mlp(Pass pass, int layer) {
  if (plan_.s.experts) {
    if (!route(pass, layer)) return false;
    mark(kRouter, layer);
    if (!mix_experts(pass, layer)) return false;
  } else {
    if (!gate_up(pass, layer)) return false;
    mark(kGateUp, layer);
    if (!project(pass, ML_DOWN, layer, gathered_.get(), int64_t(plan_.ffn_panels) * kLine * pass.count)) return false;
  }
  if (!add_outputs(pass, 1, layer)) return false;
  mark(plan_.s.experts ? kExperts : kDown, layer);
  return true;
}

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
        spans.push_back({phase, layer, device_, thread_, kind, at - team_.start_ns, at + parts[kind] - team_.start_ns});
      at += parts[kind];
    }
  }
  waited_[kLocal] = waited_[kPeer] = 0;
  last_ns_ = now;
}

}  // namespace ml
