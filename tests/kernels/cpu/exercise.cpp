// Exercises the C interface of the CPU monokernel with random shapes, teams and jobs, sound and unsound, for a
// bounded time. Meant to be built with a sanitizer. Usage: exercise SEED SECONDS. Exits 1 at the first broken promise:
//   - an unsound shape, job or token is refused with an error code;
//   - any team gives the logits that one thread gives, but for rounding (parts are added in another order);
//   - the same job on the same team gives the same tokens, bit for bit;
//   - a job that is stopped ends, and the kernel serves the next one;
//   - requests that are in flight together get the tokens that they get alone.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "interface.h"
#include "storage.h"

namespace {

std::mt19937_64 rng;
int pick(int low, int high) { return low + int(rng() % uint64_t(high - low + 1)); }
template <class T>
T one_of(std::initializer_list<T> values) {
  return values.begin()[pick(0, int(values.size()) - 1)];
}

void require(bool held, const char* what) {
  if (held) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::exit(1);
}

struct Model {
  MlShape shape{};
  std::vector<int32_t> windows, attention, mlp;
  std::vector<int32_t> rotations, storages;
  std::vector<double> frequencies, amplitudes;
  uint64_t seed = 0;

  void link() {
    shape.size = sizeof shape;
    shape.storages = storages.data();
    shape.windows = windows.data();
    shape.attention_exchanges = attention.data();
    shape.mlp_exchanges = mlp.data();
    shape.layer_rotations = rotations.data();
    shape.inverse_frequencies = frequencies.data();
    shape.amplitudes = amplitudes.data();
  }
};

// A storage that rows of `cols` columns can have.
int random_storage(int cols) {
  const int found = one_of({ML_F16, ML_BF16, ML_FP8_BLOCK, ML_Q8_0, ML_Q5_0, ML_Q4_K, ML_Q6_K, ML_MXFP4, ML_Q4_1});
  return cols % ml::run_of(found) == 0 || found == ML_FP8_BLOCK ? found : int(ML_F16);
}

// Each matrix in a storage of its own where no panel has rows of two matrices.
void choose_storages(Model& m, bool packed) {
  const MlShape& s = m.shape;
  const int q = s.heads / s.shards * s.head_dim, kv = s.kv_heads / s.shards * s.head_dim, ffn = s.ffn / s.shards;
  const int cols[] = {s.hidden, s.hidden, s.hidden, q, s.hidden, s.hidden, ffn};
  const bool apart = q % ml::kLine == 0 && kv % ml::kLine == 0;
  for (int layer = 0; layer < s.layers; ++layer)
    for (int matrix = ML_WQ; matrix <= ML_W_DOWN; ++matrix) {
      const bool same = (matrix == ML_WK || matrix == ML_WV) && !apart;
      m.storages.push_back(same ? m.storages.back() : packed ? random_storage(cols[matrix]) : pick(0, 1));
    }
  for (int end = 0; end < 2; ++end) m.storages.push_back(packed ? random_storage(s.hidden) : pick(0, 1));
}

Model random_model() {
  Model m;
  MlShape& s = m.shape;
  const bool packed = pick(0, 1);
  s.streams = packed ? 1 : one_of({1, 1, 2, 4});
  s.shards = s.streams > 1 ? s.streams : packed ? 1 : one_of({1, 2});
  s.kv_heads = s.shards * pick(1, 2);
  s.heads = s.kv_heads * pick(1, 3);
  s.head_dim = packed && pick(0, 1) ? 16 : 2 * pick(1, 12);
  s.hidden = packed ? one_of({32, 64, 96, 256, 288, 512}) : pick(3, 70);
  s.layers = pick(1, 4);
  s.ffn = packed ? one_of({32, 160, 256}) : s.shards * pick(1, 40);
  s.vocab = s.shards * pick(2, 60);
  s.context = pick(2, 90);
  s.delay = s.streams > 1 ? pick(0, s.layers) : 0;
  s.head = s.streams > 1 ? pick(0, 2) : 0;
  s.sum_before_norm = s.head == ML_REPLICATE && pick(0, 1);
  s.tied_head = s.head != ML_LANE && pick(0, 1);
  s.rope_interleaved = pick(0, 1);
  s.norm_eps = 1e-5f;
  s.qkv_bias = pick(0, 1);
  s.qk_norm = pick(0, 1);
  s.post_norms = pick(0, 1);
  s.activation = one_of({int(ML_SILU), int(ML_GELU_TANH), int(ML_CLAMPED_SWIGLU)});
  s.swiglu_limit = 0.5f;
  s.out_bias = pick(0, 1);
  s.sinks = pick(0, 1);
  if (s.streams == 1 && s.shards == 1 && pick(0, 1)) {
    s.experts = pick(1, 20);
    s.experts_chosen = pick(1, s.experts);
    s.experts_renormalise = pick(0, 1);
    s.experts_biased = pick(0, 1);
  }
  s.embedding_scale = one_of({1.0f, 3.0f});
  s.attention_scale = 0.3f;
  s.attention_cap = one_of({0.0f, 2.0f});
  s.logit_cap = one_of({0.0f, 5.0f});
  s.rotations = pick(0, 1);
  for (int i = 0; i < s.layers; ++i) {
    m.windows.push_back(pick(0, 1) ? 0 : pick(1, 40));
    m.rotations.push_back(pick(-1, s.rotations - 1));
    for (auto* how : {&m.attention, &m.mlp}) {
      if (s.streams == 1)
        how->push_back(s.shards > 1 ? ML_SYNC : ML_LOCAL);
      else
        how->push_back(i >= s.delay && s.delay > 0 ? one_of({int(ML_LOCAL), int(ML_DELAYED)}) : pick(0, 1));
    }
  }
  for (int j = 0; j < s.rotations * s.head_dim / 2; ++j) {
    m.frequencies.push_back(std::pow(10000.0, -2.0 * j / s.head_dim));
    m.amplitudes.push_back(1);
  }
  m.seed = rng();
  choose_storages(m, packed);
  m.link();
  return m;
}

// Sixteen bits between -0.25 and 0.25: sign, exponent 2^-3 .. 2^-6, random mantissa.
uint16_t random_half(std::mt19937_64& from, int storage) {
  const uint64_t r = from(), exponent = (r >> 1) % 4, sign = (r & 1) << 15;
  return uint16_t(storage == ML_BF16 ? sign | (121 + exponent) << 7 | (r >> 8 & 0x7F)
                                     : sign | (9 + exponent) << 10 | (r >> 8 & 0x3FF));
}

// Rows in a storage: random bits, but for scales of about 2^-8.
std::vector<uint8_t> random_rows(std::mt19937_64& from, int storage, int64_t rows, int cols) {
  std::vector<uint8_t> bytes(rows * ml::row_bytes(storage, cols));
  if (!ml::is_packed(storage)) {
    for (size_t i = 0; i < bytes.size(); i += 2) {
      const uint16_t value = random_half(from, storage);
      std::memcpy(&bytes[i], &value, 2);
    }
    return bytes;
  }
  for (auto& byte : bytes) byte = uint8_t(from()) & (storage == ML_FP8_BLOCK ? 0xBF : 0xFF);
  const int run = ml::run_of(storage);
  if (storage == ML_FP8_BLOCK) return bytes;
  for (size_t at = 0; at < bytes.size(); at += ml::row_bytes(storage, run)) {
    const size_t scale = storage == ML_Q6_K ? 208 : 0;
    bytes[at + scale + 1] = storage == ML_Q6_K || storage == ML_Q4_K ? 0x08 : 0x1C;
    if (storage == ML_Q4_K) bytes[at + 3] = 0x08;
    if (storage == ML_Q4_1) bytes[at + 3] = 0x9C;
    if (storage == ML_MXFP4) bytes[at] = uint8_t(122 + from() % 4);
  }
  return bytes;
}

void pack_one(MlKernel* kernel, const Model& m, std::mt19937_64& from, int matrix, int layer, int shard, int64_t rows,
              int cols) {
  const int storage = m.storages[matrix < ML_HEAD_ROWS ? layer * ML_HEAD_ROWS + matrix
                                                       : m.shape.layers * ML_HEAD_ROWS + matrix - ML_HEAD_ROWS];
  const std::vector<float> scales(rows * (cols / ml::kFp8Side + 1), 0.05f);
  require(!ml_pack(kernel, matrix, layer, shard, random_rows(from, storage, rows, cols).data(), scales.data()), "packing");
}

// The matrices of all experts, and a router that tells them apart.
void pack_experts(MlKernel* kernel, const Model& m, std::mt19937_64& from, int layer) {
  const MlShape& s = m.shape;
  const int rows[] = {s.ffn, s.ffn, s.hidden}, cols[] = {s.hidden, s.hidden, s.ffn};
  for (int matrix = ML_W_GATE; matrix <= ML_W_DOWN; ++matrix) {
    const int storage = m.storages[layer * ML_HEAD_ROWS + matrix], i = matrix - ML_W_GATE;
    const std::vector<float> scales(rows[i] * (cols[i] / ml::kFp8Side + 1), 0.05f);
    for (int expert = 0; expert < s.experts; ++expert) {
      const std::vector<uint8_t> data = random_rows(from, storage, rows[i], cols[i]);
      require(!ml_pack_expert(kernel, matrix, layer, expert, 0, data.data(), scales.data()), "packing an expert");
    }
    require(ml_pack(kernel, matrix, layer, 0, nullptr, nullptr) == ML_BAD_SHAPE, "a model of experts has no MLP");
  }
  std::vector<float> router(s.experts * s.hidden);
  for (float& weight : router) weight = float(from() % 2001) / 1000.0f - 1.0f;
  require(!ml_vector(kernel, ML_ROUTER, layer, 0, router.data()), "packing a router");
}

void pack(MlKernel* kernel, const Model& m) {
  std::mt19937_64 from(m.seed);
  const MlShape& s = m.shape;
  const int q = s.heads / s.shards * s.head_dim, kv = s.kv_heads / s.shards * s.head_dim, ffn = s.ffn / s.shards;
  const int rows[] = {q, kv, kv, s.hidden, ffn, ffn, s.hidden}, cols[] = {s.hidden, s.hidden, s.hidden, q, s.hidden,
                                                                         s.hidden, ffn};
  for (int layer = 0; layer < s.layers; ++layer)
    for (int shard = 0; shard < s.shards; ++shard)
      for (int matrix = ML_WQ; matrix <= (s.experts ? ML_WO : ML_W_DOWN); ++matrix)
        pack_one(kernel, m, from, matrix, layer, shard, rows[matrix], cols[matrix]);
  for (int layer = 0; s.experts && layer < s.layers; ++layer) pack_experts(kernel, m, from, layer);
  require(ml_pack_expert(kernel, ML_W_UP, 0, s.experts, 0, nullptr, nullptr) == ML_BAD_SHAPE, "an expert too many");
  const bool by_lane = s.head == ML_VOCAB_PARALLEL && s.streams > 1;
  const int lanes = by_lane ? s.streams : 1, wide = s.head == ML_LANE ? s.hidden * s.streams : s.hidden;
  for (int shard = 0; shard < lanes; ++shard) pack_one(kernel, m, from, ML_HEAD_ROWS, 0, shard, s.vocab / lanes, wide);
  pack_one(kernel, m, from, ML_EMBED_ROWS, 0, 0, s.vocab, s.hidden);
  const std::vector<float> bias((s.heads + 2 * s.kv_heads) / s.shards * s.head_dim, 0.125f);
  for (int shard = 0; shard < s.shards; ++shard)
    require(ml_vector(kernel, ML_QKV_BIAS, 0, shard, bias.data()) == (s.qkv_bias ? ML_OK : ML_BAD_SHAPE),
            "a bias is taken where the model has one");
  require(ml_vector(kernel, ML_K_NORM, 0, 1, bias.data()) == ML_BAD_SHAPE, "a norm has no second shard");
  require(ml_pack(kernel, ML_W_DOWN, s.layers, 0, nullptr, nullptr) == ML_BAD_SHAPE, "a layer too many is refused");
}

MlTeam team_of(int devices, int threads) {
  MlTeam team{};
  team.size = sizeof team;
  team.devices = devices;
  team.threads = threads;
  team.block = pick(0, 20);
  team.rows = devices > 1 ? 1 : pick(1, 8);
  return team;
}

struct Result {
  std::vector<int32_t> ids;
  int32_t how;
};

Result wait_for(MlKernel* kernel, bool stop_early, int row = 0) {
  Result result;
  int32_t ids[7], prefilled, filled, cached;
  int64_t times[7], prefill;
  while (true) {
    const int32_t n = ml_poll(kernel, row, ids, times, 7, 1000000000);
    result.ids.insert(result.ids.end(), ids, ids + n);
    if (stop_early && n) ml_stop(kernel, row);
    result.how = ml_finish(kernel, row, &prefill, &prefilled, &filled, &cached);
    if (!n && result.how != ML_RUNNING) return result;
  }
}

MlJob job_of(const std::vector<int32_t>& tokens, int max_tokens, bool sampled) {
  MlJob job{};
  job.size = sizeof job;
  job.tokens = tokens.data();
  job.count = int32_t(tokens.size());
  job.max_tokens = max_tokens;
  job.top_p = 1;
  job.repetition_penalty = 1;
  if (sampled) {
    job.temperature = 0.8f;
    job.top_k = pick(0, 20);
    job.top_p = 0.5f + float(pick(0, 5)) / 10;
    job.min_p = float(pick(0, 3)) / 20;
    job.repetition_penalty = 1 + float(pick(0, 3)) / 10;
    job.frequency_penalty = float(pick(-1, 2)) / 2;
    job.presence_penalty = float(pick(-1, 2)) / 2;
    job.sampled = pick(0, job.count);
    static const int32_t biased[] = {0, 1};
    static const float biases[] = {-1.5f, 1.5f};
    job.bias_count = pick(0, 2);
    job.bias_ids = biased;
    job.biases = biases;
    job.seed = rng();
    job.profile = pick(0, 1);
    job.trace_last = pick(0, 3);
  }
  return job;
}

// A sequence of its own, gone on from in its middle, copied and removed.
void check_caches(MlKernel* kernel, MlJob job, size_t tokens) {
  int32_t first, second;
  require(!ml_cache_add(kernel, &first) && !ml_cache_add(kernel, &second) && first != second, "caches are added");
  job.cache = first;
  require(!ml_launch(kernel, &job), "a job may fill another cache");
  require(wait_for(kernel, false).ids.size() == tokens, "it gives as many tokens there");
  require(!ml_cache_copy(kernel, first, second, job.count), "a cache is copied");
  require(ml_cache_copy(kernel, first, first, 1) == ML_BAD_CACHE, "a cache is not copied onto itself");
  job.cache = second;
  job.cached = pick(0, job.count - 1);
  require(!ml_cache_remove(kernel, first), "a cache is removed");
  require(!ml_launch(kernel, &job), "a job may go on from any position");
  require(wait_for(kernel, false).ids.size() == tokens, "it gives as many tokens from there");
  job.cached = job.count;
  require(ml_launch(kernel, &job) == ML_TOO_LONG, "the last token is always computed");
  job.cache = first;
  require(ml_launch(kernel, &job) == ML_BAD_CACHE, "a removed cache is refused");
}

// As many requests as there are rows, one stopped early, and a second one in each row that comes free.
void check_rows(MlKernel* kernel, const MlShape& s, int rows) {
  std::vector<std::vector<int32_t>> prompts(rows), alone(rows);
  std::vector<MlJob> jobs(rows);
  for (int row = 0; row < rows; ++row) {
    prompts[row].resize(pick(1, s.context - 1));
    for (auto& token : prompts[row]) token = pick(0, s.vocab - 1);
    if (pick(0, 1)) prompts[row] = prompts[0];  // which an owner's requests read once
    jobs[row] = job_of(prompts[row], pick(1, 12), pick(0, 1));
    jobs[row].owner = pick(0, 2);
    jobs[row].profile = jobs[row].trace_last = 0;
    require(row == 0 || !ml_cache_add(kernel, &jobs[row].cache), "a cache for each row");
    require(!ml_launch(kernel, &jobs[row]), "a request alone");
    alone[row] = wait_for(kernel, false).ids;
    jobs[row].row = row;
  }
  for (int round = 0; round < 2; ++round) {
    for (int row = 0; row < rows; ++row) require(!ml_launch(kernel, &jobs[row]), "a request joins");
    for (int row = rows; row-- > 0;) {
      const bool stops = row == 1;
      std::vector<int32_t> ids = wait_for(kernel, stops, row).ids;
      require(ids.size() <= alone[row].size() && (stops || ids.size() == alone[row].size()), "as many tokens as alone");
      require(std::equal(ids.begin(), ids.end(), alone[row].begin()), "the same tokens as alone");
    }
  }
  MlJob beyond = jobs[0];
  beyond.row = rows;
  require(ml_launch(kernel, &beyond) == ML_BAD_ROW, "a row too many is refused");
  for (int row = 1; row < rows; ++row) require(!ml_cache_remove(kernel, jobs[row].cache), "its cache is removed");
}

void check_teams(const Model& m) {
  const MlShape& s = m.shape;
  std::vector<int32_t> tokens(pick(1, s.context - 1));
  for (auto& token : tokens) token = pick(0, s.vocab - 1);
  const MlJob job = job_of(tokens, pick(1, 12), pick(0, 1));
  std::vector<int32_t> expected;
  std::vector<float> reference;
  for (int round = 0; round < 3; ++round) {
    // Lanes may lie on any number of devices that divides them; slices of one stream always add up.
    const int devices = round == 0 ? 1 : (s.shards % 2 == 0 ? one_of({1, 2, s.shards}) : 1);
    MlTeam team = team_of(devices, round == 0 ? 1 : pick(1, 3));
    team.barrier = round == 2 && pick(0, 1);
    team.link_latency_ns = round == 2 ? pick(0, 2000) : 0;
    MlKernel* kernel;
    require(!ml_create(&s, &team, &kernel), "a sound shape is accepted");
    pack(kernel, m);
    require(!ml_launch(kernel, &job), "a sound job is accepted");
    Result result = wait_for(kernel, false);
    require(result.how == ML_LENGTH, "a job without stop ids ends by length");
    if (round == 0) expected = result.ids;
    require(result.ids.size() == expected.size(), "every team gives as many tokens");
    require(!ml_launch(kernel, &job), "the kernel serves again");
    require(wait_for(kernel, false).ids == result.ids, "the same job gives the same tokens");

    MlJob bad = job;
    std::vector<int32_t> wrong = tokens;
    wrong[0] = pick(0, 1) ? s.vocab : -1;
    bad.tokens = wrong.data();
    require(ml_launch(kernel, &bad) == ML_BAD_TOKEN, "an unknown token is refused");
    bad = job;
    bad.bias_count = 1;
    bad.bias_ids = &s.vocab;
    require(ml_launch(kernel, &bad) == ML_BAD_TOKEN, "a bias on an unknown token is refused");
    bad = job;
    bad.count = s.context + 1;
    require(ml_launch(kernel, &bad) == ML_TOO_LONG, "too long a prompt is refused");
    bad = job;
    bad.size = 3;
    require(ml_launch(kernel, &bad) == ML_BAD_STRUCT, "a struct of another size is refused");

    check_caches(kernel, job, expected.size());
    check_rows(kernel, s, team.rows);
    require(!ml_launch(kernel, &job), "a refused job does no harm");
    result = wait_for(kernel, true);
    require(result.ids.size() <= expected.size(), "a stopped job gives no more tokens");
    std::vector<float> logits(size_t(job.count) * s.vocab, NAN);
    MlJob all = job;
    all.all_logits = logits.data();
    require(!ml_launch(kernel, &all), "logits are given");
    wait_for(kernel, false);
    double difference = 0, size = 0;
    if (round == 0) reference = logits;
    for (size_t i = 0; i < logits.size(); ++i) {
      require(std::isfinite(logits[i]), "every logit is written");
      difference += (logits[i] - reference[i]) * double(logits[i] - reference[i]);
      size += double(reference[i]) * reference[i];
    }
    require(difference <= 1e-5 * size, "every team gives the same logits");
    all.scored_from = pick(0, job.count - 1);
    std::vector<float> rest(size_t(job.count - all.scored_from) * s.vocab, NAN);
    all.all_logits = rest.data();
    require(!ml_launch(kernel, &all), "logits are given from any token on");
    wait_for(kernel, false);
    difference = 0;
    for (size_t i = 0; i < rest.size(); ++i) {
      require(std::isfinite(rest[i]), "each of them is written");
      const double apart = rest[i] - double(logits[size_t(all.scored_from) * s.vocab + i]);
      difference += apart * apart;
    }
    require(difference <= 1e-5 * size, "they are those of all tokens");
    all.scored_from = job.count;
    require(ml_launch(kernel, &all) == ML_TOO_LONG, "no logits are given beyond the last token");
    if (pick(0, 1)) ml_launch(kernel, &job);  // destroyed in mid-token
    ml_destroy(kernel);
  }
}

void check_unsound(Model m) {
  int32_t* fields[] = {&m.shape.hidden,   &m.shape.layers,  &m.shape.heads,   &m.shape.kv_heads, &m.shape.head_dim,
                       &m.shape.ffn,      &m.shape.vocab,   &m.shape.context, &m.shape.streams,  &m.shape.shards,
                       &m.shape.delay,    &m.shape.head};
  *fields[pick(0, 11)] = one_of({-1, -2147483647});
  MlTeam team = team_of(1, 1);
  MlKernel* kernel;
  require(ml_create(&m.shape, &team, &kernel) == ML_BAD_SHAPE && !kernel, "a negative size is refused");
}

void check_unsound_storage(Model m) {
  m.storages[pick(0, int(m.storages.size()) - 1)] = one_of({-1, ML_Q4_1 + 1, 1 << 30});
  m.link();
  MlTeam team = team_of(1, 1);
  MlKernel* kernel;
  require(ml_create(&m.shape, &team, &kernel) == ML_BAD_SHAPE && !kernel, "an unknown storage is refused");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  rng.seed(std::strtoull(argv[1], nullptr, 10));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[2]));
  int models = 0;
  do {
    const Model m = random_model();
    Model linked = m;
    linked.link();
    check_unsound(linked);
    linked = m;
    linked.link();
    check_unsound_storage(linked);
    linked = m;
    linked.link();
    check_teams(linked);
    ++models;
  } while (std::chrono::steady_clock::now() < until);
  std::printf("%d models\n", models);
}
