// Norms and matrix products: a worker's panels of a matrix, published line by line, and the gathering of everyone's.
#include <algorithm>
#include <cmath>

#include "gate.h"
#include "worker.h"

namespace ml {

// normed_ becomes the norm of each residual stream.
template <class Pass>
void Worker::norm_streams(Pass pass, const float* scale) {
  const int64_t stream = int64_t(plan_.s.hidden) * pass.count;
  const float* x = x_.of(pass.column);
  float* normed = normed_.of(pass.column);
  for (int i = 0; i < plan_.streams; ++i) rms_norm(pass, x + i * stream, scale, normed + i * stream);
}
void Worker::norm_streams(TokenRows pass, const float* scale) {
  for (int row = 0; row < pass.count; ++row) norm_streams(pass.tokens[row], scale);
}
template void Worker::norm_streams(OneToken, const float*);
template void Worker::norm_streams(TokenBlock, const float*);

// [hidden] over its root mean square, times `scale`.
void Worker::rms_norm(OneToken, const float* x, const float* scale, float* out) {
  const int hidden = plan_.s.hidden;
  Vec squares[4] = {};
  int k = 0;
  for (; k + 4 * kWidth <= hidden; k += 4 * kWidth)
    for (int i = 0; i < 4; ++i) {
      const Vec v = load(x + k + i * kWidth);
      squares[i] += v * v;
    }
  float total = sum(squares[0] + squares[1] + squares[2] + squares[3]);
  for (; k < hidden; ++k) total += x[k] * x[k];
  const float inverse = 1.0f / std::sqrt(total / float(hidden) + plan_.s.norm_eps);
  for (int i = 0; i < hidden; ++i) out[i] = x[i] * inverse * scale[i];
}

// [hidden][tokens]: each column over its root mean square, times `scale`.
void Worker::rms_norm(TokenBlock pass, const float* x, const float* scale, float* out) {
  const int hidden = plan_.s.hidden, tokens = pass.count;
  std::vector<float>& inverse = scratch_;
  inverse.assign(tokens, 0);
  for (int k = 0; k < hidden; ++k)
    for (int t = 0; t < tokens; ++t) inverse[t] += x[int64_t(k) * tokens + t] * x[int64_t(k) * tokens + t];
  for (int t = 0; t < tokens; ++t) inverse[t] = 1.0f / std::sqrt(inverse[t] / float(hidden) + plan_.s.norm_eps);
  for (int k = 0; k < hidden; ++k)
    for (int t = 0; t < tokens; ++t)
      out[int64_t(k) * tokens + t] = x[int64_t(k) * tokens + t] * inverse[t] * scale[k];
}

// The columns that meet a tensor, in the form that its storage takes.
Columns Worker::prepare(OneToken pass, int tensor, int layer, const Vectors& in) {
  const float* x = in.of(pass.column);
  if (plan_.unit_storage(tensor, layer).takes_integers) to_integers(x, plan_.cols(tensor), 1, integers_.get());
  return {x, integers_.get()};
}
Columns Worker::prepare(TokenRows pass, int tensor, int layer, const Vectors& in) {
  const int cols = plan_.cols(tensor), blocks = cols / kIntegers;
  if (plan_.unit_storage(tensor, layer).takes_integers)
    for (int row = 0; row < pass.count; ++row) to_integers(in.of(row), cols, 1, integers_.get() + row * blocks);
  return {in.of(0), integers_.get(), in.stride, blocks};
}
Columns Worker::prepare(TokenBlock pass, int tensor, int layer, const Vectors& in) {
  if (plan_.unit_storage(tensor, layer).takes_integers)
    to_integers(in.of(0), plan_.cols(tensor), pass.count, integers_.get());
  return {in.of(0), integers_.get()};
}

// This worker's panels of a tensor times its shard's columns of `in`; results as lines [unit][tokens]. Returns the units.
template <class Pass>
Range Worker::multiply(Pass pass, int tensor, int layer, Columns in, int64_t in_shard, float* to_lines) {
  const UnitOrder& order = cursor_.order(tensor);
  const UnitStorage& storage = plan_.unit_storage(tensor, layer);
  const int cols = plan_.cols(tensor), per_shard = plan_.units_per_shard(tensor), panels = plan_.panels_per_unit(tensor);
  const int count = pass.count, numbers = count * kLine;
  float* y = lines_.get();
  const Gate gated(plan_.s);
  cursor_.begin_phase(tensor, layer);
  const int early_lines = plan_early_reads(pass, tensor, layer);
  auto unit_product = [&](int k, float* to) {
    const int unit = order.unit(k), shard = unit / per_shard;
    const Columns x = in.from(shard * in_shard);
    const uint8_t* tape = cursor_.at(tensor, layer, k);
    if (panels == 1) {
      multiply_tokens(pass, storage.storages[storage.kind_of(unit - shard * per_shard)], tape, x, cols, to, cursor_);
    } else if (!multiply_together(pass, storage.storages, tape, storage.second_panel, x, cols, to, cursor_)) {
      multiply_tokens(pass, storage.storages[0], tape, x, cols, to, cursor_);
      multiply_tokens(pass, storage.storages[1], tape + storage.second_panel, x, cols, to + numbers, cursor_);
    }
  };
  // Of two units of one panel each.
  auto pair_product = [&](int k) {
    const int shard = order.unit(k) / per_shard, one = order.unit(k) % per_shard, other = order.unit(k + 1) % per_shard;
    const int storages[2] = {storage.storages[storage.kind_of(one)], storage.storages[storage.kind_of(other)]};
    const uint8_t* tape = cursor_.at(tensor, layer, k);
    const int64_t second = cursor_.at(tensor, layer, k + 1) - tape;
    const bool one_shard = order.unit(k + 1) / per_shard == shard;
    if (one_shard && multiply_together(pass, storages, tape, second, in.from(shard * in_shard), cols, y, cursor_)) return;
    unit_product(k, y);
    unit_product(k + 1, y + numbers);
  };
  // No part of each_unit, which would cost one token's products a per cent.
  auto compute = [&](int k, auto together) __attribute__((noinline)) {
    cursor_.begin_units(tensor, layer, k, together);
    if constexpr (together == 2)
      pair_product(k);
    else
      unit_product(k, y);
    read_early(pass, together * early_lines);
    if (panels == 2) {
      for (int i = 0; i < numbers; i += kWidth) store(y + i, gated(load(y + i), load(y + numbers + i)));
    }
    if (k == 0) local_.clear_stale();
    for (int n = 0; n < together; ++n)
      for (int i = 0; i < count; ++i)
        publish_line(to_lines + (int64_t(order.unit(k + n)) * count + i) * kLine, y + n * numbers + i * kLine);
  };
  auto each_unit = [&](auto together) {
    return stealing_.each_unit<together>(order.count, order.partners, cursor_.expected(tensor), compute);
  };
  const bool pairs = panels_together(pass) == 2 && panels == 1 && storage.takes_integers;
  const int k = pairs ? each_unit(std::integral_constant<int, 2>{}) : each_unit(std::integral_constant<int, 1>{});
  if (k == 0) local_.clear_stale();
  cursor_.end_phase(tensor, layer, k);
  return order.range(k);
}

Range Worker::multiply(TokenBlock pass, int tensor, int layer, Columns in, int64_t in_shard, float* to_lines) {
  local_.clear_stale();
  const UnitOrder& order = cursor_.order(tensor);
  const UnitStorage& storage = plan_.unit_storage(tensor, layer);
  const int cols = plan_.cols(tensor), per_shard = plan_.units_per_shard(tensor), tokens = pass.count;
  const int panels = plan_.panels_per_unit(tensor);
  float* y = lines_.get();
  const Gate gated(plan_.s);
  for (int k = 0; k < order.count;) {
    const uint8_t* tape = cursor_.at(tensor, layer, k);
    const int unit = order.unit(k), shard = unit / per_shard;
    const Columns x = in.from(shard * in_shard);
    const int kind = storage.kind_of(unit - shard * per_shard), first = storage.storages[kind];
    // Two panels at a time where the registers hold them: a gate and its up, or two of one shard.
    const bool next = panels == 1 && k + 1 < order.count && order.unit(k + 1) / per_shard == shard;
    const int other = panels == 2 ? 1 : next ? storage.kind_of(order.unit(k + 1) - shard * per_shard) : kind;
    const int second = storage.storages[other];
    const bool two = kTilePanels == 2 && (panels == 2 || next) && first == second && !is_packed(first);
    const int now = two && panels == 1 ? 2 : 1;
    if (two) {
      multiply_pair(first, tape, x, cols, tokens, y);
    } else {
      multiply_block(first, tape, x, cols, tokens, y);
      if (panels == 2) multiply_block(second, tape + storage.second_panel, x, cols, tokens, y + tokens * kLine);
    }
    if (panels == 2) {
      for (int i = 0; i < tokens * kLine; i += kWidth)
        store(y + i, gated(load(y + i), load(y + tokens * kLine + i)));
    }
    for (int i = 0; i < now; ++i)
      for (int t = 0; t < tokens; ++t)
        publish_line(to_lines + (int64_t(order.unit(k + i)) * tokens + t) * kLine, y + (i * tokens + t) * kLine);
    k += now;
  }
  cursor_.skip_phase(tensor, layer);
  return order.range(order.count);
}

// Everybody here has read this exchange, and with it what other devices had sent before it.
void Worker::close_local() {
  local_.close();
  for (auto& [at, lines] : peer_reads_) clear_lines(at, lines);
  peer_reads_.clear();
}

// Reads `lines_a_unit` lines of each unit of a phase, in order, from whichever worker published them.
template <class Emit>
bool Worker::gather(int tensor, int64_t lines_a_unit, Emit&& emit) {
  float line[kLine] __attribute__((aligned(64)));
  const int units = plan_.units(tensor);
  for (int unit = 0; unit < units; ++unit)
    for (int64_t i = 0; i < lines_a_unit; ++i) {
      if (!local_.read(unit * lines_a_unit + i, line, idle())) return false;
      if (unit % 4 == 0) prefetch_at_memory_rate();
      emit(unit, int(i), line);
    }
  for (int thread = 0; thread < plan_.threads; ++thread)
    if (plan_.range(tensor, device_, thread).count() == 0 && !local_.read_heartbeat(thread, idle())) return false;
  close_local();
  return true;
}

static inline int column_of(OneToken pass, int) { return pass.column; }
static inline int column_of(TokenRows, int token) { return token; }

// A block's lines, one a token, on their way to rows of tokens: as many as make up a vector are turned at once.
class ColumnBlock {
 public:
  void put(float* rows, int tokens, int token, const float* line) {
    const int last = token % kWidth;
    if (token - last + kWidth > tokens) {  // too few are left
      for (int r = 0; r < kLine; ++r) rows[int64_t(r) * tokens + token] = line[r];
      return;
    }
    for (int part = 0; part < kParts; ++part) std::memcpy(&lines_[part][last], line + part * kWidth, sizeof(IVec));
    if (last + 1 < kWidth) return;
    for (int part = 0; part < kParts; ++part) {
      transpose(lines_[part]);
      for (int r = 0; r < kWidth; ++r)
        std::memcpy(rows + int64_t(part * kWidth + r) * tokens + token - last, &lines_[part][r], sizeof(IVec));
    }
  }

