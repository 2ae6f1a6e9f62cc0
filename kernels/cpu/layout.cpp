// The layout of the C interface, as this library was compiled: tests hold engine/backends/cpu/library.py to it.
#include <cstddef>
#include <string>

#include "interface.h"

namespace {

std::string layout_text() {
  std::string text;
  auto add = [&](const char* name, size_t value) { text += std::string(name) + " " + std::to_string(value) + "\n"; };
#define SIZE(type) add(#type, sizeof(type))
#define FIELD(type, name) add(#type "." #name, offsetof(type, name))
#define VALUE(name) add(#name, size_t(name))
  SIZE(MlShape);
  FIELD(MlShape, size);
  FIELD(MlShape, hidden);
  FIELD(MlShape, layers);
  FIELD(MlShape, heads);
  FIELD(MlShape, kv_heads);
  FIELD(MlShape, head_dim);
  FIELD(MlShape, ffn);
  FIELD(MlShape, vocab);
  FIELD(MlShape, context);
  FIELD(MlShape, streams);
  FIELD(MlShape, shards);
  FIELD(MlShape, delay);
  FIELD(MlShape, head);
  FIELD(MlShape, sum_before_norm);
  FIELD(MlShape, tied_head);
  FIELD(MlShape, rope_interleaved);
  FIELD(MlShape, bfloat16);
  FIELD(MlShape, qkv_bias);
  FIELD(MlShape, qk_norm);
  FIELD(MlShape, post_norms);
  FIELD(MlShape, activation);
  FIELD(MlShape, norm_eps);
  FIELD(MlShape, embedding_scale);
  FIELD(MlShape, attention_scale);
  FIELD(MlShape, attention_cap);
  FIELD(MlShape, logit_cap);
  FIELD(MlShape, rotations);
  FIELD(MlShape, windows);
  FIELD(MlShape, attention_exchanges);
  FIELD(MlShape, mlp_exchanges);
  FIELD(MlShape, layer_rotations);
  FIELD(MlShape, inverse_frequencies);
  FIELD(MlShape, amplitudes);
  SIZE(MlTeam);
  FIELD(MlTeam, size);
  FIELD(MlTeam, devices);
  FIELD(MlTeam, threads);
  FIELD(MlTeam, barrier);
  FIELD(MlTeam, pin);
  FIELD(MlTeam, block);
  FIELD(MlTeam, link_latency_ns);
  SIZE(MlJob);
  FIELD(MlJob, size);
  FIELD(MlJob, tokens);
  FIELD(MlJob, count);
  FIELD(MlJob, max_tokens);
  FIELD(MlJob, cache);
  FIELD(MlJob, cached);
  FIELD(MlJob, stop_ids);
  FIELD(MlJob, stop_count);
  FIELD(MlJob, sampled);
  FIELD(MlJob, temperature);
  FIELD(MlJob, top_p);
  FIELD(MlJob, min_p);
  FIELD(MlJob, repetition_penalty);
  FIELD(MlJob, frequency_penalty);
  FIELD(MlJob, presence_penalty);
  FIELD(MlJob, top_k);
  FIELD(MlJob, bias_count);
  FIELD(MlJob, bias_ids);
  FIELD(MlJob, biases);
  FIELD(MlJob, seed);
  FIELD(MlJob, profile);
  FIELD(MlJob, trace_first);
  FIELD(MlJob, trace_last);
  FIELD(MlJob, all_logits);
  SIZE(MlSpan);
  FIELD(MlSpan, phase);
  FIELD(MlSpan, layer);
  FIELD(MlSpan, device);
  FIELD(MlSpan, thread);
  FIELD(MlSpan, kind);
  FIELD(MlSpan, start_ns);
  FIELD(MlSpan, end_ns);
  VALUE(ML_LOCAL);
  VALUE(ML_SYNC);
  VALUE(ML_DELAYED);
  VALUE(ML_REPLICATE);
  VALUE(ML_VOCAB_PARALLEL);
  VALUE(ML_LANE);
  VALUE(ML_QKV);
  VALUE(ML_ATTN_OUT);
  VALUE(ML_GATE_UP);
  VALUE(ML_DOWN);
  VALUE(ML_HEAD);
  VALUE(ML_EMBED);
  VALUE(ML_SILU);
  VALUE(ML_GELU_TANH);
  VALUE(ML_ATTN_NORM);
  VALUE(ML_FFN_NORM);
  VALUE(ML_LAST_NORM);
  VALUE(ML_ATTN_POST_NORM);
  VALUE(ML_FFN_POST_NORM);
  VALUE(ML_Q_NORM);
  VALUE(ML_K_NORM);
  VALUE(ML_QKV_BIAS);
  VALUE(ML_RUNNING);
  VALUE(ML_STOP);
  VALUE(ML_LENGTH);
  VALUE(ML_CANCELLED);
#undef SIZE
#undef FIELD
#undef VALUE
  return text;
}

}  // namespace

extern "C" const char* ml_layout() {
  static const std::string text = layout_text();
  return text.c_str();
}
