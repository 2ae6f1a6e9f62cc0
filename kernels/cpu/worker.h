// One thread of the team: its share of every phase, from the embedding to the sampled token.
//
// worker_requests.cpp serves the requests in flight, worker.cpp walks the model (`forward`). A step of the model lies in the
// file of its concern: worker_matmul.cpp, worker_attention.cpp, worker_exchange.cpp, worker_head.cpp,
// worker_sampling.cpp.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cores.h"
#include "products.h"
#include "sampling.h"
#include "team.h"
#include "weight_cursor.h"
#include "work_stealing.h"

namespace ml {

// A pass over the weights computes one token (decode), the next tokens of several requests (decode, too), or a block of prompt
// tokens (prefill). Each step takes one of these and is compiled once for each. A block's vectors lie interleaved,
// [numbers][count]. Those of several requests lie one after another, and whatever is no product with weights treats each as
// one token: what becomes of a request does not depend on how many others there are.
struct OneToken {
  static constexpr int count = 1, interleaved = 1;
  int position;
  const Cache* cache;
  int column = 0;  // which of the pass's tokens it is
};
struct TokenRows {
  static constexpr int interleaved = 1;
  int count;
  const OneToken* tokens;  // the n-th one's column is n
};
struct TokenBlock {
  static constexpr int column = 0;
  int count, interleaved;
  int position;  // of the first token
  const Cache* cache;
};

// One token's product, or those of several requests.
static inline void multiply_tokens(OneToken, int storage, const uint8_t* panel, Columns in, int cols, float* y,
                                   WeightCursor& cursor) {
  multiply_vector(storage, panel, in, cols, y, cursor);
}
static inline void multiply_tokens(TokenRows pass, int storage, const uint8_t* panel, Columns in, int cols, float* y,
                                   WeightCursor& cursor) {
  multiply_vectors(storage, panel, in, pass.count, cols, y, cursor);
}

// Two panels of storages, `second` bytes apart, multiplied side by side: y as those of two multiply_tokens. Returns false if they
// cannot be.
static inline bool multiply_together(OneToken, const int*, const uint8_t*, int64_t, Columns, int, float*, WeightCursor&) {
  return false;
}
static inline bool multiply_together(TokenRows pass, const int* storages, const uint8_t* panel, int64_t second, Columns in,
                                     int cols, float* y, WeightCursor& cursor) {
  if (panels_together(pass.count) < 2 || storages[0] != storages[1] || !takes_integers(storages[0])) return false;
  multiply_panel_pair(storages[0], panel, second, in, pass.count, cols, y, int64_t(pass.count) * kLine, cursor);
  return true;
}
constexpr int panels_together(OneToken) { return 1; }
constexpr int panels_together(TokenRows pass) { return panels_together(pass.count); }

// What a pass has of one kind of vector.
struct Vectors {
  Vectors() = default;
  Vectors(int64_t stride, int columns) : memory(allocate<float>(stride * columns)), stride(stride) {}
  float* of(int column) const { return memory.get() + column * stride; }

  Aligned<float> memory;
  int64_t stride = 0;
};

class Worker {
 public:
  Worker(Team& team, int index);
  // Serves requests until there are none.
  void run();
  // How many it has taken so far.
  uint32_t taken() const { return taken_; }

  double phase_ns[kPhases][3] = {};
  int decoded = 0;
  std::vector<MlSpan> spans;

 private:
  enum Wait { kWork, kLocal, kPeer };
  enum class HeadRole { kQuery, kKey, kValue };

  // A request in flight, as this worker sees it.
  struct Generation {
    Request* request = nullptr;
    int begin = 0;      // prompt tokens that were in the cache when it came
    int read = 0;       // prompt tokens that are in the cache
    int generated = 0;  // tokens
    int position = 0;   // of the last token that was processed
    int32_t token = 0;  // the newest one
    std::vector<uint8_t> seen;     // [id] 1 if it is in the sequence
    std::vector<int32_t> sampled;  // [id] how often it was sampled

    bool is_reading() const { return read < int(request->job.tokens.size()); }
    // How many of them are read in whole blocks: with other tokens beside them the last ones have other bits.
    int whole_blocks(int block) const { return begin + (int(request->job.tokens.size()) - 1 - begin) / block * block; }
  };

