// The head: the residual streams become what meets the last matrix, and its rows become scores.
#include <algorithm>

#include "worker.h"

namespace ml {

// The last column of each stream moves to the front: what one token's head wants.
void Worker::keep_last_column(TokenBlock pass) {
  const int hidden = plan_.s.hidden;
  float* x = x_.of(0);
  for (int i = 0; i < plan_.streams; ++i)
    for (int k = 0; k < hidden; ++k)
      x[int64_t(i) * hidden + k] = x[(int64_t(i) * hidden + k) * pass.count + pass.count - 1];
}

// normed_ becomes what meets the head: [head_cols][tokens], or one such block a stream.
template <class Pass>
bool Worker::head_input(Pass pass) {
  if (plan_.s.streams > 1 && !plan_.head_by_stream) return merge_streams(pass);
  norm_streams(pass, team_.vector(ML_LAST_NORM, 0));
  return true;
}
bool Worker::head_input(TokenRows pass) {
  for (int row = 0; row < pass.count; ++row)
    if (!head_input(pass.tokens[row])) return false;
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
  float* normed = normed_.of(pass.column);
  // This device's part: its lanes side by side, or added up.
  std::fill(sum_.get(), sum_.get() + padded * (wide ? plan_.streams : 1), 0.0f);
  for (int i = 0; i < plan_.streams; ++i) {
    const float* from = x_.of(pass.column) + i * stream;
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
        std::copy(part + i * padded, part + i * padded + stream, normed + (from * plan_.streams + i) * stream);
    } else if (from == 0) {
      std::copy(part, part + stream, total_.get());
    } else {
      for (int64_t k = 0; k < stream; ++k) total_[k] += part[k];
    }
  }
  if (!wide && s.sum_before_norm) {
    rms_norm(pass, total_.get(), team_.vector(ML_LAST_NORM, 0), normed);
  } else if (!wide) {
    for (int64_t k = 0; k < stream; ++k) normed[k] = total_[k] / float(s.streams);
  }
  return true;
}

// Scores of one token, or of those of several requests, for the units that this worker gets: the two of a pair claim the middle bit by bit. Each unit
// exactly once, since scores are changed in place where they lie.
template <class Pass>
Range Worker::score(Pass pass) {
  const UnitOrder& order = cursor_.order(ML_HEAD);
  auto middle_of = [](int count) { return std::min(count / 8, SharedMiddle::kMost / 2); };  // more than two cores differ by
  const bool shares = stealing_.has_partner() && order.count > 0 && order.partners > 0;
  const int total = shares ? middle_of(order.count) + middle_of(order.partners) : 0;
  SharedMiddle& middle = team_.middles[index_ - thread_ % 2];
  float* y = lines_.get();
  const int storage = plan_.storage_of(ML_HEAD_ROWS, 0);
  const Columns normed = prepare(pass, ML_HEAD, 0, normed_);
  cursor_.begin_phase(ML_HEAD, 0);
  int k = 0, until = order.count - (shares ? middle_of(order.count) : 0);
  const int64_t numbers = int64_t(pass.count) * kLine;
  const int storages[2] = {storage, storage};
  auto columns_of = [&](int unit) {
    return normed.from(plan_.head_by_stream ? unit / plan_.head_panels * plan_.s.hidden : 0);
  };
  auto score_unit = [&](int unit, float* scores) {
    soft_cap(scores, pass.count * kLine, plan_.s.logit_cap);
    const HeadRows rows = plan_.head_rows_of(device_, unit);
    for (int i = 0; i < pass.count; ++i)
      std::copy(scores + i * kLine, scores + i * kLine + rows.count, team_.scores_of(i) + rows.first);
  };
  do {
    while (k < until) {
      const int together = std::min(until - k, plan_.head_by_stream ? 1 : panels_together(pass));
      const uint8_t* tape = cursor_.at(ML_HEAD, 0, k);
      const int64_t second = together == 2 ? cursor_.at(ML_HEAD, 0, k + 1) - tape : 0;
      const Columns in = columns_of(order.unit(k));
      cursor_.begin_units(ML_HEAD, 0, k, together);
      if (together < 2 || !multiply_together(pass, storages, tape, second, in, plan_.head_cols, y, cursor_))
        for (int n = 0; n < together; ++n)
          multiply_tokens(pass, storage, tape + n * second, in, plan_.head_cols, y + n * numbers, cursor_);
      for (int n = 0; n < together; ++n) score_unit(order.unit(k + n), y + n * numbers);
      k += together;
    }
    until += middle.claim(cursor_.phase(), Plan::downwards(thread_), total);
  } while (k < until);
  cursor_.end_phase(ML_HEAD, 0, k);
  return order.range(k);
}

// Scores of a block's tokens: [token][vocab].
Range Worker::score(TokenBlock pass, float* scores) {
  const UnitOrder& order = cursor_.order(ML_HEAD);
  const int tokens = pass.count;
  const int64_t stream = int64_t(plan_.s.hidden) * tokens;
  float* y = lines_.get();
  const int storage = plan_.storage_of(ML_HEAD_ROWS, 0);
  const Columns normed = prepare(pass, ML_HEAD, 0, normed_);
  for (int k = 0; k < order.count; ++k) {
    const int unit = order.unit(k);
    const Columns in = normed.from(plan_.head_by_stream ? unit / plan_.head_panels * stream : 0);
    multiply_block(storage, cursor_.at(ML_HEAD, 0, k), in, plan_.head_cols, tokens, y);
    soft_cap(y, tokens * kLine, plan_.s.logit_cap);
    const HeadRows rows = plan_.head_rows_of(device_, unit);
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
  if constexpr (std::is_same_v<Pass, TokenBlock>) {
    head_units_ = score(pass, all_logits_);
  } else {
    head_units_ = score(pass);
    if constexpr (std::is_same_v<Pass, OneToken>)
      if (all_logits_) copy_scores(all_logits_);
  }
  return true;
}
template bool Worker::head(OneToken);
template bool Worker::head(TokenRows);
template bool Worker::head(TokenBlock);

// This worker's units of one token's scores.
void Worker::copy_scores(float* to) {
  for (int unit = head_units_.first; unit < head_units_.last; ++unit) {
    const HeadRows rows = plan_.head_rows_of(device_, unit);
    const float* from = team_.scores_of(0) + rows.first;
    std::copy(from, from + rows.count, to + rows.first);
  }
}

}  // namespace ml
