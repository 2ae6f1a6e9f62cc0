// A mixture of experts in place of the MLP. Three exchanges a layer: the router's scores, from which every worker chooses
// the same experts; what the two halves of each expert give; and the weighted sums. A prompt's tokens are grouped by
// expert, so that an expert's weights are read once a block.
#include <algorithm>

#include "experts.h"
#include "gate.h"
#include "worker.h"

namespace ml {

// `a` comes from memory: what lies behind it is asked for as the tape is.
static float dot(const float* a, const float* b, int count) {
  constexpr int kFloatsAhead = kAhead / 4;
  Vec sums[4] = {};
  int k = 0;
  for (; k + 4 * kWidth <= count; k += 4 * kWidth) {
    for (int i = 0; i < 4 * kWidth; i += 16) __builtin_prefetch(a + k + kFloatsAhead + i);
    for (int i = 0; i < 4; ++i) sums[i] += load(a + k + i * kWidth) * load(b + k + i * kWidth);
  }
  float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; k < count; ++k) total += a[k] * b[k];
  return total;
}

// A panel of an expert times the vectors of those who meet it. y: [count][16].
static void multiply_expert(int storage, const uint8_t* panel, Columns in, int cols, int count, float* y,
                            RunCursor& cursor) {
  if (count == 1) return multiply_vector(storage, panel, in, cols, y, cursor);
  multiply_block(storage, panel, in, cols, count, y);
}

// Asks for the biases of sixteen rows, which are needed after a product: they lie alone in memory and would be waited for.
void Worker::prefetch_bias(MlVector which, int layer, int64_t at) {
  const float* all = team_.vector(which, layer, device_);
  if (!all) return;
  __builtin_prefetch(all + at);
  __builtin_prefetch(all + at + kLine - 1);
}

// This worker's units of so many that lie on no tape, and its partner's.
UnitOrder Worker::deal(int units) const {
  const int partner = team_.partner(index_);
  const int partners = partner < 0 ? 0 : share_of(units, partner % plan_.threads, plan_.threads).count();
  return {share_of(units, thread_, plan_.threads), partners, Plan::downwards(thread_)};
}

// Reads the lines of an exchange whose `units` were dealt by share_of.
template <class Emit>
bool Worker::gather_shared(int units, int64_t lines, Emit&& emit) {
  float line[kLine] __attribute__((aligned(64)));
  for (int64_t i = 0; i < lines; ++i) {
    if (!local_.read(i, line, idle())) return false;
    if (i % 4 == 0) prefetch_at_memory_rate();
    emit(i, line);
  }
  for (int thread = 0; thread < plan_.threads; ++thread)
    if (share_of(units, thread, plan_.threads).count() == 0 && !local_.read_heartbeat(thread, idle())) return false;
  close_local();
  return true;
}

// Scores of all experts, of which each worker computes a share; then everybody chooses.
template <class Pass>
bool Worker::route(Pass pass, int layer) {
  const int hidden = plan_.s.hidden, experts = plan_.s.experts, tokens = pass.count, panels = panels_of(experts);
  norm_streams(pass, team_.vector(ML_FFN_NORM, layer));
  const float *router = team_.vector(ML_ROUTER, layer), *bias = team_.vector(ML_ROUTER_BIAS, layer);
  const Range mine = share_of(panels, thread_, plan_.threads);
  float* to = local_.open();
  local_.clear_stale();
  float line[kLine] __attribute__((aligned(64)));
  const float* normed = normed_.of(pass.column);
  for (int t = 0; t < tokens; ++t) {
    for (int k = 0; k < hidden; ++k) column_of_[k] = normed[int64_t(k) * tokens + t];
    for (int p = mine.first; p < mine.last; ++p) {
      for (int r = 0; r < kLine; ++r) {
        const int e = p * kLine + r;
        line[r] = e < experts ? dot(router + int64_t(e) * hidden, column_of_.get(), hidden) + (bias ? bias[e] : 0) : 0;
      }
      publish_line(to + (int64_t(p) * tokens + t) * kLine, line);
    }
  }
  local_.publish(int64_t(mine.first) * tokens, int64_t(mine.count()) * tokens);
  std::vector<float>& scores = scratch_;
  scores.assign(int64_t(tokens) * experts, 0);
  const bool complete = gather_shared(panels, int64_t(panels) * tokens, [&](int64_t i, const float* from) {
    const int first = int(i / tokens) * kLine, t = int(i % tokens);
    std::copy(from, from + std::min(kLine, experts - first), scores.data() + int64_t(t) * experts + first);
  });
  if (!complete) return false;
  routing_.choose(scores.data(), tokens);
  return true;
}

// outputs_ becomes what the chosen experts add.
bool Worker::mix_experts(OneToken pass, int layer) { return mix_experts(TokenRows{1, &pass}, layer); }

