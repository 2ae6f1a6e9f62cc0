// The C interface: a kernel is a team and its threads. interface.h says what each call promises.
#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "bandwidth.h"
#include "distance.h"
#include "interface.h"
#include "panel.h"
#include "team.h"
#include "worker.h"

using namespace ml;

struct MlKernel {
  MlKernel(const MlShape& shape, const MlTeam& options) : team(shape, options) {
    for (int i = 0; i < team.workers; ++i) workers.push_back(std::make_unique<Worker>(team, i));
    try {
      for (int i = 0; i < team.workers; ++i) threads.emplace_back([this, i] { serve(i); });
    } catch (...) {
      shut_down();
      throw;
    }
  }
  ~MlKernel() { shut_down(); }

  void shut_down() {
    team.abort.store(true);
    {
      std::lock_guard<std::mutex> hold(team.mutex);
      team.quit = true;
    }
    team.wake.notify_all();
    for (auto& thread : threads)
      if (thread.joinable()) thread.join();
  }

  // A worker's life: sleep, run a job, sleep again.
  void serve(int index) {
    if (team.options.pin && team.workers <= usable_cores()) pin_to_core(index);
    int64_t served = 0;
    while (true) {
      {
        std::unique_lock<std::mutex> hold(team.mutex);
        team.wake.wait(hold, [&] { return team.quit || team.launches > served; });
        if (team.quit) return;
        served = team.launches;
      }
      const int how = workers[index]->run();
      if (team.running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        team.finish.store(how, std::memory_order_release);
        team.ring.ring();
      }
    }
  }

  Team team;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
};

static bool is_sound(const MlShape& s, const MlTeam& t) {
  for (int v : {s.hidden, s.layers, s.heads, s.kv_heads, s.head_dim, s.ffn, s.vocab, s.context, s.streams, s.shards,
                t.devices, t.threads})
    if (v < 1) return false;
  if (s.hidden > 1 << 20 || s.ffn > 1 << 22 || s.vocab > 1 << 24 || s.context > 1 << 24 || s.layers > 4096 ||
      s.head_dim > 1024 || t.devices > 256 || t.threads > 1024 || t.block < 0 || t.block > 512)
    return false;
  if (s.heads % s.kv_heads || s.head_dim % 2 || s.shards % t.devices || s.heads % s.shards || s.kv_heads % s.shards ||
      s.ffn % s.shards || s.delay < 0 || s.delay > s.layers)
    return false;
  if (s.streams != 1 && s.streams != s.shards) return false;
  if (s.head < ML_REPLICATE || s.head > ML_LANE || (s.head == ML_VOCAB_PARALLEL && s.vocab % s.streams)) return false;
  if (s.tied_head && s.head == ML_LANE && s.streams > 1) return false;
  if (s.rotations < 0 || s.rotations > s.layers || s.activation < ML_SILU || s.activation > ML_GELU_TANH) return false;
  for (int i = 0; i < s.layers; ++i) {
    if (s.windows[i] < 0 || s.layer_rotations[i] < -1 || s.layer_rotations[i] >= s.rotations) return false;
    for (int how : {s.attention_exchanges[i], s.mlp_exchanges[i]}) {
      if (how < ML_LOCAL || how > ML_DELAYED) return false;
      if (how == ML_DELAYED && (s.delay == 0 || i < s.delay || s.streams == 1)) return false;
      if (how == ML_LOCAL && s.streams == 1 && s.shards > 1) return false;
    }
  }
  return true;
}

