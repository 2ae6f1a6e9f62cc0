// The C interface of the CPU monokernel: plain structs whose first word is their own size, and calls that return
// 0 or an error code. engine/backends/cpu/library.py declares the same, and a test compares the two (ml_layout).
#pragma once

#include <stdint.h>

#define ML_API __attribute__((visibility("default")))

#if defined(__cplusplus)
extern "C" {
#endif

enum MlError {
  ML_OK = 0,
  ML_BAD_STRUCT = 1,   // a struct of another size: library and caller are of different versions
  ML_BAD_SHAPE = 2,    // sizes that do not divide, or are out of range
  ML_NO_MEMORY = 3,
  ML_NO_THREADS = 4,   // the system refused to start a thread
  ML_BUSY = 5,         // a job is running
  ML_BAD_TOKEN = 6,    // a token id outside the vocabulary
  ML_TOO_LONG = 7,     // more positions than the context
  ML_BAD_CACHE = 8,    // no sequence of that number
};

enum MlExchange { ML_LOCAL = 0, ML_SYNC = 1, ML_DELAYED = 2 };
enum MlHead { ML_REPLICATE = 0, ML_VOCAB_PARALLEL = 1, ML_LANE = 2 };
enum MlTensor { ML_QKV = 0, ML_ATTN_OUT = 1, ML_GATE_UP = 2, ML_DOWN = 3, ML_HEAD = 4, ML_EMBED = 5 };
enum MlActivation { ML_SILU = 0, ML_GELU_TANH = 1 };
enum MlVector {
  ML_ATTN_NORM = 0,
  ML_FFN_NORM = 1,
  ML_LAST_NORM = 2,
  ML_ATTN_POST_NORM = 3,
  ML_FFN_POST_NORM = 4,
  ML_Q_NORM = 5,
  ML_K_NORM = 6,
  ML_QKV_BIAS = 7,
};
enum MlFinish { ML_RUNNING = 0, ML_STOP = 1, ML_LENGTH = 2, ML_CANCELLED = 3 };

typedef struct {
  uint32_t size;
  int32_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab, context;
  int32_t streams;  // residual streams: the lanes of a model that has them, else 1
  int32_t shards;   // slices of attention and MLP: the lanes, or one a device for tensor parallelism
  int32_t delay, head, sum_before_norm, tied_head, rope_interleaved;
  int32_t bfloat16;  // the tape holds bfloat16, else float16
  int32_t qkv_bias, qk_norm, post_norms;  // switches
  int32_t activation;                     // MlActivation of the MLP
  float norm_eps, embedding_scale, attention_scale;
  float attention_cap, logit_cap;      // cap * tanh(x / cap); 0 is none
  int32_t rotations;                   // how many different ones
  const int32_t* windows;              // [layers], 0 is full attention
  const int32_t* attention_exchanges;  // [layers] MlExchange
  const int32_t* mlp_exchanges;        // [layers] MlExchange
  const int32_t* layer_rotations;      // [layers] number of a rotation, -1 for a layer without
  const double* inverse_frequencies;   // [rotations][head_dim / 2] radians a position
  const double* amplitudes;            // [rotations][head_dim / 2] what a rotated pair is multiplied by
} MlShape;

typedef struct {
  uint32_t size;
  int32_t devices, threads;  // virtual devices, and threads in each
  int32_t barrier;           // wait for everyone at each exchange, in place of polling words
  int32_t pin;               // one core a thread, if there are enough
  int32_t block;             // prompt tokens a pass of the tape; 0 lets the kernel choose
  int64_t link_latency_ns;   // how much later other devices see what a device sends
} MlTeam;

typedef struct {
  uint32_t size;
  const int32_t* tokens;
  int32_t count, max_tokens;
  int32_t cache;   // the sequence that the job fills; 0 is always there
  int32_t cached;  // positions of it that are there already, fewer than `count`
  const int32_t* stop_ids;
  int32_t stop_count;
  int32_t sampled;  // how many of the last tokens were generated: what frequency and presence count
  float temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
  int32_t top_k;
  int32_t bias_count;
  const int32_t* bias_ids;
  const float* biases;  // added to the logits of bias_ids
  uint64_t seed;
  int32_t profile;
  int32_t trace_first, trace_last;  // generated tokens recorded in full; equal means none
  float* all_logits;                // [count, vocab] or null: logits after each token, nothing is generated
} MlJob;

typedef struct {
  int32_t phase, layer, device, thread;
  int32_t kind;  // 0 work, 1 wait for a thread of the device, 2 wait for another device
  int64_t start_ns, end_ns;
} MlSpan;

typedef struct MlKernel MlKernel;

// Sizes of the structs, offsets of their fields and values of the enums, as lines "MlJob.seed 56".
ML_API const char* ml_layout(void);

ML_API int ml_create(const MlShape* shape, const MlTeam* team, MlKernel** out);
ML_API void ml_destroy(MlKernel* kernel);
// A matrix of one shard, row-major [rows, cols] 16-bit values. qkv: rows of wq, then wk, then wv; gate_up: gate, then
// up. Packed at once; the caller may free it. For the embedding: [vocab, hidden], kept where it is if the head is tied.
ML_API int ml_pack(MlKernel* kernel, int32_t tensor, int32_t layer, int32_t shard, const uint16_t* rows);
// An MlVector in float32: norms are [hidden] or, of single heads, [head_dim]; a shard's bias is that of its qkv rows.
ML_API int ml_vector(MlKernel* kernel, int32_t which, int32_t layer, int32_t shard, const float* values);
// Room for the keys and values of one more sequence; memory is taken as positions are filled.
ML_API int ml_cache_add(MlKernel* kernel, int32_t* number);
ML_API int ml_cache_remove(MlKernel* kernel, int32_t number);
ML_API int ml_cache_copy(MlKernel* kernel, int32_t from, int32_t to, int32_t positions);
ML_API int ml_launch(MlKernel* kernel, const MlJob* job);
// New tokens, at most `capacity`; waits up to `timeout_ns` for one or for the end. Returns how many.
ML_API int32_t ml_poll(MlKernel* kernel, int32_t* ids, int64_t* t_ns, int32_t capacity, int64_t timeout_ns);
ML_API void ml_stop(MlKernel* kernel);
// MlFinish; once it is not ML_RUNNING, the other outputs and the calls below are valid until the next launch. `filled` is
// how many positions of the job's cache hold its tokens.
ML_API int32_t ml_finish(MlKernel* kernel, int64_t* prefill_ns, int32_t* prefilled, int32_t* filled);
// Mean nanoseconds a decode token: out[phase][kind], averaged over threads. Returns the tokens counted.
ML_API int32_t ml_profile(MlKernel* kernel, double* out, int32_t phases);
ML_API int32_t ml_spans(MlKernel* kernel, MlSpan* out, int32_t capacity);
// What `threads` threads together read from memory, GB/s: the best of several passes over a buffer beyond the caches.
ML_API int ml_read_bandwidth(int32_t threads, double* gbs);
// Nanoseconds that a cache line takes between the first two cores that the process may use; 0 if it has only one.
ML_API int ml_core_distance(double* ns);

#if defined(__cplusplus)
}
#endif