  // What a waiting worker does: it prefetches the weights that it will read next, and counts the time.
  struct Idle {
    Worker& worker;
    Wait kind;
    int64_t since = 0;
    void begin() {
      if (worker.timed_) since = now_ns();
      step();
    }
    void step() { worker.prefetch_at_memory_rate(); }
    void end() {
      if (worker.timed_) worker.waited_[kind] += now_ns() - since;
    }
  };
  Idle idle(Wait kind = kLocal) { return {*this, kind}; }
  // The chosen experts' weights are read before what follows on the tape.
  void prefetch_at_memory_rate() {
    const int lines = cursor_.lines_due();
    runs_.next ? runs_.prefetch_near(lines) : cursor_.prefetch_near(lines);
  }

  // worker_requests.cpp. Whatever returns bool returns false if the team aborts.
  void take_arrivals();
  void begin(Generation& generation);
  void begin_profile(const MlJob& job);
  void leave(Generation& generation, int how);
  Generation* find_reader();
  bool share_prompt(Generation& reader);
  bool read_prompt();
  bool next_tokens();
  bool finish_token(Generation& generation, int column);
  bool is_stopped(const Generation& generation) const;
  bool look();
  void write_wishes(float* words) const;
  void read_wishes(const float* words);

  void mark(Phase phase, int layer);

  // The model.
  template <class Pass>
  bool forward(Pass pass, const int32_t* ids, bool last);
  template <class Pass>
  void embed(Pass pass, const int32_t* ids);
  void embed(TokenRows pass, const int32_t* ids);
  template <class Pass>
  bool qkv(Pass pass, int layer);
  template <class Pass>
  bool gate_up(Pass pass, int layer);
  template <class Pass>
  bool mlp(Pass pass, int layer);

  // worker_matmul.cpp
  template <class Pass>
  void norm_streams(Pass pass, const float* scale);
  void norm_streams(TokenRows pass, const float* scale);
  void rms_norm(OneToken, const float* x, const float* scale, float* out);
  void rms_norm(TokenBlock pass, const float* x, const float* scale, float* out);
  template <class Pass>
  bool project(Pass pass, int tensor, int layer, const Vectors& in, int64_t in_shard);
  Columns prepare(OneToken pass, int tensor, int layer, const Vectors& in);
  Columns prepare(TokenRows pass, int tensor, int layer, const Vectors& in);
  Columns prepare(TokenBlock pass, int tensor, int layer, const Vectors& in);
  template <class Pass>
  Range multiply(Pass pass, int tensor, int layer, Columns in, int64_t in_shard, float* to_lines);
  Range multiply(TokenBlock pass, int tensor, int layer, Columns in, int64_t in_shard, float* to_lines);
  template <class Emit>
  bool gather(int tensor, int64_t lines_a_unit, Emit&& emit);
  void close_local();

  // worker_experts.cpp
  template <class Pass>
  bool route(Pass pass, int layer);
  bool mix_experts(OneToken pass, int layer);
  bool mix_experts(TokenBlock pass, int layer);
  bool mix_experts(TokenRows pass, int layer);
  template <class Emit>
  bool gather_shared(int units, int64_t lines, Emit&& emit);
  Columns columns_of(const HitGroup& group, int tokens, const float* normed, bool as_integers);
  template <class Pass>
  bool mix(Pass pass, int layer);
  UnitOrder deal(int units) const;
  void prefetch_bias(MlVector which, int layer, int64_t at);
  const uint8_t* down_panel(int layer, const HitGroup& group, int p) const;
  void plan_downs(int layer);
  bool gate_up_experts(int tokens, const float* normed, int layer);
  void finish_halves(int layer, const HitGroup& group, int panel, float* gate, float* up);
  bool add_experts(int tokens, float* outputs, int layer);
  void keep_outputs(int layer, const HitGroup& group, int panel);
  const float* sum_slots(int token);

  // worker_attention.cpp
  void set_rotations(OneToken pass);
  void set_rotations(TokenRows pass);
  void set_rotations(TokenBlock pass);
  void set_rotation(int position, int column);
  void finish_head(float* head, HeadRole role, int layer, int shard, int number, int t);
  void append(const CacheView& cache, float* key_and_value, int layer, int head, int position, int t);
  bool attention(OneToken pass, int layer);
  bool attention(TokenRows pass, int layer);
  bool attention(TokenBlock pass, int layer);
  int lines_a_head() const;
  bool attends(TokenRows pass, int layer, int thread) const;
  Range attend_split(OneToken pass, int layer, float* out);
  bool merge_split(OneToken pass, int layer, int64_t first, int64_t a_thread);
  bool append_block(TokenBlock pass, int layer);
  void attend_block(TokenBlock pass, int layer);
  void attend_tokens(TokenBlock pass, int layer, int head, Range which);
  void publish_heads(int layer, int head, int count, float* to);
  bool gather_block(TokenBlock pass);
  float weight_with_sink(const Partial& part, int layer, int query) const;
  AttentionSplit attention_split(int position, int layer) const;
  void plan_cache_reads(TokenRows pass, int layer);
  int64_t plan_cache_reads(OneToken pass, int layer, int64_t most);
  int plan_early_reads(OneToken pass, int tensor, int layer);
  int plan_early_reads(TokenRows pass, int tensor, int layer);
  void read_early(OneToken pass, int lines);
  void read_early(TokenRows pass, int lines);
  void prefetch_cache(int lines);
  Stretch meanwhile(int bytes);