// Each request's experts are read for it alone: a product of theirs with two vectors is another one than with each.
bool Worker::mix_experts(TokenRows pass, int layer) {
  cursor_.pass_phase(ML_GATE_UP, layer);
  cursor_.pass_phase(ML_DOWN, layer);
  for (int row = 0; row < pass.count; ++row)
    if (!mix(pass.tokens[row], layer)) return false;
  return true;
}
bool Worker::mix_experts(TokenBlock pass, int layer) {
  cursor_.skip_phase(ML_GATE_UP, layer);
  cursor_.skip_phase(ML_DOWN, layer);
  return mix(pass, layer);
}

template <class Pass>
bool Worker::mix(Pass pass, int layer) {
  if (!route(pass, layer)) return false;
  mark(kRouter, layer);
  return gate_up_experts(pass.count, normed_.of(pass.column), layer) && add_experts(pass.count, outputs_.of(pass.column), layer);
}

// The normalised vectors of a group's tokens, side by side.
Columns Worker::columns_of(const HitGroup& group, int tokens, const float* normed, bool as_integers) {
  const int hidden = plan_.s.hidden, count = group.count;
  for (int i = 0; i < count; ++i) {
    const float* from = normed + routing_.hit(group.first + i).token;
    for (int k = 0; k < hidden; ++k) column_of_[int64_t(k) * count + i] = from[int64_t(k) * tokens];
  }
  if (as_integers) to_integers(column_of_.get(), hidden, count, integers_.get());
  return {column_of_.get(), integers_.get()};
}

// gathered_ becomes the gated halves of every group: [group][padded columns of an expert][its tokens].
bool Worker::gate_up_experts(int tokens, const float* normed, int layer) {
  const UnitStorage& storage = plan_.unit_storage(ML_GATE_UP, layer);
  const std::vector<HitGroup>& groups = routing_.groups();
  const int panels = plan_.ffn_panels, units = int(groups.size()) * panels;
  const UnitOrder order = deal(units);
  auto line_of = [&](int unit) {
    if (unit == units) return int64_t(routing_.hits()) * panels;
    const HitGroup& group = groups[unit / panels];
    return int64_t(group.first) * panels + int64_t(unit % panels) * group.count;
  };
  auto panel_of = [&](int unit) {
    return team_.expert(device_, layer, groups[unit / panels].expert) + unit % panels * storage.bytes[0];
  };
  runs_.begin();
  for (int k = 0; k < order.count + order.partners; ++k)
    if (groups[order.unit(k) / panels].count == 1) runs_.add(panel_of(order.unit(k)), storage.bytes[0]);
  runs_.start();
  float* to = local_.open();
  const HitGroup* prepared = nullptr;
  Columns in{};
  const int done = stealing_.each_unit(order.count, order.partners, 0, [&](int k, auto) {
    const int unit = order.unit(k);
    const HitGroup& group = groups[unit / panels];
    if (!prepared || (prepared != &group && tokens > 1)) in = columns_of(group, tokens, normed, storage.takes_integers);
    prepared = &group;
    const int64_t bias = int64_t(group.expert) * 2 * plan_.ffn + unit % panels * kLine;
    prefetch_bias(ML_GATE_UP_BIAS, layer, bias);
    prefetch_bias(ML_GATE_UP_BIAS, layer, bias + plan_.ffn);
    float *gate = lines_.get(), *up = gate + group.count * kLine;
    const uint8_t* panel = panel_of(unit);
    multiply_expert(storage.storages[0], panel, in, plan_.s.hidden, group.count, gate, runs_);
    multiply_expert(storage.storages[1], panel + storage.second_panel, in, plan_.s.hidden, group.count, up, runs_);
    finish_halves(layer, group, unit % panels, gate, up);
    if (k == 0) local_.clear_stale();
    for (int i = 0; i < group.count; ++i) publish_line(to + (line_of(unit) + i) * kLine, gate + i * kLine);
  });
  if (done == 0) local_.clear_stale();
  const Range mine = order.range(done);
  local_.publish(line_of(mine.first), line_of(mine.last) - line_of(mine.first));
  plan_downs(layer);
  size_t g = 0;
  return gather_shared(units, line_of(units), [&](int64_t i, const float* line) {
    while (i >= int64_t(groups[g].first + groups[g].count) * panels) ++g;
    const HitGroup& group = groups[g];
    const int64_t start = int64_t(group.first) * panels, p = (i - start) / group.count, t = (i - start) % group.count;
    float* rows = gathered_.of(0) + (start + p * group.count) * kLine + t;
    for (int r = 0; r < kLine; ++r) rows[int64_t(r) * group.count] = line[r];
  });
}

