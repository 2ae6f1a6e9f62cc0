// What all workers of a kernel share: packed weights, caches, mailboxes, and the job in hand.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "attention.h"
#include "exchange.h"
#include "interface.h"
#include "pages.h"
#include "plan.h"
#include "token_ring.h"
#include "weight_cursor.h"
#include "work_stealing.h"

namespace ml {

// A job as the team sees it: everything that the caller's pointers pointed to, copied.
struct Job {
  MlJob params{};
  std::vector<int32_t> tokens, stop_ids, bias_ids;
  std::vector<float> biases;
  int limit = 0;  // tokens it may produce
};

// Keys and values of one sequence: [device], each [layer][KV head][positions].
struct Cache {
  std::vector<Pages<uint8_t>> keys, values;
};

constexpr int kMostRows = 8;

// A row: the place of one request in flight. What the host and the workers tell each other of it.
struct Request {
  Job job;
  const Cache* cache = nullptr;
  TokenRing ring;
  std::atomic<bool> stop{false};
  std::atomic<int> inside{0};              // workers that are not through with it
  std::atomic<int32_t> finish{ML_LENGTH};  // ML_RUNNING while it is in flight
  std::atomic<int32_t> prefilled{0};       // prompt tokens in the cache, those of an earlier job included
  std::atomic<int32_t> filled{0};          // positions in the cache
  std::atomic<int32_t> cached{0};          // of the prompt's those that others have computed
  int64_t start_ns = 0, prefill_ns = 0;

  bool is_running() const { return finish.load(std::memory_order_acquire) == ML_RUNNING; }
};

constexpr int kVectors = ML_DOWN_BIAS + 1;

struct Team {
  Team(const MlShape& shape, const MlTeam& team);

  const Plan plan;
  const MlTeam options;
  const int workers;
  const int block;    // prompt tokens a pass over the weights
  const int columns;  // vectors that a pass has at most
  std::vector<int> windows;           // [layer]
  std::vector<int> exchanges[2];      // [attention, MLP][layer]
  std::vector<int> peer_number[2];    // number of a layer's sum among a pass's peer exchanges, -1 if none is sent
  int peer_exchanges = 0;             // of a pass, the head's included
  int head_peer = -1;
  std::vector<int> rotations;         // [layer], -1 for a layer without
  std::vector<double> inverse_frequencies, amplitudes;  // [rotation][head_dim / 2]

  std::vector<std::unique_ptr<Tape>> tapes;                 // [worker]
  std::vector<const uint8_t*> head_panels;                  // every panel of the head, wherever it lies
  Pages<uint8_t> embedding;                                 // only if the head is not tied: rows, or packed panels
  std::vector<float> vectors[kVectors];                     // [MlVector]: [layer][shard][values], those that are in use
  std::vector<Pages<uint8_t>> experts;                      // [device]: [layer][expert], if the model has any
  std::vector<int64_t> expert_starts;                       // [layer]: where its experts begin
  std::vector<std::unique_ptr<Cache>> caches;               // sequences; a job names one. For the host's threads alone
  std::vector<std::unique_ptr<MailboxBuffer>> device_mail;  // [device]
  std::unique_ptr<MailboxBuffer> team_mail;                 // all workers: sampling and control
  std::vector<std::unique_ptr<PeerMailbox>> peer_mail;      // [device]
  Aligned<float> scores;                                    // [column of a pass][vocab, padded]
  std::vector<Claims> claims;                               // [worker]
  std::vector<SharedMiddle> middles;                        // [worker]: of the head, a pair uses its first worker's

  std::vector<Request> requests;      // [row]
  int joining[kMostRows] = {};        // the row of the n-th request that ever arrived, at n % kMostRows
  std::atomic<uint32_t> arrived{0};   // how many have
  std::atomic<bool> abort{false};
  std::atomic<int> running{0};        // workers that have not left the launch in hand

  std::mutex mutex;  // of what follows, and of changes of `arrived`
  std::condition_variable wake;
  int64_t launches = 0;
  bool launched = false;
  bool quit = false;

  // The host: a request is in its row, and a launch that has begun, or begins, takes it.
  void join(int row);
  // The last worker that leaves a launch, of which `taken` requests were taken in all: another begins if one has arrived since.
  void end_launch(uint32_t taken);
  bool is_busy() const;

  // The embedding of a token, [hidden], `step` apart.
  void read_embedding(int id, float* out, int64_t step) const;
  // Where a unit of a device's tensor is kept.
  uint8_t* unit(int tensor, int layer, int device, int number) const;
  // Where a device has an expert of a layer: gates and ups, then downs.
  uint8_t* expert(int device, int layer, int number) const {
    return experts[device].data() + expert_starts[layer] + number * plan.expert_bytes(layer);
  }
  uint8_t* expert_down(int device, int layer, int number) const {
    return expert(device, layer, number) + plan.down_in_expert(layer);
  }
  int64_t positions() const { return int64_t(panels_of(plan.s.context)) * kBlock; }
  float* scores_of(int column) const { return scores.get() + column * int64_t(panels_of(plan.s.vocab) + 1) * kLine; }
  // Where a sequence has a KV head of a layer.
  CacheView view(const Cache& cache, int device, int layer, int head) const {
    CacheView found{cache.keys[device].data(), cache.values[device].data(), plan.s.head_dim, options.fp8_cache != 0,
                    plan.s.attention_cap};
    const int64_t at = found.bytes((layer * cache_heads() + head) * positions());
    found.keys += at;
    found.values += at;
    return found;
  }
  int cache_heads() const { return plan.shards * plan.kv_heads; }  // of a device, in one layer
  // Makes room for a sequence. Returns its number.
  int add_cache();
  void remove_cache(int number) { caches[number].reset(); }
  // The first `count` positions of a sequence become those of another: of all layers' KV heads one part of `parts`.
  void copy_cache(const Cache& from, const Cache& to, int count, int part = 0, int parts = 1) const;
  // What a sequence has of its first `count` positions: [layer][KV head of the model][position][head_dim].
  void read_cache(int number, int count, float* keys, float* values) const;
  // A vector of a layer; null if the model has none of the kind.
  const float* vector(MlVector which, int layer, int shard = 0) const {
    const auto& all = vectors[which];
    return all.empty() ? nullptr : all.data() + vector_at(which, layer, shard);
  }
  int64_t vector_at(int which, int layer, int shard) const;
  int64_t vector_size(int which) const;
  // Whether every shard has a part of its own.
  static bool is_cut(int which) { return which == ML_QKV_BIAS || which == ML_OUT_BIAS || which == ML_SINKS || which >= ML_GATE_UP_BIAS; }
  // The worker that shares its phases with worker `index`, or -1. Behind a barrier there is no stealing.
  int partner(int index) const {
    const int found = plan.partner(index % plan.threads);
    return found < 0 || options.barrier ? -1 : index / plan.threads * plan.threads + found;
  }

 private:
  void launch();
  void number_peer_exchanges();
  void allocate_device(int device);
  int64_t mailbox_lines() const;
};

}  // namespace ml
