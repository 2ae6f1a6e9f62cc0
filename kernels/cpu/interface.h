// The C interface of the CPU monokernel: plain structs whose first word is their own size, and calls that return
// 0 or an MlError. The structs and enums are in contract.h, which engine/backends/cpu/contract.py writes.
#pragma once

#include "contract.h"

#define ML_API __attribute__((visibility("default")))

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct MlKernel MlKernel;

ML_API int ml_create(const MlShape* shape, const MlTeam* team, MlKernel** out);
ML_API void ml_destroy(MlKernel* kernel);
// An MlMatrix of one shard, row by row in its storage (storage.h). `scales`, [rows][columns / 128], are those of FP8.
// Packed at once; the caller may free it. An embedding that is tied to the head is ignored.
ML_API int ml_pack(MlKernel* kernel, int32_t matrix, int32_t layer, int32_t shard, const void* rows, const float* scales);
// As ml_pack: one expert's MLP, W_GATE to W_DOWN.
ML_API int ml_pack_expert(MlKernel* kernel, int32_t matrix, int32_t layer, int32_t expert, int32_t shard, const void* rows,
                          const float* scales);
// An MlVector in float32: norms are [hidden] or, of single heads, [head_dim]; a shard's bias is that of its qkv rows, its
// sinks are those of its query heads. Of experts: the router [experts][hidden] and its bias [experts]; [experts][2][columns of a
// shard] of the gates and ups; [experts][hidden] of the downs. Biases of a sum over devices are the first shard's.
ML_API int ml_vector(MlKernel* kernel, int32_t which, int32_t layer, int32_t shard, const float* values);
// Room for the keys and values of one more sequence; memory is taken as positions are filled. These three may be called while
// other sequences are being filled, by one thread at a time.
ML_API int ml_cache_add(MlKernel* kernel, int32_t* number);
ML_API int ml_cache_remove(MlKernel* kernel, int32_t number);
ML_API int ml_cache_copy(MlKernel* kernel, int32_t from, int32_t to, int32_t positions);
// What is kept of a sequence that nothing fills, as float32: both [layers][KV heads][positions][head_dim].
ML_API int ml_cache_read(MlKernel* kernel, int32_t number, int32_t positions, float* keys, float* values);
// Starts a job, or lets it join those in flight between two of their tokens, in a row that none of them has. ML_BUSY if the row
// is taken, or if this job or one in flight wants a profile or a trace: then it must have the team to itself.
ML_API int ml_launch(MlKernel* kernel, const MlJob* job);
// A row's new tokens, at most `capacity`; waits up to `timeout_ns` for one or for the end. Returns how many.
ML_API int32_t ml_poll(MlKernel* kernel, int32_t row, int32_t* ids, int64_t* t_ns, int32_t capacity, int64_t timeout_ns);
ML_API void ml_stop(MlKernel* kernel, int32_t row);
// MlFinish of a row; once it is not ML_RUNNING, the other outputs and the calls below are valid until the next launch there.
// `filled` is how many positions of the job's cache hold its tokens, `cached` how many of them it did not have to compute.
ML_API int32_t ml_finish(MlKernel* kernel, int32_t row, int64_t* prefill_ns, int32_t* prefilled, int32_t* filled, int32_t* cached);
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
