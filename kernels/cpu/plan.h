// Who computes what. A matrix is a list of panels; a phase's panels are dealt to the threads of a device in
// contiguous, nearly equal ranges, and a thread's ranges of all phases, one after another, are its tape.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "interface.h"
#include "mailbox.h"

namespace ml {

// Numbers first .. last - 1.
struct Range {
  int first = 0, last = 0;
  int count() const { return last - first; }
};

// Which of `total` things the part-th of `parts` gets.
static inline Range share_of(int total, int part, int parts) {
  return {int(int64_t(total) * part / parts), int(int64_t(total) * (part + 1) / parts)};
}
static inline int panels_of(int rows) { return (rows + kLine - 1) / kLine; }

constexpr int kBlock = kLine;  // positions in a block of the cache

// Decode's attention: (KV head, block of positions) units are dealt to the threads of a device, so that two threads
// share three heads evenly.
class AttentionSplit {
 public:
  // Positions first .. last - 1, first < last.
  AttentionSplit(int first, int last, int heads, int threads)
      : first_(first), last_(last), first_block_(first / kBlock), blocks_((last - 1) / kBlock + 1 - first_block_),
        heads_(heads), threads_(threads) {}

  Range heads_of(int thread) const {
    const Range units = units_of(thread);
    return units.count() ? Range{units.first / blocks_, (units.last - 1) / blocks_ + 1} : Range{};
  }
  // Of a head that is the thread's, at least in part.
  Range positions_of(int thread, int head) const {
    const Range units = units_of(thread);
    const int from = std::max(0, units.first - head * blocks_), to = std::min(blocks_, units.last - head * blocks_);
    return {std::max(first_, (first_block_ + from) * kBlock), std::min(last_, (first_block_ + to) * kBlock)};
  }

 private:
  Range units_of(int thread) const { return share_of(heads_ * blocks_, thread, threads_); }

  int first_, last_, first_block_, blocks_, heads_, threads_;
};

enum Phase { kEmbed, kQkv, kAttention, kAttnOut, kGateUp, kDown, kHead, kSample, kPhases };

// Ids first .. first + count - 1: the rows of a unit of the head.
struct HeadRows {
  int first, count;
};

// Sizes of one device, derived from the shape once. `shard` counts this device's own.
struct Plan {
  MlShape s;
  int devices, threads;
  int shards, streams;              // of one device
  int q_heads, kv_heads, group;     // of one shard; group: query heads a KV head
  int qkv_rows, q_cols, ffn;        // of one shard
  int qkv_panels, out_panels, ffn_panels;  // of one shard
  int head_cols, head_rows;         // rows of one head shard
  int head_shards, head_panels;     // of one device; panels of one shard (or of the device, if not by lane)
  bool head_by_stream;

  Plan(const MlShape& shape, const MlTeam& team) : s(shape), devices(team.devices), threads(team.threads) {
    shards = s.shards / devices;
    streams = s.streams == 1 ? 1 : s.streams / devices;
    q_heads = s.heads / s.shards;
    kv_heads = s.kv_heads / s.shards;
    group = s.heads / s.kv_heads;
    qkv_rows = (q_heads + 2 * kv_heads) * s.head_dim;
    q_cols = q_heads * s.head_dim;
    ffn = s.ffn / s.shards;
    qkv_panels = panels_of(qkv_rows);
    out_panels = panels_of(s.hidden);
    ffn_panels = panels_of(ffn);
    head_by_stream = s.head == ML_VOCAB_PARALLEL && s.streams > 1;
    head_cols = s.head == ML_LANE ? s.hidden * s.streams : s.hidden;
    head_shards = head_by_stream ? streams : 1;
    head_rows = head_by_stream ? s.vocab / s.streams : s.vocab;
    head_panels = panels_of(head_rows);
  }

  // Work units of a phase on one device: panels, or pairs of a gate and an up panel.
  int units(int tensor) const {
    switch (tensor) {
      case ML_QKV: return shards * qkv_panels;
      case ML_ATTN_OUT:
      case ML_DOWN: return shards * out_panels;
      case ML_GATE_UP: return shards * ffn_panels;
      default: return head_shards * head_panels;
    }
  }
  // The head of a model without lanes is split over all devices, else each device has its lanes' rows.
  Range range(int tensor, int device, int thread) const {
    if (tensor != ML_HEAD || head_by_stream) return share_of(units(tensor), thread, threads);
    return share_of(units(ML_HEAD), device * threads + thread, devices * threads);
  }
  HeadRows head_rows_of(int device, int unit) const {
    const int in_shard = unit % head_panels * kLine;
    const int lane = head_by_stream ? device * streams + unit / head_panels : 0;
    return {lane * head_rows + in_shard, std::min(kLine, head_rows - in_shard)};
  }
  // The unit of the head that holds an id, or -1 if none of this device does.
  int head_unit_of(int device, int id) const {
    if (!head_by_stream) return id / kLine;
    const int lane = id / head_rows - device * streams;
    return lane < 0 || lane >= streams ? -1 : lane * head_panels + id % head_rows / kLine;
  }
  // Threads work in pairs that start at the outer ends of what the two have: the second one's tape runs downwards.
  static bool downwards(int thread) { return thread % 2 == 1; }
  int partner(int thread) const { return (thread ^ 1) < threads ? thread ^ 1 : -1; }
  // The place on a thread's tape of one of its units.
  int place(int tensor, int device, int thread, int unit) const {
    const Range mine = range(tensor, device, thread);
    return downwards(thread) ? mine.last - 1 - unit : unit - mine.first;
  }
  int cols(int tensor) const {
    switch (tensor) {
      case ML_ATTN_OUT: return q_cols;
      case ML_DOWN: return ffn;
      case ML_HEAD: return head_cols;
      default: return s.hidden;
    }
  }
  int panels_per_unit(int tensor) const { return tensor == ML_GATE_UP ? 2 : 1; }
  int units_per_shard(int tensor) const {
    return tensor == ML_HEAD ? head_panels : units(tensor) / shards;
  }
  // 16-bit values that one thread reads for a tensor of one layer.
  int64_t values(int tensor, int device, int thread) const {
    return int64_t(range(tensor, device, thread).count()) * panels_per_unit(tensor) * cols(tensor) * kLine;
  }
  int64_t layer_values(int device, int thread) const {
    int64_t total = 0;
    for (int tensor = ML_QKV; tensor <= ML_DOWN; ++tensor) total += values(tensor, device, thread);
    return total;
  }
  // Where a tensor's first panel lies on the tape of a thread.
  int64_t offset(int tensor, int layer, int device, int thread) const {
    if (tensor == ML_HEAD) return s.layers * layer_values(device, thread);
    int64_t at = layer * layer_values(device, thread);
    for (int before = ML_QKV; before < tensor; ++before) at += values(before, device, thread);
    return at;
  }
  int64_t tape_values(int device, int thread) const {
    return s.layers * layer_values(device, thread) + values(ML_HEAD, device, thread);
  }
};

}  // namespace ml
