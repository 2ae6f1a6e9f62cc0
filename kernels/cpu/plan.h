// Who computes what. A matrix is a list of panels; a phase's panels are dealt to the threads of a device in
// contiguous, nearly equal ranges, and a thread's ranges of all phases, one after another, are its tape.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "interface.h"
#include "mailbox.h"
#include "storage.h"

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

// In the order of engine.timings.EVERY_PHASE.
enum Phase { kEmbed, kQkv, kAttention, kAttnOut, kRouter, kGateUp, kDown, kExperts, kHead, kSample, kPhases };

// Ids first .. first + count - 1: the rows of a unit of the head.
struct HeadRows {
  int first, count;
};

// Which rows of a tensor a matrix is, in one shard; gate and up are side by side.
struct MatrixRows {
  int tensor, first, count;
};

// How the units of a tensor in one layer are stored. A unit is a panel, or a gate and an up panel. Those of a shard before
// ends[0] are of the first kind, before ends[1] of the second and so on.
struct UnitStorage {
  static constexpr int kKinds = 3;
  int ends[kKinds] = {};
  int storages[kKinds] = {};    // MlStorage; where a unit has two panels: that of the gate, that of the up panel
  int64_t bytes[kKinds] = {};   // of a unit
  int64_t second_panel = 0;     // where it begins in a unit
  bool takes_integers = false;  // some product takes activations as integers

