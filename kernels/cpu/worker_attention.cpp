// Finished heads and attention. Decode deals (KV head, block of positions) units to the workers of a device and merges what
// belongs to one head; prefill appends a block's keys and values first, and deals (KV head, token) units.
#include <algorithm>
#include <cmath>

#include "attention.h"
#include "worker.h"

namespace ml {

// Rotations of a pass's positions: [rotation][column][pair]. Angles in double: at position 4000 a float32 angle is already
// off by 2e-4.
void Worker::set_rotation(int position, int column) {
  const int half = plan_.s.head_dim / 2;
  for (int rotation = 0; rotation < plan_.s.rotations; ++rotation)
    for (int j = 0; j < half; ++j) {
      const double angle = double(position) * team_.inverse_frequencies[rotation * half + j];
      const double amplitude = team_.amplitudes[rotation * half + j];
      const int64_t at = (int64_t(rotation) * team_.columns + column) * half + j;
      cos_[at] = float(std::cos(angle) * amplitude);
      sin_[at] = float(std::sin(angle) * amplitude);
    }
}
void Worker::set_rotations(OneToken pass) { set_rotation(pass.position, pass.column); }
void Worker::set_rotations(TokenRows pass) {
  for (int row = 0; row < pass.count; ++row) set_rotations(pass.tokens[row]);
}
void Worker::set_rotations(TokenBlock pass) {
  for (int t = 0; t < pass.count; ++t) set_rotation(pass.position + t, t);
}

// The two of a pair lie `apart` words apart, the pairs kStep words. One loop of vectors, once inlined.
template <int kStep>
static void rotate_head(float* __restrict head, const float* __restrict cosines, const float* __restrict sines,
                        int half, int apart) {
  for (int j = 0; j < half; ++j) {
    const float u = head[kStep * j], v = head[kStep * j + apart];
    head[kStep * j] = u * cosines[j] - v * sines[j];
    head[kStep * j + apart] = v * cosines[j] + u * sines[j];
  }
}

static void norm_head(float* head, const float* scale, int dim, float eps) {
  float squares = 0;
  for (int d = 0; d < dim; ++d) squares += head[d] * head[d];
  const float inverse = 1.0f / std::sqrt(squares / float(dim) + eps);
  for (int d = 0; d < dim; ++d) head[d] *= inverse * scale[d];
}

// All that happens to a head between the product and attention, in place: bias, norm, rotation, scale. `head` is the
// number-th of its role in a shard, for the pass's token t.
void Worker::finish_head(float* head, HeadRole role, int layer, int shard, int number, int t) {
  const MlShape& s = plan_.s;
  const int dim = s.head_dim, half = dim / 2;
  if (const float* bias = team_.vector(ML_QKV_BIAS, layer, device_ * plan_.shards + shard)) {
    const int before = role == HeadRole::kQuery ? 0 : plan_.q_heads + (role == HeadRole::kKey ? 0 : plan_.kv_heads);
    const float* mine = bias + (before + number) * dim;
    for (int d = 0; d < dim; ++d) head[d] += mine[d];
  }
  if (role == HeadRole::kValue) return;
  if (const float* scale = team_.vector(role == HeadRole::kQuery ? ML_Q_NORM : ML_K_NORM, layer))
    norm_head(head, scale, dim, s.norm_eps);
  const int rotation = team_.rotations[layer];
  if (rotation >= 0) {
    const int64_t at = (int64_t(rotation) * team_.columns + t) * half;
    s.rope_interleaved ? rotate_head<2>(head, cos_.get() + at, sin_.get() + at, half, 1)
                       : rotate_head<1>(head, cos_.get() + at, sin_.get() + at, half, half);
  }
  if (role == HeadRole::kQuery)
    for (int d = 0; d < dim; ++d) head[d] *= s.attention_scale;
}

// A key and a value, one after the other, as they come out of the product: finished, then appended to the cache.
void Worker::append(const CacheView& cache, float* key_and_value, int layer, int head, int position, int t) {
  const int shard = head / plan_.kv_heads, number = head % plan_.kv_heads;
  float* value = key_and_value + plan_.s.head_dim;
  finish_head(key_and_value, HeadRole::kKey, layer, shard, number, t);
  finish_head(value, HeadRole::kValue, layer, shard, number, t);
  cache.append(position, key_and_value, value);
}

// The sum of a query's weights, its head's sink included: a score without a value, whose part of the softmax is lost.
float Worker::weight_with_sink(const Partial& part, int layer, int query) const {
  const int shard = query / plan_.q_heads, number = query % plan_.q_heads;
  const float* sinks = team_.vector(ML_SINKS, layer, device_ * plan_.shards + shard);
  return sinks ? part.weight + std::exp(sinks[number] - part.peak) : part.weight;
}

AttentionSplit Worker::attention_split(int position, int layer) const {
  const int window = team_.windows[layer];
  return {window ? std::max(0, position + 1 - window) : 0, position + 1, plan_.shards * plan_.kv_heads,
          plan_.threads};
}

// What this worker will read of several requests' caches in a layer.
void Worker::plan_cache_reads(TokenRows pass, int layer) {
  cache_reads_.clear();
  cache_at_ = 0;
  for (int row = 0; row < pass.count; ++row) plan_cache_reads(pass.tokens[row], layer, INT64_MAX);
}
// Of one request, at most `most` bytes. Returns how many.
int64_t Worker::plan_cache_reads(OneToken pass, int layer, int64_t most) {
  const AttentionSplit split = attention_split(pass.position, layer);
  const Range mine = split.heads_of(thread_);
  int64_t left = most;
  auto add = [&](const uint8_t* first, const uint8_t* last) {
    const char* from = reinterpret_cast<const char*>(first);
    const int64_t bytes = std::min<int64_t>(left, last - first);
    cache_reads_.push_back({from, from + bytes});
    left -= bytes;
  };
  for (int head = mine.first; head < mine.last; ++head) {
    const CacheView cache = team_.view(*pass.cache, device_, layer, head);
    const Range positions = split.positions_of(thread_, head);
    const int64_t first = positions.first / kBlock * kBlock, last = panels_of(positions.last) * kBlock;
    add(cache.keys + cache.bytes(first), cache.keys + cache.bytes(last));
    add(cache.values + cache.bytes(positions.first), cache.values + cache.bytes(positions.last));
  }
  return most - left;
}

// Among the products of the queries, keys and values one request's cache is read as the tape is, so that attention finds it
// near: they wait for memory anyway. Returns how many lines after each unit. Those of several requests have no time to spare:
// what attention needs in its beginning is prefetched, and attention itself prefetches the rest.
int Worker::plan_early_reads(OneToken pass, int tensor, int layer) {
  const UnitOrder& order = cursor_.order(tensor);
  if (tensor != ML_QKV || order.count == 0) return 0;
  cache_reads_.clear();
  cache_at_ = 0;
  return int(plan_cache_reads(pass, layer, kCacheAhead) / (64 * std::max(1, std::min(order.count, cursor_.expected(tensor))))) + 1;
}
int Worker::plan_early_reads(TokenRows pass, int tensor, int layer) {
  if (tensor != ML_QKV) return 0;
  plan_cache_reads(pass, layer);
  cache_lead_ = int(kAhead / 64);
  return cache_lead_ / std::max(1, cursor_.expected(tensor)) + 1;
}
void Worker::read_early(OneToken, int lines) {
  while (lines && cache_at_ < cache_reads_.size() && (lines = cache_reads_[cache_at_].touch(lines)) > 0) ++cache_at_;
}
void Worker::read_early(TokenRows, int lines) {
  lines = std::min(lines, cache_lead_);
  cache_lead_ -= lines;
  prefetch_cache(lines);
}

void Worker::prefetch_cache(int lines) {
  while (cache_at_ < cache_reads_.size() && (lines = cache_reads_[cache_at_].prefetch(lines)) > 0) ++cache_at_;
}

// What is to be prefetched while attention reads so many bytes of a cache: as many of those that it reads later, or some of
// the next weights.
inline Stretch Worker::meanwhile(int bytes) {
  const int wanted = bytes / 64;
  if (cache_at_ >= cache_reads_.size()) return cursor_.take_in_run(std::min(kLinesMeanwhile, wanted));
  const Stretch lines = cache_reads_[cache_at_].take(wanted);
  if (lines.lines() < wanted) {
    ++cache_at_;
    prefetch_cache(wanted - lines.lines());
  }
  return lines;
}

bool Worker::attention(OneToken pass, int layer) {
  cache_reads_.clear();
  return attention(TokenRows{1, &pass}, layer);
}

// Each request's token attends as if it were alone; all share an exchange: [thread][request][KV head] partial results.
bool Worker::attention(TokenRows pass, int layer) {
  const int64_t lines = int64_t(plan_.shards) * plan_.kv_heads * lines_a_head();
  float* to = local_.open();
  Range published;
  for (int row = 0; row < pass.count; ++row) {
    const int64_t first = (int64_t(thread_) * pass.count + row) * lines;
    const Range mine = attend_split(pass.tokens[row], layer, to + first * kLine);
    if (!mine.count()) continue;
    if (!published.count()) published.first = int(first) + mine.first;
    published.last = int(first) + mine.last;
  }
  if (!published.count()) local_.clear_stale();
  local_.publish(published.first, published.count());  // nobody reads what lies between two requests' lines
  for (int row = 0; row < pass.count; ++row)
    if (!merge_split(pass.tokens[row], layer, row * lines, pass.count * lines)) return false;
  for (int thread = 0; thread < plan_.threads; ++thread)
    if (!attends(pass, layer, thread) && !local_.read_heartbeat(thread, idle())) return false;
  close_local();
  cache_reads_.clear();
  return true;
}

// Lines that hold the partial results of a KV head's queries: of each head_dim values, then the two numbers of a Partial.
int Worker::lines_a_head() const { return plan_.group * panels_of(plan_.s.head_dim + 2); }

bool Worker::attends(TokenRows pass, int layer, int thread) const {
  for (int row = 0; row < pass.count; ++row)
    if (attention_split(pass.tokens[row].position, layer).heads_of(thread).count()) return true;
  return false;
}

// Attends to this worker's positions of its heads, and publishes each query's partial result. Returns which lines of `out`.
Range Worker::attend_split(OneToken pass, int layer, float* out) {
  const AttentionSplit split = attention_split(pass.position, layer);
  const int dim = plan_.s.head_dim, group = plan_.group, column = pass.column;
  const int lines = panels_of(dim + 2), per_head = lines_a_head();
  const Range mine = split.heads_of(thread_);
  float* packed = partials_.get();
  for (int head = mine.first; head < mine.last; ++head) {
    const CacheView cache = team_.view(*pass.cache, device_, layer, head);
    const int shard = head / plan_.kv_heads, in_shard = head % plan_.kv_heads;
    float* rows = gathered_.of(column) + int64_t(shard) * plan_.qkv_panels * kLine;
    const auto [from, to] = split.positions_of(thread_, head);
    if (to == pass.position + 1) {
      const float* key = rows + int64_t(plan_.q_heads + in_shard) * dim;
      const float* value = key + int64_t(plan_.kv_heads) * dim;
      std::copy(key, key + dim, column_.get());
      std::copy(value, value + dim, column_.get() + dim);
      append(cache, column_.get(), layer, head, pass.position, column);
    }
    float* queries = rows + int64_t(in_shard) * group * dim;
    for (int g = 0; g < group; ++g)
      finish_head(queries + g * dim, HeadRole::kQuery, layer, shard, in_shard * group + g, column);
    std::fill_n(seen_.begin(), group, Range{from, to});
    attend<kTogether>(cache, queries, group, seen_.data(), scores_.get(), scores_stride_, packed, lines * kLine, parts_.data(),
                      [&](int bytes) { return meanwhile(bytes); });
    local_.clear_stale();
    for (int g = 0; g < group; ++g) {
      packed[g * lines * kLine + dim] = parts_[g].peak;
      packed[g * lines * kLine + dim + 1] = parts_[g].weight;
    }
    for (int i = 0; i < per_head; ++i)
      publish_line(out + (int64_t(head) * per_head + i) * kLine, packed + i * kLine);
  }
  return {mine.first * per_head, mine.last * per_head};
}

// A request's part of heads_ becomes the merged results of all workers, [query head][head_dim]. A worker's lines begin at
// `first`, the next one's `a_thread` later.
bool Worker::merge_split(OneToken pass, int layer, int64_t first, int64_t a_thread) {
  const AttentionSplit split = attention_split(pass.position, layer);
  const int dim = plan_.s.head_dim, heads = plan_.shards * plan_.kv_heads, group = plan_.group;
  const int lines = panels_of(dim + 2);
  float *packed = partials_.get(), *merged_heads = heads_.of(pass.column);
  std::vector<float>& weights = scratch_;
  weights.assign(2 * heads * group, 0);
  float* peaks = weights.data() + heads * group;
  for (int thread = 0; thread < plan_.threads; ++thread) {
    const Range theirs = split.heads_of(thread);
    for (int q = theirs.first * group; q < theirs.last * group; ++q) {
      for (int i = 0; i < lines; ++i)
        if (!local_.read(first + thread * a_thread + q * lines + i, packed + i * kLine, idle())) return false;
      const Partial merged = merge({peaks[q], weights[q]}, merged_heads + int64_t(q) * dim,
                                   {packed[dim], packed[dim + 1]}, packed, dim);
      peaks[q] = merged.peak;
      weights[q] = merged.weight;
    }
  }
  for (int q = 0; q < heads * group; ++q) {
    const float total = weight_with_sink({peaks[q], weights[q]}, layer, q);
    for (int d = 0; d < dim; ++d) merged_heads[int64_t(q) * dim + d] /= total;
  }
  return true;
}

bool Worker::attention(TokenBlock pass, int layer) {
  if (!append_block(pass, layer)) return false;
  attend_block(pass, layer);
  return gather_block(pass);
}

// This worker's share of a block's keys and values goes to the cache. Returns when everyone's has.
bool Worker::append_block(TokenBlock pass, int layer) {
  const int dim = plan_.s.head_dim, tokens = pass.count;
  const Range units = share_of(plan_.shards * plan_.kv_heads * tokens, thread_, plan_.threads);
  float* column = column_.get();
  for (int unit = units.first; unit < units.last; ++unit) {
    const int head = unit / tokens, t = unit % tokens, in_shard = head % plan_.kv_heads;
    const float* rows = gathered_.of(0) + int64_t(head / plan_.kv_heads) * plan_.qkv_panels * kLine * tokens + t;
    const float* key = rows + int64_t(plan_.q_heads + in_shard) * dim * tokens;
    const float* value = key + int64_t(plan_.kv_heads) * dim * tokens;
    for (int d = 0; d < dim; ++d) {
      column[d] = key[int64_t(d) * tokens];
      column[dim + d] = value[int64_t(d) * tokens];
    }
    append(team_.view(*pass.cache, device_, layer, head), column, layer, head, pass.position + t, t);
  }
  local_.open();
  local_.clear_stale();
  local_.publish(0, 0);
  for (int thread = 0; thread < plan_.threads; ++thread)
    if (!local_.read_heartbeat(thread, idle())) return false;
  close_local();
  return true;
}

// Attends for this worker's (KV head, token) units, and publishes the result of each. Tokens share a pass over a head's cache.
void Worker::attend_block(TokenBlock pass, int layer) {
  const int group = plan_.group, tokens = pass.count, most = std::max(1, kMostTogether / group);
  const Range units = share_of(plan_.shards * plan_.kv_heads * tokens, thread_, plan_.threads);
  float* to = local_.open();
  local_.clear_stale();
  for (int unit = units.first; unit < units.last;) {
    const int head = unit / tokens, t = unit % tokens;
    const int now = std::min({most, tokens - t, units.last - unit});
    attend_tokens(pass, layer, head, {t, t + now});
    publish_heads(layer, head, now, to + int64_t(unit) * group * panels_of(plan_.s.head_dim) * kLine);
    unit += now;
  }
  const int64_t per_unit = int64_t(group) * panels_of(plan_.s.head_dim);
  local_.publish(units.first * per_unit, units.count() * per_unit);
}

// The queries of a KV head's tokens against what each has seen: sums in partials_, their weights in parts_.
void Worker::attend_tokens(TokenBlock pass, int layer, int head, Range which) {
  const int dim = plan_.s.head_dim, group = plan_.group, tokens = pass.count, window = team_.windows[layer];
  const int shard = head / plan_.kv_heads, in_shard = head % plan_.kv_heads;
  const float* rows = gathered_.of(0) + (int64_t(shard) * plan_.qkv_panels * kLine + in_shard * group * dim) * tokens;
  for (int t = which.first, q = 0; t < which.last; ++t)
    for (int g = 0; g < group; ++g, ++q) {
      float* query = column_.get() + q * dim;
      for (int d = 0; d < dim; ++d) query[d] = rows[int64_t(g * dim + d) * tokens + t];
      finish_head(query, HeadRole::kQuery, layer, shard, in_shard * group + g, t);
      const int last = pass.position + t + 1;
      seen_[q] = {window ? std::max(0, last - window) : 0, last};
    }
  attend<kMostTogether>(team_.view(*pass.cache, device_, layer, head), column_.get(), which.count() * group, seen_.data(),
                        scores_.get(), scores_stride_, partials_.get(), panels_of(dim) * kLine, parts_.data(),
                        [](int) { return NoLines{}; });
}

// What `count` tokens' queries of a KV head have in partials_, normalised, as lines from `to` on.
void Worker::publish_heads(int layer, int head, int count, float* to) {
  const int dim = plan_.s.head_dim, group = plan_.group, lines = panels_of(dim);
  for (int q = 0; q < count * group; ++q) {
    float* mixed = partials_.get() + int64_t(q) * lines * kLine;
    const float total = weight_with_sink(parts_[q], layer, head * group + q % group);
    for (int d = 0; d < dim; ++d) mixed[d] /= total;
    for (int i = 0; i < lines; ++i) publish_line(to + (int64_t(q) * lines + i) * kLine, mixed + i * kLine);
  }
}

// heads_ becomes everyone's results: [query head][head_dim][tokens].
bool Worker::gather_block(TokenBlock pass) {
  const int dim = plan_.s.head_dim, heads = plan_.shards * plan_.kv_heads, group = plan_.group, tokens = pass.count;
  const int lines = panels_of(dim);
  float line[kLine] __attribute__((aligned(64)));
  for (int unit = 0; unit < heads * tokens; ++unit)
    for (int g = 0; g < group; ++g)
      for (int i = 0; i < lines; ++i) {
        if (!local_.read((int64_t(unit) * group + g) * lines + i, line, idle())) return false;
        const int head = unit / tokens, t = unit % tokens;
        float* rows = heads_.of(0) + (int64_t(head * group + g) * dim + i * kLine) * tokens + t;
        for (int r = 0; r < std::min(kLine, dim - i * kLine); ++r) rows[int64_t(r) * tokens] = line[r];
      }
  for (int thread = 0; thread < plan_.threads; ++thread)
    if (share_of(heads * tokens, thread, plan_.threads).count() == 0 && !local_.read_heartbeat(thread, idle()))
      return false;
  close_local();
  return true;
}

}  // namespace ml