// Biases, then the gate: `gate` becomes the product of both halves. [tokens of the group][16]
void Worker::finish_halves(int layer, const HitGroup& group, int panel, float* gate, float* up) {
  const int ffn = plan_.ffn, first = panel * kLine, rows = std::min(kLine, ffn - first);
  if (const float* all = team_.vector(ML_GATE_UP_BIAS, layer, device_)) {
    const float* bias = all + int64_t(group.expert) * 2 * ffn + first;
    for (int i = 0; i < group.count; ++i)
      for (int r = 0; r < rows; ++r) {
        gate[i * kLine + r] += bias[r];
        up[i * kLine + r] += bias[ffn + r];
      }
  }
  const Gate gated(plan_.s);
  for (int i = 0; i < group.count * kLine; i += kWidth) store(gate + i, gated(load(gate + i), load(up + i)));
}

const uint8_t* Worker::down_panel(int layer, const HitGroup& group, int p) const {
  return team_.expert_down(device_, layer, group.expert) + p * plan_.unit_storage(ML_DOWN, layer).bytes[0];
}

// What this worker will read of the downs is prefetched from now on.
void Worker::plan_downs(int layer) {
  const UnitOrder order = deal(plan_.out_panels);
  runs_.begin();
  for (int k = 0; k < order.count + order.partners; ++k)
    for (const HitGroup& group : routing_.groups())
      if (group.count == 1)
        runs_.add(down_panel(layer, group, order.unit(k)), plan_.unit_storage(ML_DOWN, layer).bytes[0]);
  runs_.start();
}

// `outputs` becomes the sums over each token's experts, in the order of its slots: [padded hidden][tokens].
bool Worker::add_experts(int tokens, float* outputs, int layer) {
  const UnitStorage& storage = plan_.unit_storage(ML_DOWN, layer);
  const std::vector<HitGroup>& groups = routing_.groups();
  const int ffn = plan_.ffn, panels = plan_.out_panels;
  const UnitOrder order = deal(panels);
  auto columns_of_group = [&](const HitGroup& group) {
    const int64_t blocks = int64_t(group.first) * (ffn / kIntegers);
    return Columns{gathered_.of(0) + int64_t(group.first) * plan_.ffn_panels * kLine, integers_.get() + blocks};
  };
  if (storage.takes_integers)
    for (const HitGroup& group : groups) {
      const Columns in = columns_of_group(group);
      to_integers(in.x, ffn, group.count, const_cast<IntegerBlock*>(in.integers));
      prefetch_at_memory_rate();
    }
  float* to = local_.open();
  const int done = stealing_.each_unit(order.count, order.partners, 0, [&](int k, auto) {
    const int p = order.unit(k);
    for (const HitGroup& group : groups) {
      prefetch_bias(ML_DOWN_BIAS, layer, int64_t(group.expert) * plan_.s.hidden + p * kLine);
      multiply_expert(storage.storages[0], down_panel(layer, group, p), columns_of_group(group), ffn, group.count,
                      lines_.get(), runs_);
      keep_outputs(layer, group, p);
    }
    if (k == 0) local_.clear_stale();
    for (int t = 0; t < tokens; ++t) publish_line(to + (int64_t(p) * tokens + t) * kLine, sum_slots(t));
  });
  if (done == 0) local_.clear_stale();
  const Range mine = order.range(done);
  local_.publish(int64_t(mine.first) * tokens, int64_t(mine.count()) * tokens);
  runs_.begin();
  return gather_shared(panels, int64_t(panels) * tokens, [&](int64_t i, const float* line) {
    float* rows = outputs + i / tokens * kLine * tokens + i % tokens;
    for (int r = 0; r < kLine; ++r) rows[int64_t(r) * tokens] = line[r];
  });
}

// Sixteen rows of a group's outputs go to the slots of its tokens.
void Worker::keep_outputs(int layer, const HitGroup& group, int panel) {
  const int first = panel * kLine, rows = std::min(kLine, plan_.s.hidden - first);
  const float* all = team_.vector(ML_DOWN_BIAS, layer, device_);
  const float* bias = all ? all + int64_t(group.expert) * plan_.s.hidden + first : nullptr;
  for (int i = 0; i < group.count; ++i) {
    const Hit& hit = routing_.hit(group.first + i);
    float* slot = slots_.get() + (int64_t(hit.token) * plan_.s.experts_chosen + hit.slot) * kLine;
    std::copy(lines_.get() + i * kLine, lines_.get() + (i + 1) * kLine, slot);
    for (int r = 0; bias && r < rows; ++r) slot[r] += bias[r];
  }
}

// Sixteen rows of the weighted sum over a token's experts.
const float* Worker::sum_slots(int token) {
  const int chosen = plan_.s.experts_chosen;
  float* total = lines_.get();
  const float* slots = slots_.get() + int64_t(token) * chosen * kLine;
  for (int i = 0; i < kLine; i += kWidth) {
    Vec v{};
    for (int slot = 0; slot < chosen; ++slot) v += load(slots + slot * kLine + i) * routing_.weight(token, slot);
    store(total + i, v);
  }
  return total;
}

}  // namespace ml
