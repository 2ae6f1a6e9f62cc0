// The head: the residual streams become what meets the last matrix, its rows become scores, the team agrees on a token.
#include <algorithm>
#include <limits>

#include "panel.h"
#include "sampling.h"
#include "worker.h"

namespace ml {

// The last column of each stream moves to the front: what one token's head wants.
void Worker::keep_last_column(TokenBlock pass) {
  const int hidden = plan_.s.hidden;
  for (int i = 0; i < plan_.streams; ++i)
    for (int k = 0; k < hidden; ++k)
      x_[int64_t(i) * hidden + k] = x_[(int64_t(i) * hidden + k) * pass.count + pass.count - 1];
}

// normed_ becomes what meets the head: [head_cols][tokens], or one such block a stream.
template <class Pass>
bool Worker::head_input(Pass pass) {
  if (plan_.s.streams > 1 && !plan_.head_by_stream) return merge_streams(pass);
  norm_streams(pass, team_.vector(ML_LAST_NORM, 0));
  return true;
}

// As head_input, for streams that are added up or laid side by side, over all devices.
template <class Pass>
bool Worker::merge_streams(Pass pass) {
  const MlShape& s = plan_.s;
  const int64_t stream = int64_t(s.hidden) * pass.count;
  const int64_t padded = int64_t(plan_.out_panels) * kLine * pass.count;
  const bool wide = s.head == ML_LANE;
  const int panels = plan_.out_panels * (wide ? plan_.streams : 1);
  // This device's part: its lanes side by side, or added up.
  std::fill(sum_.get(), sum_.get() + padded * (wide ? plan_.streams : 1), 0.0f);
  for (int i = 0; i < plan_.streams; ++i) {
    const float* from = x_.get() + i * stream;
    if (!s.sum_before_norm || wide) {
      rms_norm(pass, from, team_.vector(ML_LAST_NORM, 0), total_.get());
      from = total_.get();
    }
    float* to = sum_.get() + (wide ? i * padded : 0);
    for (int64_t k = 0; k < stream; ++k) to[k] += from[k];
  }
  if (team_.head_peer >= 0) send(peer_base_ + team_.head_peer, sum_.get(), panels, pass.count);
  for (int from = 0; from < plan_.devices; ++from) {
    const float* part = sum_.get();
    if (from != device_) {
      if (!receive(peer_base_ + team_.head_peer, from, received_.get(), panels, pass.count)) return false;
      part = received_.get();
    }
    if (wide) {
      for (int i = 0; i < plan_.streams; ++i)
        std::copy(part + i * padded, part + i * padded + stream, normed_.get() + (from * plan_.streams + i) * stream);
    } else if (from == 0) {
      std::copy(part, part + stream, total_.get());
    } else {
      for (int64_t k = 0; k < stream; ++k) total_[k] += part[k];
    }
  }
  if (!wide && s.sum_before_norm) {
    rms_norm(pass, total_.get(), team_.vector(ML_LAST_NORM, 0), normed_.get());
  } else if (!wide) {
    for (int64_t k = 0; k < stream; ++k) normed_[k] = total_[k] / float(s.streams);
  }
  return true;
}

// Which ids the rows of a head unit are: `count` of them from `first` on.
struct HeadRows {
  int first, count;
};
static HeadRows rows_of_unit(const Plan& plan, int device, int unit) {
  const int in_shard = unit % plan.head_panels * kLine;
  const int lane = plan.head_by_stream ? device * plan.streams + unit / plan.head_panels : 0;
  return {lane * plan.head_rows + in_shard, std::min(kLine, plan.head_rows - in_shard)};
}

// Scores of one token, for the units that this worker gets: the two of a pair claim the middle bit by bit. Each unit
// exactly once, since scores are changed in place where they lie.
template <Half kHalf>
Range Worker::score(OneToken, float* scores) {
  const UnitOrder& order = cursor_.order(ML_HEAD);
  auto middle_of = [](int count) { return std::min(count / 8, SharedMiddle::kMost / 2); };  // more than two cores differ by
  const bool shares = stealing_.has_partner() && order.count > 0 && order.partners > 0;
  const int total = shares ? middle_of(order.count) + middle_of(order.partners) : 0;
  SharedMiddle& middle = team_.middles[index_ - thread_ % 2];
  float* y = lines_.get();
  cursor_.begin_phase(ML_HEAD, 0);
  int k = 0, until = order.count - (shares ? middle_of(order.count) : 0);
  do {
    for (; k < until; ++k) {
      const int unit = order.unit(k);
      const float* in = normed_.get() + (plan_.head_by_stream ? unit / plan_.head_panels * plan_.s.hidden : 0);
      cursor_.begin_unit(ML_HEAD, 0, k);
      panel_vector<kHalf>(cursor_.at(ML_HEAD, 0, k), in, plan_.head_cols, y, cursor_);
      soft_cap(y, kLine, plan_.s.logit_cap);
      const HeadRows rows = rows_of_unit(plan_, device_, unit);
      std::copy(y, y + rows.count, scores + rows.first);
    }
    until += middle.claim(cursor_.phase(), Plan::downwards(thread_), total);
  } while (k < until);
  cursor_.end_phase(ML_HEAD, 0, k);
  return order.range(k);
}

// Scores of a block's tokens: [token][vocab].
template <Half kHalf>
Range Worker::score(TokenBlock pass, float* scores) {
  const UnitOrder& order = cursor_.order(ML_HEAD);
  const int tokens = pass.count;
  const int64_t stream = int64_t(plan_.s.hidden) * tokens;
  float* y = lines_.get();
  for (int k = 0; k < order.count; ++k) {
    const int unit = order.unit(k);
    const float* in = normed_.get() + (plan_.head_by_stream ? unit / plan_.head_panels * stream : 0);
    panel_block<kHalf, 1>(cursor_.at(ML_HEAD, 0, k), in, plan_.head_cols, tokens, y);
    soft_cap(y, tokens * kLine, plan_.s.logit_cap);
    const HeadRows rows = rows_of_unit(plan_, device_, unit);
    for (int t = 0; t < tokens; ++t)
      std::copy(y + t * kLine, y + t * kLine + rows.count, scores + int64_t(t) * plan_.s.vocab + rows.first);
  }
  cursor_.skip_phase(ML_HEAD, 0);
  return order.range(order.count);
}

// Logits of this worker's rows, from x_: to the caller's array if it wants those of every token, else to team_.scores.
template <class Pass>
bool Worker::head(Pass pass) {
  if (!head_input(pass)) return false;
  float* all = team_.job.params.all_logits;
  float* to = all ? all + int64_t(pass.position) * plan_.s.vocab : team_.scores.get();
  head_units_ = plan_.s.bfloat16 ? score<Half::kBfloat16>(pass, to) : score<Half::kFloat16>(pass, to);
  return true;
}
template bool Worker::head(OneToken);
template bool Worker::head(TokenBlock);

// True if one of a line of scores is greater.
static bool any_above(const float* scores, float best) {
  bool found = false;
  for (int i = 0; i < kLine; i += kWidth) found |= any(load(scores + i) > best);
  return found;
}

// The next token, agreed by all workers.
Worker::Verdict Worker::sample(int32_t* id) {
  const MlJob& job = team_.job.params;
  const Range units = head_units_;
  float* scores = team_.scores.get();
  const bool greedy = job.temperature == 0, penalised = job.repetition_penalty != 1.0f;
  const bool filtered = !greedy && (job.top_k > 0 || job.top_p < 1.0f || job.min_p > 0);
  auto each_row = [&](auto&& visit) {
    for (int unit = units.first; unit < units.last; ++unit) {
      const HeadRows rows = rows_of_unit(plan_, device_, unit);
      for (int row = rows.first; row < rows.first + rows.count; ++row) visit(row, scores[row]);
    }
  };
  if (penalised || !greedy) {
    each_row([&](int row, float& score) {
      if (penalised && seen_[row]) score = score > 0 ? score / job.repetition_penalty : score * job.repetition_penalty;
      if (!greedy) score /= job.temperature;
    });
  }

  float line[kLine] __attribute__((aligned(64)));
  float floor = -std::numeric_limits<float>::infinity();
  if (filtered) {
    for (int round = 0; round < 2; ++round) {
      // First everyone's scores are complete, then worker 0 says which are kept.
      if (round == 1 && index_ == 0) floor = filter_threshold(scores, plan_.s.vocab, job, scratch_);
      broadcast(&floor, 1);
      for (int worker = 0; worker < team_.workers; ++worker) {
        if (!read_from(worker, line)) return Verdict::kAborted;
        if (worker == 0) floor = line[0];
      }
      global_.close();
    }
  }
  Candidate best;
  if (greedy) {
    for (int unit = units.first; unit < units.last; ++unit) {
      const HeadRows rows = rows_of_unit(plan_, device_, unit);
      if (rows.count == kLine && best.id != INT32_MAX && !any_above(scores + rows.first, best.score)) continue;
      for (int row = rows.first; row < rows.first + rows.count; ++row)
        if (scores[row] > best.score || best.id == INT32_MAX) best = {scores[row], row};
    }
  } else {
    Draw draw(job.seed, position_ + 1);
    each_row([&](int row, float score) {
      if (score >= floor) draw.consider(row, score);
    });
    best = draw.best;
  }
  // An id in two words that no NaN can be.
  const int32_t mine = best.id == INT32_MAX ? -1 : best.id;
  const bool stop_requested = index_ == 0 && team_.stop.load(std::memory_order_relaxed);
  const float words[] = {best.score, float((mine + 1) & 0xFFFF), float((mine + 1) >> 16), stop_requested ? 1.0f : 0.0f};
  broadcast(words, 4);
  Candidate winner;
  bool stop = false;
  for (int worker = 0; worker < team_.workers; ++worker) {
    if (!read_from(worker, line)) return Verdict::kAborted;
    const int32_t theirs = (int32_t(line[1]) | int32_t(line[2]) << 16) - 1;
    const Candidate candidate{line[0], theirs};
    if (theirs >= 0 && (winner.id == INT32_MAX || candidate.beats(winner))) winner = candidate;
    if (worker == 0) stop = line[3] != 0;
  }
  global_.close();
  // Logits that are all NaN have no best; the lowest id is what the reference's argmax would say.
  *id = winner.id == INT32_MAX ? 0 : winner.id;
  return stop ? Verdict::kTokenThenStop : Verdict::kToken;
}

}  // namespace ml
