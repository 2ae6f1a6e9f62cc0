// The C interface: a kernel is a team and its threads. interface.h says what each call promises.
#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "bandwidth.h"
#include "distance.h"
#include "interface.h"
#include "packed_panel.h"
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
      workers[index]->run();
      if (team.running.fetch_sub(1, std::memory_order_acq_rel) == 1) team.end_launch(workers[index]->taken());
    }
  }

  Team team;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
};

// Whether rows of all matrices fill whole blocks, and no panel holds rows of two storages.
static bool has_sound_storages(const MlShape& s, const MlTeam& t) {
  const int q = s.heads / s.shards * s.head_dim, kv = s.kv_heads / s.shards * s.head_dim, ffn = s.ffn / s.shards;
  const int cols[] = {s.hidden, s.hidden, s.hidden, q, s.hidden, s.hidden, ffn};
  auto is_sound = [&](int storage, int width) {
    if (storage < ML_F16 || storage > ML_Q4_1) return false;
    if (!is_packed(storage)) return true;
    const bool whole = storage == ML_FP8_BLOCK ? true : width % run_of(storage) == 0;
    return whole && s.streams == 1 && s.shards == t.devices;
  };
  for (int layer = 0; layer < s.layers; ++layer) {
    const int32_t* of = s.storages + layer * ML_HEAD_ROWS;
    for (int matrix = ML_WQ; matrix <= ML_W_DOWN; ++matrix)
      if (!is_sound(of[matrix], cols[matrix])) return false;
    if ((q % kLine && of[ML_WQ] != of[ML_WK]) || ((q + kv) % kLine && of[ML_WK] != of[ML_WV])) return false;
    if ((q + kv) % kLine && q % kLine && of[ML_WQ] != of[ML_WV]) return false;
  }
  const int32_t* ends = s.storages + s.layers * ML_HEAD_ROWS;
  return is_sound(ends[0], s.hidden) && is_sound(ends[1], s.hidden);
}