  // worker_exchange.cpp
  template <class Pass>
  bool add_outputs(Pass pass, int kind, int layer);
  bool add_outputs(TokenRows pass, int kind, int layer);
  template <class Pass>
  void add_out_bias(Pass pass, int layer);
  void add_out_bias(TokenRows pass, int layer);
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
  bool head_input(TokenRows pass);
  template <class Pass>
  bool merge_streams(Pass pass);
  template <class Pass>
  Range score(Pass pass);
  Range score(TokenBlock pass, float* scores);
  void copy_scores(float* to);

  // worker_sampling.cpp
  struct Proposal {
    float top = -std::numeric_limits<float>::infinity();  // the largest score
    Candidate candidate;                                  // perturbed, if there is a temperature
    float score = 0;                                      // the candidate's own
  };
  // Whose scores are worked on, and where they are: [vocab].
  struct Scored {
    const Generation& generation;
    const MlJob& job;
    float* scores;
  };
  bool sample(const Generation& generation, int column, int32_t* id);
  template <class Visit>
  void each_unit(const Scored& of, Visit&& visit);
  void adjust_scores(const Scored& of);
  Candidate largest_score(const Scored& of);
  Proposal propose(const Scored& of, Candidate largest, float floor);
  bool agree(const Proposal& mine, Proposal* best);
  bool filter(const Scored& of, const Proposal& proposal, bool first, bool* kept);

  static constexpr int kLinesMeanwhile = 24;  // of weights, prefetched in a step of attention
  static constexpr int64_t kCacheAhead = 384 << 10;  // with WeightCursor::kFurthest, most of a second-level cache of 1 MB

  Team& team_;
  const Plan& plan_;
  const int index_, device_, thread_;
  Mailbox local_, global_;
  WeightCursor cursor_;
  WorkStealing stealing_;
  Range head_units_;                  // units of the head whose scores this worker holds
  std::vector<Stretch> cache_reads_;  // what attention will read, in that order
  size_t cache_at_ = 0;
  int cache_lead_ = 0;  // lines that are still to be prefetched before attention begins

  std::vector<Generation> generations_;   // [row]
  std::vector<Generation*> in_flight_;    // in the order in which they came
  uint32_t taken_ = 0, arrived_ = 0;      // requests, ever; those that have arrived by now as worker 0 says
  uint32_t stops_ = 0;                    // a bit for each row whose host wants to stop, as worker 0 says
  float* all_logits_ = nullptr;           // where those of every token of this pass are wanted

  int64_t peer_base_ = 0;  // number of the pass's first peer exchange
  std::vector<std::pair<float*, int64_t>> peer_reads_;  // this worker's share of peer buffers to clear

  Vectors x_, normed_, gathered_, heads_, outputs_;
  // [delay] outputs of this device's shards, and their sum: over all devices if it is known, else over these.
  Vectors past_[2], past_sum_[2];
  Aligned<float> sum_, received_, total_, lines_, scores_, partials_;
  Aligned<float> cos_, sin_;  // [rotation][column][pair]
  Aligned<float> column_;     // one token's key and value, or its queries of one KV head
  Aligned<IntegerBlock> integers_;  // a phase's activations, for packed weights
  Aligned<float> column_of_, slots_;  // an expert's vectors; [token][slot][16] rows of what experts put out
  Routing routing_;
  RunCursor runs_;
  int64_t scores_stride_ = 0;
  std::vector<Partial> parts_;
  std::vector<Range> seen_;   // what each query of a pass over the cache attends to
  WeightSums weight_sums_;
  std::vector<float> scratch_;

  bool timed_ = false, traced_ = false;
  int64_t start_ns_ = 0, last_ns_ = 0;
  int64_t waited_[3] = {};
};

}  // namespace ml