 private:
  static constexpr int kParts = kLine / kWidth;
  IVec lines_[kParts][kWidth];
};

// One phase: multiply, publish, gather all workers' rows as [shard][padded rows][tokens].
template <class Pass>
bool Worker::project(Pass pass, int tensor, int layer, const Vectors& in, int64_t in_shard) {
  float* lines = local_.open();
  const int tokens = pass.count;
  const Range range = multiply(pass, tensor, layer, prepare(pass, tensor, layer, in), in_shard, lines);
  local_.publish(int64_t(range.first) * tokens, int64_t(range.count()) * tokens);
  const Vectors& to = tensor == ML_ATTN_OUT || tensor == ML_DOWN ? outputs_ : gathered_;
  if constexpr (std::is_same_v<Pass, TokenBlock>) {
    return gather(tensor, tokens, [&, block = ColumnBlock()](int unit, int token, const float* line) mutable {
      block.put(to.of(0) + int64_t(unit) * kLine * tokens, tokens, token, line);
    });
  } else {
    return gather(tensor, tokens, [&](int unit, int token, const float* line) {
      float* rows = to.of(column_of(pass, token)) + int64_t(unit) * kLine;
      for (int i = 0; i < kLine; i += kWidth) store(rows + i, load(line + i));
    });
  }
}
template bool Worker::project(OneToken, int, int, const Vectors&, int64_t);
template bool Worker::project(TokenRows, int, int, const Vectors&, int64_t);
template bool Worker::project(TokenBlock, int, int, const Vectors&, int64_t);

}  // namespace ml
