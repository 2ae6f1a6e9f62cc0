// One thread of the team: its share of every phase, from the embedding to the sampled token.
//
// worker.cpp runs a job and walks the model (`forward`). A step of the model lies in the file of its concern:
// worker_matmul.cpp, worker_attention.cpp, worker_exchange.cpp, worker_head.cpp,
// worker_sampling.cpp.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cores.h"
#include "experts.h"
#include "packed_panel.h"
#include "sampling.h"
#include "team.h"
#include "weight_cursor.h"
#include "work_stealing.h"

namespace ml {

// A pass over the weights computes one token (decode) or a block of prompt tokens (prefill). Each step takes one of these
// and is compiled once for each. Vectors of a pass are [rows][count].
struct OneToken {
  static constexpr int count = 1;
  int position;
};
struct TokenBlock {
  int count;
  int position;  // of the first token
};

class Worker {
 public:
  Worker(Team& team, int index);
  // Runs the job in hand. Returns how it ended, an MlFinish.
  int run();

  double phase_ns[kPhases][3] = {};
  int decoded = 0;
  std::vector<MlSpan> spans;

 private:
  enum Wait { kWork, kLocal, kPeer };
  enum class HeadRole { kQuery, kKey, kValue };
  enum class Verdict { kAborted, kToken, kTokenThenStop };

  // What a waiting worker does: it prefetches the weights that it will read next, and counts the time.
  struct Idle {
    Worker& worker;
    Wait kind;
    int64_t since = 0;
    void begin() {
      if (worker.timed_) since = now_ns();
      step();
    }
    void step() { worker.cursor_.prefetch_at_memory_rate(); }
    void end() {
      if (worker.timed_) worker.waited_[kind] += now_ns() - since;
    }
  };
  Idle idle(Wait kind = kLocal) { return {*this, kind}; }

  // The job. Whatever returns bool returns false if the team aborts.
  void reset();
  bool prefill(bool* stopped);
  bool run_pass(int position, int count, const int32_t* ids, bool last);
  bool stop_requested(bool* stopped);
  void mark(Phase phase, int layer);

  // The model.
  template <class Pass>
  bool forward(Pass pass, const int32_t* ids, bool last);
  template <class Pass>
  void embed(Pass pass, const int32_t* ids);
  template <class Pass>
  bool qkv(Pass pass, int layer);
  template <class Pass>
  bool gate_up(Pass pass, int layer);
  template <class Pass>
  bool mlp(Pass pass, int layer);

  // worker_matmul.cpp
  template <class Pass>
  void norm_streams(Pass pass, const float* scale);
  void rms_norm(OneToken, const float* x, const float* scale, float* out);
  void rms_norm(TokenBlock pass, const float* x, const float* scale, float* out);
  template <class Pass>
  bool project(Pass pass, int tensor, int layer, const float* in, int64_t in_shard);
  Columns prepare(int tensor, int layer, const float* in, int tokens);
  Range multiply(OneToken pass, int tensor, int layer, Columns in, int64_t in_shard, float* to_lines);
  Range multiply(TokenBlock pass, int tensor, int layer, Columns in, int64_t in_shard, float* to_lines);
  template <class Emit>
  bool gather(int tensor, int64_t lines_a_unit, Emit&& emit);
  void close_local();

  // worker_experts.cpp
  template <class Pass>
  bool route(Pass pass, int layer);
  template <class Pass>
  bool mix_experts(Pass pass, int layer);
  template <class Emit>
  bool gather_shared(int units, int64_t lines, Emit&& emit);
  Columns columns_of(const HitGroup& group, int tokens, bool as_integers);
  bool gate_up_experts(int tokens, int layer);
  void finish_halves(int layer, const HitGroup& group, int panel, float* gate, float* up);
  bool add_experts(int tokens, int layer);
  void keep_outputs(int layer, const HitGroup& group, int panel);
  const float* sum_slots(int token);

  // worker_attention.cpp
  void set_rotations(int position, int count);
  void finish_head(float* head, HeadRole role, int layer, int shard, int number, int t);
  void append(float* key_and_value, int layer, int head, int position, int t);
  bool attention(OneToken pass, int layer);
  bool attention(TokenBlock pass, int layer);
  void attend_split(const AttentionSplit& split, OneToken pass, int layer);
  bool merge_split(const AttentionSplit& split, int layer);
  bool append_block(TokenBlock pass, int layer);
  void attend_block(TokenBlock pass, int layer);
  bool gather_block(TokenBlock pass);
  float weight_with_sink(const Partial& part, int layer, int query) const;
  AttentionSplit attention_split(int position, int layer) const;
  int64_t plan_cache_reads(int position, int layer);
  void read_cache_early(int lines);