  int kind_of(int in_shard) const { return in_shard < ends[0] ? 0 : in_shard < ends[1] ? 1 : 2; }
  // Of the units before one of a shard.
  int64_t bytes_before(int in_shard) const {
    if (in_shard <= ends[0]) return in_shard * bytes[0];
    int64_t total = ends[0] * bytes[0];
    for (int kind = 1; kind < kKinds && in_shard > ends[kind - 1]; ++kind)
      total += (std::min(in_shard, ends[kind]) - ends[kind - 1]) * bytes[kind];
    return total;
  }
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
  std::vector<int> storages;          // of s.storages, which belongs to the caller
  std::vector<UnitStorage> units_in;  // [layer][tensor of a layer], then the head

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
    storages.assign(s.storages, s.storages + s.layers * kLayerMatrices + 2);
    for (int layer = 0; layer < s.layers; ++layer)
      for (int tensor = ML_QKV; tensor <= ML_DOWN; ++tensor) units_in.push_back(describe_units(tensor, layer));
    units_in.push_back(describe_units(ML_HEAD, 0));
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
  // What a thread's tape has of a tensor. The head of a model without lanes is split over all devices, else each device
  // has its lanes' rows. Experts lie on no tape: which of them a token meets is known too late.
  Range range(int tensor, int device, int thread) const {
    if (s.experts && (tensor == ML_GATE_UP || tensor == ML_DOWN)) return {};
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
  static constexpr int kLayerMatrices = ML_HEAD_ROWS, kLayerTensors = ML_HEAD;

  int storage_of(int matrix, int layer) const {
    return storages[matrix < kLayerMatrices ? layer * kLayerMatrices + matrix
                                            : s.layers * kLayerMatrices + matrix - kLayerMatrices];
  }
  MatrixRows rows_of(int matrix) const {
    const int kv = kv_heads * s.head_dim;
    switch (matrix) {
      case ML_WQ: return {ML_QKV, 0, q_cols};
      case ML_WK: return {ML_QKV, q_cols, kv};
      case ML_WV: return {ML_QKV, q_cols + kv, kv};
      case ML_WO: return {ML_ATTN_OUT, 0, s.hidden};
      case ML_W_GATE:
      case ML_W_UP: return {ML_GATE_UP, 0, ffn};
      case ML_W_DOWN: return {ML_DOWN, 0, s.hidden};
      default: return {ML_HEAD, 0, head_rows};
    }
  }
  // In how many parts a matrix is packed.
  int shards_of(int matrix) const {
    if (matrix == ML_EMBED_ROWS) return 1;
    return matrix == ML_HEAD_ROWS ? (head_by_stream ? s.streams : 1) : s.shards;
  }
  // Which of a list of all tensors, layer by layer, the head last.
  int number_of(int tensor, int layer) const {
    return tensor == ML_HEAD ? s.layers * kLayerTensors : layer * kLayerTensors + tensor;
  }
  const UnitStorage& unit_storage(int tensor, int layer) const { return units_in[number_of(tensor, layer)]; }
  // Bytes of an expert in a layer: its units of gate and up, then those of down.
  int64_t expert_bytes(int layer) const { return down_in_expert(layer) + out_panels * unit_storage(ML_DOWN, layer).bytes[0]; }
  int64_t down_in_expert(int layer) const { return ffn_panels * unit_storage(ML_GATE_UP, layer).bytes[0]; }
  // Bytes of a device's units first .. last - 1.
  int64_t unit_bytes(int tensor, int layer, int first, int last) const {
    return bytes_before(tensor, layer, last) - bytes_before(tensor, layer, first);
  }

 private:
  int64_t bytes_before(int tensor, int layer, int unit) const {
    const UnitStorage& storage = unit_storage(tensor, layer);
    if (shards == 1) return storage.bytes_before(unit);
    const int per_shard = units_per_shard(tensor), shard = unit / per_shard;
    return shard * storage.bytes_before(per_shard) + storage.bytes_before(unit - shard * per_shard);
  }
  UnitStorage describe_units(int tensor, int layer) const {
    static constexpr int kFirst[] = {ML_WQ, ML_WO, ML_W_GATE, ML_W_DOWN, ML_HEAD_ROWS};
    UnitStorage found;
    const int all = units_per_shard(tensor);
    for (int kind = 0; kind < UnitStorage::kKinds; ++kind) {
      const int matrix = kFirst[tensor] + (tensor == ML_QKV || (tensor == ML_GATE_UP && kind == 1) ? kind : 0);
      found.storages[kind] = storage_of(matrix, layer);
      found.bytes[kind] = panel_bytes(found.storages[kind], cols(tensor));
      found.ends[kind] = all;
      found.takes_integers |= ml::takes_integers(found.storages[kind]);
    }
    if (tensor == ML_QKV) {  // a panel on the border of two matrices: both are of one storage
      found.ends[0] = panels_of(q_cols);
      found.ends[1] = panels_of(q_cols + kv_heads * s.head_dim);
    }
    if (tensor == ML_GATE_UP) {
      found.second_panel = found.bytes[0];
      found.bytes[0] += found.bytes[1];
    }
    return found;
  }
};

// Where a thread's units lie on its tape, in bytes: layer by layer, tensor by tensor.
class TapeMap {
 public:
  TapeMap(const Plan& plan, int device, int thread) : plan_(plan), downwards_(Plan::downwards(thread)) {
    for (int tensor = ML_QKV; tensor <= ML_HEAD; ++tensor) ranges_[tensor] = plan.range(tensor, device, thread);
    for (int layer = 0; layer < plan.s.layers; ++layer)
      for (int tensor = ML_QKV; tensor <= ML_DOWN; ++tensor) add(tensor, layer);
    add(ML_HEAD, 0);
  }
  int64_t bytes() const { return bytes_; }
  Range range(int tensor) const { return ranges_[tensor]; }
  int64_t place(int tensor, int layer, int unit) const {
    const Range mine = ranges_[tensor];
    return starts_[plan_.number_of(tensor, layer)] + (downwards_ ? plan_.unit_bytes(tensor, layer, unit + 1, mine.last)
                                                                 : plan_.unit_bytes(tensor, layer, mine.first, unit));
  }

 private:
  void add(int tensor, int layer) {
    starts_.push_back(bytes_);
    bytes_ += plan_.unit_bytes(tensor, layer, ranges_[tensor].first, ranges_[tensor].last);
  }
  const Plan& plan_;
  const bool downwards_;
  Range ranges_[ML_HEAD + 1];
  std::vector<int64_t> starts_;
  int64_t bytes_ = 0;
};

}  // namespace ml