extern "C" {

int ml_create(const MlShape* shape, const MlTeam* team, MlKernel** out) {
  *out = nullptr;
  if (shape->size != sizeof(MlShape) || team->size != sizeof(MlTeam)) return ML_BAD_STRUCT;
  if (!is_sound(*shape, *team)) return ML_BAD_SHAPE;
  try {
    *out = new MlKernel(*shape, *team);
    return ML_OK;
  } catch (const std::bad_alloc&) {
    return ML_NO_MEMORY;
  } catch (const std::system_error&) {
    return ML_NO_THREADS;
  }
}

void ml_destroy(MlKernel* kernel) { delete kernel; }

int ml_pack(MlKernel* kernel, int32_t tensor, int32_t layer, int32_t shard, const uint16_t* rows) {
  Team& team = kernel->team;
  const Plan& plan = team.plan;
  if (team.finish.load() == ML_RUNNING && team.running.load() > 0) return ML_BUSY;
  if (tensor == ML_EMBED) {
    if (!plan.s.tied_head)
      std::memcpy(team.embedding.data(), rows, size_t(plan.s.vocab) * plan.s.hidden * sizeof(uint16_t));
    return ML_OK;
  }
  if (tensor < ML_QKV || tensor > ML_HEAD || layer < 0 || layer >= plan.s.layers) return ML_BAD_SHAPE;
  const bool lane_head = tensor == ML_HEAD && plan.head_by_stream;
  const int shards = tensor == ML_HEAD ? (lane_head ? plan.s.streams : 1) : plan.s.shards;
  if (shard < 0 || shard >= shards) return ML_BAD_SHAPE;
  const int per_device = tensor == ML_HEAD ? plan.head_shards : plan.shards;
  const int cols = plan.cols(tensor), panels = plan.panels_per_unit(tensor), per_shard = plan.units_per_shard(tensor);
  const int counts[] = {plan.qkv_rows, plan.s.hidden, plan.ffn, plan.s.hidden, plan.head_rows};
  const bool everywhere = tensor == ML_HEAD && !lane_head;  // the one matrix that is split over all devices
  for (int device = 0; device < plan.devices; ++device) {
    if (!everywhere && shard / per_device != device) continue;
    const int first_unit = everywhere ? 0 : shard % per_device * per_shard;
    for (int thread = 0; thread < plan.threads; ++thread) {
      const Range range = plan.range(tensor, device, thread);
      uint16_t* tape = team.tapes[device * plan.threads + thread].data() + plan.offset(tensor, layer, device, thread);
      for (int unit = range.first; unit < range.last; ++unit) {
        const int in_shard = unit - first_unit;
        if (in_shard < 0 || in_shard >= per_shard) continue;
        uint16_t* to = tape + int64_t(plan.place(tensor, device, thread, unit)) * panels * cols * kLine;
        for (int p = 0; p < panels; ++p)
          pack_panel(to + int64_t(p) * cols * kLine, rows + int64_t(p) * counts[tensor] * cols, counts[tensor], cols,
                     in_shard * kLine);
      }
    }
  }
  return ML_OK;
}

int ml_vector(MlKernel* kernel, int32_t which, int32_t layer, int32_t shard, const float* values) {
  Team& team = kernel->team;
  if (which < ML_ATTN_NORM || which > ML_QKV_BIAS || layer < 0 || layer >= team.plan.s.layers) return ML_BAD_SHAPE;
  if (shard < 0 || shard >= (which == ML_QKV_BIAS ? team.plan.s.shards : 1)) return ML_BAD_SHAPE;
  if (team.vectors[which].empty()) return ML_BAD_SHAPE;
  std::copy(values, values + team.vector_size(which), team.vectors[which].data() + team.vector_at(which, layer, shard));
  return ML_OK;
}

static bool has_cache(const Team& team, int number) {
  return number >= 0 && number < int(team.caches.size()) && !team.caches[number].keys.empty();
}

int ml_cache_add(MlKernel* kernel, int32_t* number) {
  if (kernel->team.running.load() > 0) return ML_BUSY;
  try {
    *number = kernel->team.add_cache();
    return ML_OK;
  } catch (const std::bad_alloc&) {
    return ML_NO_MEMORY;
  }
}

int ml_cache_remove(MlKernel* kernel, int32_t number) {
  if (kernel->team.running.load() > 0) return ML_BUSY;
  if (number < 1 || !has_cache(kernel->team, number)) return ML_BAD_CACHE;
  kernel->team.remove_cache(number);
  return ML_OK;
}

int ml_cache_copy(MlKernel* kernel, int32_t from, int32_t to, int32_t positions) {
  Team& team = kernel->team;
  if (team.running.load() > 0) return ML_BUSY;
  if (!has_cache(team, from) || !has_cache(team, to) || from == to) return ML_BAD_CACHE;
  if (positions < 0 || positions > team.plan.s.context) return ML_TOO_LONG;
  team.copy_cache(from, to, positions);
  return ML_OK;
}

int ml_launch(MlKernel* kernel, const MlJob* job) {
  Team& team = kernel->team;
  if (job->size != sizeof(MlJob)) return ML_BAD_STRUCT;
  if (team.running.load() > 0) return ML_BUSY;
  const MlShape& s = team.plan.s;
  if (job->count < 1 || job->max_tokens < 0 || job->count > s.context) return ML_TOO_LONG;
  for (int i = 0; i < job->count; ++i)
    if (job->tokens[i] < 0 || job->tokens[i] >= s.vocab) return ML_BAD_TOKEN;
  if (!has_cache(team, job->cache)) return ML_BAD_CACHE;
  if (job->cached < 0 || job->cached >= job->count) return ML_TOO_LONG;
  if (job->sampled < 0 || job->sampled > job->count) return ML_TOO_LONG;
  for (int i = 0; i < job->bias_count; ++i)
    if (job->bias_ids[i] < 0 || job->bias_ids[i] >= s.vocab) return ML_BAD_TOKEN;
  Job next;
  next.params = *job;
  next.tokens.assign(job->tokens, job->tokens + job->count);
  next.stop_ids.assign(job->stop_ids, job->stop_ids + job->stop_count);
  next.bias_ids.assign(job->bias_ids, job->bias_ids + job->bias_count);
  next.biases.assign(job->biases, job->biases + job->bias_count);
  next.limit = std::min(job->max_tokens, s.context - job->count);
  if (next.limit < 1 && !job->all_logits) return ML_TOO_LONG;
  team.ring.reset(next.limit);
  team.job = std::move(next);
  team.stop.store(false);
  team.prefilled.store(job->cached);
  team.filled.store(job->cached);
  team.prefill_ns = 0;
  team.finish.store(ML_RUNNING);
  team.running.store(team.workers);
  team.start_ns = now_ns();
  {
    std::lock_guard<std::mutex> hold(team.mutex);
    ++team.launches;
  }
  team.wake.notify_all();
  return ML_OK;
}

int32_t ml_poll(MlKernel* kernel, int32_t* ids, int64_t* t_ns, int32_t capacity, int64_t timeout_ns) {
  Team& team = kernel->team;
  const int64_t until = now_ns() + timeout_ns;
  while (true) {
    const uint32_t rings = team.ring.rings();
    const bool ended = team.finish.load(std::memory_order_acquire) != ML_RUNNING;
    const int32_t n = team.ring.take(ids, t_ns, capacity);
    const int64_t left = until - now_ns();
    if (n || ended || left <= 0) return n;
    team.ring.sleep(rings, left);
  }
}

void ml_stop(MlKernel* kernel) { kernel->team.stop.store(true); }

int32_t ml_finish(MlKernel* kernel, int64_t* prefill_ns, int32_t* prefilled, int32_t* filled) {
  const int32_t how = kernel->team.finish.load(std::memory_order_acquire);
  *prefilled = kernel->team.prefilled.load();
  *filled = kernel->team.filled.load();
  *prefill_ns = how == ML_RUNNING ? 0 : kernel->team.prefill_ns;
  return how;
}

int32_t ml_profile(MlKernel* kernel, double* out, int32_t phases) {
  if (phases != kPhases) return -1;
  const int decoded = kernel->workers[0]->decoded;
  for (int phase = 0; phase < kPhases; ++phase)
    for (int kind = 0; kind < 3; ++kind) {
      double total = 0;
      for (const auto& worker : kernel->workers) total += worker->phase_ns[phase][kind];
      out[phase * 3 + kind] = decoded ? total / double(decoded) / double(kernel->workers.size()) : 0.0;
    }
  return decoded;
}

int32_t ml_spans(MlKernel* kernel, MlSpan* out, int32_t capacity) {
  int32_t n = 0;
  for (const auto& worker : kernel->workers)
    for (const MlSpan& span : worker->spans) {
      if (n < capacity) out[n] = span;
      ++n;
    }
  return n;
}

int ml_read_bandwidth(int32_t threads, double* gbs) {
  constexpr int64_t kBytes = int64_t(512) << 20;  // several times a last-level cache
  constexpr int kRounds = 20;
  *gbs = 0;
  if (threads < 1 || threads > 1024) return ML_BAD_SHAPE;
  try {
    const Pages<char> memory(kBytes + kAhead, PageSize::kHuge);
    std::memset(memory.data(), 1, kBytes + kAhead);  // a page that was never written is one page of zeros
    *gbs = read_gbs(memory.data(), kBytes, threads, kRounds, pin_to_core, now_ns);
    return ML_OK;
  } catch (const std::bad_alloc&) {
    return ML_NO_MEMORY;
  } catch (const std::system_error&) {
    return ML_NO_THREADS;
  }
}

int ml_core_distance(double* ns) {
  constexpr int kRounds = 15;  // a fraction of a second if the cores are busy, 2 to 10 ms if not
  *ns = 0;
  if (usable_cores() < 2) return ML_OK;
  try {
    *ns = core_distance_ns(kRounds, pin_to_core, now_ns);
    return ML_OK;
  } catch (const std::bad_alloc&) {
    return ML_NO_MEMORY;
  } catch (const std::system_error&) {
    return ML_NO_THREADS;
  }
}

}  // extern "C"