static bool is_sound(const MlShape& s, const MlTeam& t) {
  for (int v : {s.hidden, s.layers, s.heads, s.kv_heads, s.head_dim, s.ffn, s.vocab, s.context, s.streams, s.shards,
                t.devices, t.threads})
    if (v < 1) return false;
  if (s.hidden > 1 << 20 || s.ffn > 1 << 22 || s.vocab > 1 << 24 || s.context > 1 << 24 || s.layers > 4096 ||
      s.head_dim > 1024 || t.devices > 256 || t.threads > 1024 || t.block < 0 || t.block > 512)
    return false;
  if (t.rows < 1 || t.rows > (t.devices > 1 ? 1 : kMostRows)) return false;
  if (s.heads % s.kv_heads || s.head_dim % 2 || s.shards % t.devices || s.heads % s.shards || s.kv_heads % s.shards ||
      s.ffn % s.shards || s.delay < 0 || s.delay > s.layers)
    return false;
  if (s.streams != 1 && s.streams != s.shards) return false;
  if (s.head < ML_REPLICATE || s.head > ML_LANE || (s.head == ML_VOCAB_PARALLEL && s.vocab % s.streams)) return false;
  if (s.tied_head && s.head == ML_LANE && s.streams > 1) return false;
  if (s.rotations < 0 || s.rotations > s.layers || s.activation < ML_SILU || s.activation > ML_CLAMPED_SWIGLU) return false;
  if (s.experts < 0 || s.experts > 4096 || s.experts_chosen < 0 || s.experts_chosen > s.experts) return false;
  if (s.experts && (s.experts_chosen < 1 || s.streams != 1 || s.shards != t.devices)) return false;
  if (!has_sound_storages(s, t)) return false;
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

// Rows of a matrix in the format of a file.
struct Source {
  int storage;
  const uint8_t* rows;
  const float* scales;  // of FP8: of each row, one for each 128 columns

  void pack(uint8_t* panel, int row, int64_t from, int cols) const {
    const uint8_t* bytes = rows + from * row_bytes(storage, cols);
    if (is_packed(storage))
      pack_row(storage, panel, row, bytes, scales + from * ((cols + kFp8Side - 1) / kFp8Side), cols);
    else
      pack_halves(reinterpret_cast<uint16_t*>(panel), row, reinterpret_cast<const uint16_t*>(bytes), cols);
  }
};

static void pack_embedding(Team& team, const Source& source) {
  const MlShape& s = team.plan.s;
  if (s.tied_head) return;
  if (!is_packed(source.storage)) {
    std::memcpy(team.embedding.data(), source.rows, s.vocab * row_bytes(source.storage, s.hidden));
    return;
  }
  const int64_t panel = panel_bytes(source.storage, s.hidden);
  for (int id = 0; id < s.vocab; ++id)
    source.pack(team.embedding.data() + id / kLine * panel, id % kLine, id, s.hidden);
}

// Each row to its place in a panel, on the tape of whoever multiplies with it.
static void pack_matrix(Team& team, int matrix, int layer, int shard, const Source& source) {
  const Plan& plan = team.plan;
  const MatrixRows at = plan.rows_of(matrix);
  const int cols = plan.cols(at.tensor), per_device = at.tensor == ML_HEAD ? plan.head_shards : plan.shards;
  const int device = shard / per_device, first_unit = shard % per_device * plan.units_per_shard(at.tensor);
  const bool everywhere = at.tensor == ML_HEAD && !plan.head_by_stream;  // the one matrix that is split over all devices
  uint8_t* panel = nullptr;
  for (int row = 0; row < at.count; ++row) {
    const int in_tensor = at.first + row, unit = first_unit + in_tensor / kLine;
    if (!panel || in_tensor % kLine == 0)
      panel = everywhere ? const_cast<uint8_t*>(team.head_panels[unit]) : team.unit(at.tensor, layer, device, unit);
    uint8_t* to = panel + (matrix == ML_W_UP ? plan.unit_storage(at.tensor, layer).second_panel : 0);
    source.pack(to, in_tensor % kLine, row, cols);
  }
}

// An expert's matrix of one shard, which is a device.
static void pack_expert(Team& team, int matrix, int layer, int expert, int shard, const Source& source) {
  const Plan& plan = team.plan;
  const MatrixRows at = plan.rows_of(matrix);
  const UnitStorage& units = plan.unit_storage(at.tensor, layer);
  uint8_t* first = at.tensor == ML_DOWN ? team.expert_down(shard, layer, expert) : team.expert(shard, layer, expert);
  if (matrix == ML_W_UP) first += units.second_panel;
  for (int row = 0; row < at.count; ++row)
    source.pack(first + row / kLine * units.bytes[0], row % kLine, row, plan.cols(at.tensor));
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

int ml_pack(MlKernel* kernel, int32_t matrix, int32_t layer, int32_t shard, const void* rows, const float* scales) {
  Team& team = kernel->team;
  const Plan& plan = team.plan;
  if (team.is_busy()) return ML_BUSY;
  if (matrix < ML_WQ || matrix > ML_EMBED_ROWS || layer < 0 || layer >= plan.s.layers || shard < 0) return ML_BAD_SHAPE;
  if (shard >= plan.shards_of(matrix)) return ML_BAD_SHAPE;
  const Source source{plan.storage_of(matrix, layer), static_cast<const uint8_t*>(rows), scales};
  if (plan.s.experts && matrix >= ML_W_GATE && matrix <= ML_W_DOWN) return ML_BAD_SHAPE;
  if (matrix == ML_EMBED_ROWS)
    pack_embedding(team, source);
  else
    pack_matrix(team, matrix, layer, shard, source);
  return ML_OK;
}

int ml_pack_expert(MlKernel* kernel, int32_t matrix, int32_t layer, int32_t expert, int32_t shard, const void* rows,
                   const float* scales) {
  Team& team = kernel->team;
  const Plan& plan = team.plan;
  if (team.is_busy()) return ML_BUSY;
  if (matrix < ML_W_GATE || matrix > ML_W_DOWN || layer < 0 || layer >= plan.s.layers) return ML_BAD_SHAPE;
  if (expert < 0 || expert >= plan.s.experts || shard < 0 || shard >= plan.s.shards) return ML_BAD_SHAPE;
  const Source source{plan.storage_of(matrix, layer), static_cast<const uint8_t*>(rows), scales};
  pack_expert(team, matrix, layer, expert, shard, source);
  return ML_OK;
}

int ml_vector(MlKernel* kernel, int32_t which, int32_t layer, int32_t shard, const float* values) {
  Team& team = kernel->team;
  if (which < 0 || which >= kVectors || layer < 0 || layer >= team.plan.s.layers) return ML_BAD_SHAPE;
  if (shard < 0 || shard >= (Team::is_cut(which) ? team.plan.s.shards : 1)) return ML_BAD_SHAPE;
  if (team.vectors[which].empty()) return ML_BAD_SHAPE;
  std::copy(values, values + team.vector_size(which), team.vectors[which].data() + team.vector_at(which, layer, shard));
  return ML_OK;
}

static bool has_cache(const Team& team, int number) {
  return number >= 0 && number < int(team.caches.size()) && team.caches[number];
}
static bool is_filling(const Team& team, int number) {
  const Cache* cache = team.caches[number].get();
  return std::any_of(team.requests.begin(), team.requests.end(),
                     [&](const Request& request) { return request.is_running() && request.cache == cache; });
}

int ml_cache_add(MlKernel* kernel, int32_t* number) {
  try {
    *number = kernel->team.add_cache();
    return ML_OK;
  } catch (const std::bad_alloc&) {
    return ML_NO_MEMORY;
  }
}

int ml_cache_remove(MlKernel* kernel, int32_t number) {
  if (number < 1 || !has_cache(kernel->team, number)) return ML_BAD_CACHE;
  if (is_filling(kernel->team, number)) return ML_BUSY;
  kernel->team.remove_cache(number);
  return ML_OK;
}

int ml_cache_read(MlKernel* kernel, int32_t number, int32_t positions, float* keys, float* values) {
  const Team& team = kernel->team;
  if (!has_cache(team, number)) return ML_BAD_CACHE;
  if (is_filling(team, number)) return ML_BUSY;
  if (positions < 0 || positions > team.plan.s.context) return ML_TOO_LONG;
  team.read_cache(number, positions, keys, values);
  return ML_OK;
}

int ml_cache_copy(MlKernel* kernel, int32_t from, int32_t to, int32_t positions) {
  Team& team = kernel->team;
  if (!has_cache(team, from) || !has_cache(team, to) || from == to) return ML_BAD_CACHE;
  if (is_filling(team, to)) return ML_BUSY;
  if (positions < 0 || positions > team.plan.s.context) return ML_TOO_LONG;
  team.copy_cache(*team.caches[from], *team.caches[to], positions);
  return ML_OK;
}

// Profiles and traces are those of a request that has the team to itself.
static bool is_alone(const MlJob& job) { return job.profile || job.trace_last > job.trace_first; }

int ml_launch(MlKernel* kernel, const MlJob* job) {
  Team& team = kernel->team;
  if (job->size != sizeof(MlJob)) return ML_BAD_STRUCT;
  if (job->row < 0 || job->row >= team.options.rows) return ML_BAD_ROW;
  for (const Request& other : team.requests)
    if (other.is_running() && (&other == &team.requests[job->row] || is_alone(*job) || is_alone(other.job.params)))
      return ML_BUSY;
  const MlShape& s = team.plan.s;
  if (job->count < 1 || job->max_tokens < 0 || job->count > s.context) return ML_TOO_LONG;
  for (int i = 0; i < job->count; ++i)
    if (job->tokens[i] < 0 || job->tokens[i] >= s.vocab) return ML_BAD_TOKEN;
  if (!has_cache(team, job->cache)) return ML_BAD_CACHE;
  if (is_filling(team, job->cache)) return ML_BUSY;
  if (job->cached < 0 || job->cached >= job->count) return ML_TOO_LONG;
  if (job->all_logits && (job->scored_from < job->cached || job->scored_from >= job->count)) return ML_TOO_LONG;
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
  Request& request = team.requests[job->row];
  request.ring.reset(next.limit);
  request.job = std::move(next);
  request.cache = team.caches[job->cache].get();
  request.stop.store(false);
  request.prefilled.store(job->cached);
  request.filled.store(job->cached);
  request.cached.store(job->cached);
  request.prefill_ns = 0;
  request.inside.store(team.workers);
  request.finish.store(ML_RUNNING);
  request.start_ns = now_ns();
  team.join(job->row);
  return ML_OK;
}

static Request* request_in(MlKernel* kernel, int32_t row) {
  return row < 0 || row >= kernel->team.options.rows ? nullptr : &kernel->team.requests[row];
}

int32_t ml_poll(MlKernel* kernel, int32_t row, int32_t* ids, int64_t* t_ns, int32_t capacity, int64_t timeout_ns) {
  Request* request = request_in(kernel, row);
  if (!request) return 0;
  const int64_t until = now_ns() + timeout_ns;
  while (true) {
    const uint32_t rings = request->ring.rings();
    const bool ended = !request->is_running();
    const int32_t n = request->ring.take(ids, t_ns, capacity);
    const int64_t left = until - now_ns();
    if (n || ended || left <= 0) return n;
    request->ring.sleep(rings, left);
  }
}

void ml_stop(MlKernel* kernel, int32_t row) {
  if (Request* request = request_in(kernel, row)) request->stop.store(true);
}

int32_t ml_finish(MlKernel* kernel, int32_t row, int64_t* prefill_ns, int32_t* prefilled, int32_t* filled, int32_t* cached) {
  const Request* request = request_in(kernel, row);
  if (!request) return ML_CANCELLED;
  const int32_t how = request->finish.load(std::memory_order_acquire);
  *prefilled = request->prefilled.load();
  *filled = request->filled.load();
  *cached = request->cached.load();
  *prefill_ns = how == ML_RUNNING ? 0 : request->prefill_ns;
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