  // worker_exchange.cpp
  template <class Pass>
  bool add_outputs(Pass pass, int kind, int layer);
  template <class Pass>
  void add_out_bias(Pass pass, int layer);
  template <class Pass>
  void norm_outputs(Pass pass, const float* scale);
  template <class Pass>
  bool add_over_devices(Pass pass, const float* mine, int peer_exchange);
  void send(int64_t number, const float* rows, int panels, int count);
  bool receive(int64_t number, int from, float* rows, int panels, int count);
  bool poll_peer_line(const float* from, float* line);
  void wait_for_link(int64_t sent);
  void broadcast(const float* words, int count);
  bool read_from(int worker, float* line);

  // worker_head.cpp
  template <class Pass>
  bool head(Pass pass);
  void keep_last_column(TokenBlock pass);
  template <class Pass>
  bool head_input(Pass pass);
  template <class Pass>
  bool merge_streams(Pass pass);
  Range score(OneToken pass, float* scores);
  Range score(TokenBlock pass, float* scores);

  // worker_sampling.cpp
  struct Proposal {
    float top = -std::numeric_limits<float>::infinity();  // the largest score
    Candidate candidate;                                  // perturbed, if there is a temperature
    float score = 0;                                      // the candidate's own
    bool stop = false;
  };
  Verdict sample(int32_t* id);
  template <class Visit>
  void each_unit(Visit&& visit);
  void adjust_scores();
  Candidate largest_score();
  Proposal propose(Candidate largest, float floor);
  bool agree(const Proposal& mine, Proposal* best);
  bool filter(const Proposal& proposal, bool first, bool* kept);

  static constexpr int kLinesMeanwhile = 24;  // prefetched between two steps of attention
  static constexpr int64_t kCacheAhead = 384 << 10;  // with WeightCursor::kFurthest, most of a second-level cache of 1 MB

  // Memory that will be read.
  struct Stretch {
    const char *next, *end;
    // Reads `lines` of it, however long that takes. Returns how many of them were beyond the end.
    int touch(int lines) {
      for (; lines > 0 && next < end; --lines, next += 64) (void)*reinterpret_cast<const volatile char*>(next);
      return lines;
    }
  };

  Team& team_;
  const Plan& plan_;
  const int index_, device_, thread_;
  Mailbox local_, global_;
  WeightCursor cursor_;
  WorkStealing stealing_;
  Range head_units_;                  // units of the head whose scores this worker holds
  std::vector<Stretch> cache_reads_;  // what attention will read, in that order
  size_t cache_at_ = 0;

  int position_ = 0;       // of the last token that was processed
  int64_t peer_base_ = 0;  // number of the pass's first peer exchange
  std::vector<std::pair<float*, int64_t>> peer_reads_;  // this worker's share of peer buffers to clear

  Aligned<float> x_, normed_, gathered_, heads_, outputs_, sum_, received_, total_, lines_, scores_, partials_;
  // [delay] outputs of this device's shards, and their sum: over all devices if it is known, else over these.
  Aligned<float> past_[2], past_sum_[2];
  Aligned<float> cos_, sin_;  // [rotation][token][pair]
  Aligned<float> column_;     // one token's key and value, or its queries of one KV head
  Aligned<IntegerBlock> integers_;  // a phase's activations, for packed weights
  Aligned<float> column_of_, slots_;  // an expert's vectors; [token][slot][16] rows of what experts put out
  Routing routing_;
  RunCursor runs_;
  int64_t scores_stride_ = 0;
  std::vector<Partial> parts_;
  std::vector<uint8_t> seen_;      // [id] 1 if it is in the sequence
  std::vector<int32_t> sampled_;   // [id] how often it was sampled
  WeightSums weight_sums_;
  std::vector<float> scratch_;

  bool timed_ = false, traced_ = false;
  int generated_ = 0;
  int64_t last_ns_ = 0;
  int64_t waited_[3] = {};
};

}  // namespace ml
