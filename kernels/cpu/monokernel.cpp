// The CPU monokernel: a persistent team of threads that runs a whole request, prompt to last token, without a lock,
// an allocation or a barrier inside a token. kernels/README.md explains the design; Member::block is the model.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <system_error>
#include <thread>

#include "attention.h"
#include "bandwidth.h"
#include "course.h"
#include "distance.h"
#include "exchange.h"
#include "interface.h"
#include "panel.h"
#include "plan.h"
#include "sampling.h"

namespace ml {

static int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// Tapes are read from end to end: huge pages. A cache is touched here and there, and must cost only what is used.
enum class PageSize { kHuge, kSmall };

// Memory that is only paid for where it is touched.
template <class T>
class Pages {
 public:
  Pages() = default;
  Pages(int64_t count, PageSize size) : bytes_(std::max<size_t>(size_t(count) * sizeof(T), 1)) {
    void* p = mmap(nullptr, bytes_ + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    base_ = p;
    data_ = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(p) + kHuge - 1) / kHuge * kHuge);
#if defined(MADV_HUGEPAGE)
    madvise(data_, bytes_, size == PageSize::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)size;
#endif
  }
  Pages(Pages&& other) noexcept { *this = std::move(other); }
  Pages& operator=(Pages&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Pages() {
    if (base_) munmap(base_, bytes_ + kHuge);
  }
  T* data() const { return data_; }
  int64_t bytes() const { return data_ ? int64_t(bytes_) : 0; }

 private:
  static constexpr size_t kHuge = 2 << 20;
  void* base_ = nullptr;
  T* data_ = nullptr;
  size_t bytes_ = 0;
};

// A job as the team sees it: everything that the caller's pointers pointed to, copied.
struct Job {
  MlJob params{};
  std::vector<int32_t> tokens, stop_ids;
  int limit = 0;  // tokens it may produce
};

// Tokens on their way to the host. One writer, one reader, sized for the whole job.
class TokenRing {
 public:
  void reset(int capacity) {
    ids_.assign(std::max(capacity, 1), 0);
    times_.assign(std::max(capacity, 1), 0);
    taken_ = 0;
    produced_.store(0, std::memory_order_relaxed);
  }
  void push(int32_t id, int64_t t_ns) {
    const uint32_t n = produced_.load(std::memory_order_relaxed);
    ids_[n] = id;
    times_[n] = t_ns;
    produced_.store(n + 1, std::memory_order_release);
    if (n > 0 && t_ns - signalled_ns_ < kSignalEveryNs) return;
    signalled_ns_ = t_ns;
    signal();
  }
  // Wakes the host, if it sleeps.
  void signal() {
    bell_.fetch_add(1, std::memory_order_release);
#if defined(__linux__)
    if (sleeping_.load(std::memory_order_seq_cst))
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell_), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
#endif
  }
  uint32_t bell() const { return bell_.load(std::memory_order_acquire); }
  // Sleeps until the bell rings again after `heard`, or for `timeout_ns`.
  void sleep(uint32_t heard, int64_t timeout_ns) {
    const timespec wait{time_t(timeout_ns / 1000000000), long(timeout_ns % 1000000000)};
#if defined(__linux__)
    sleeping_.store(true, std::memory_order_seq_cst);
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell_), FUTEX_WAIT_PRIVATE, heard, &wait, nullptr, 0);
    sleeping_.store(false, std::memory_order_relaxed);
#else
    (void)heard;
    const timespec nap{0, long(std::min<int64_t>(timeout_ns, 200000))};
    nanosleep(&nap, nullptr);
#endif
  }
  int32_t take(int32_t* ids, int64_t* t_ns, int32_t capacity) {
    const uint32_t have = produced_.load(std::memory_order_acquire);
    int32_t n = 0;
    for (; n < capacity && taken_ < have; ++n, ++taken_) {
      ids[n] = ids_[taken_];
      t_ns[n] = times_[taken_];
    }
    return n;
  }

 private:
  // Where every core computes, a host that wakes takes one away from the team: not at each of many tokens, but
  // as often as a screen shows a picture.
  static constexpr int64_t kSignalEveryNs = 16000000;

  std::vector<int32_t> ids_;
  std::vector<int64_t> times_;
  int64_t signalled_ns_ = 0;
  std::atomic<uint32_t> produced_{0}, bell_{0};
  std::atomic<bool> sleeping_{false};
  uint32_t taken_ = 0;
};

class Member;

// What the whole team shares.
struct Shared {
  Shared(const MlShape& shape, const MlTeam& team);

  const Plan plan;
  const MlTeam team;
  const int members, block;
  std::vector<int32_t> windows;
  std::vector<int> exchanges[2];      // [attention, MLP][layer]
  std::vector<int> peer_number[2];    // place of a layer's sum among a block's peer exchanges, -1 if none is sent
  int peer_exchanges = 0;             // of a block, the head's included
  int head_peer = -1;
  std::vector<double> inverse_frequencies;

  std::vector<Pages<uint16_t>> tapes;                  // [member]
  std::vector<const uint16_t*> head_panels;            // every panel of the head, wherever it lies
  Pages<uint16_t> embedding;                           // only if the head is not tied
  std::vector<float> attn_norms, ffn_norms, norm;      // [layers][hidden], [hidden]
  std::vector<Pages<uint16_t>> keys, values;           // [device]: [layer][KV head][positions]
  std::vector<std::unique_ptr<Board>> boards;          // [device]
  std::unique_ptr<Board> everyone;                     // all members: sampling and control
  std::vector<std::unique_ptr<PeerBoard>> peers;       // [device]
  Aligned<float> scores;                               // [vocab]
  std::vector<Claims> claims;                          // [member]
  std::vector<Middle> middles;                         // [member]: of the head, for a pair the first one's

  Job job;
  TokenRing ring;
  std::atomic<bool> stop{false}, abort{false};
  std::atomic<int> running{0};
  std::atomic<int32_t> finish{ML_RUNNING};
  std::atomic<int32_t> prefilled{0};
  int64_t start_ns = 0, prefill_ns = 0;

  std::mutex mutex;
  std::condition_variable wake;
  int64_t launches = 0;
  bool quit = false;

  int64_t positions() const { return int64_t(panels_of(plan.s.context)) * kBlock; }
  CacheView cache(int device, int layer, int head) const {
    const int64_t heads = int64_t(plan.shards) * plan.kv_heads;
    const int64_t at = (layer * heads + head) * positions() * plan.s.head_dim;
    return {keys[device].data() + at, values[device].data() + at, plan.s.head_dim};
  }
  int local_lines() const;
};

static int choose_block(const Plan& plan, const MlTeam& team) {
  if (team.block > 0) return team.block;
  // A block's residual streams and histories are private to a thread: many wide lanes get a shorter one.
  const int64_t a_token = int64_t(plan.streams) * plan.s.hidden * (4 + 2 * plan.s.delay) * 4;
  const int64_t tokens = (int64_t(8) << 20) / a_token;
  return int(std::clamp<int64_t>(tokens / kTile * kTile, kTile, 48));
}

int Shared::local_lines() const {
  const int t = block, heads = plan.shards * plan.kv_heads;
  const int widest = std::max({plan.qkv_panels, plan.out_panels, plan.ffn_panels});
  const int partials = plan.threads * heads * plan.group * panels_of(plan.s.head_dim + 2);
  const int whole = heads * t * plan.group * panels_of(plan.s.head_dim);
  return std::max({plan.shards * widest * t, partials, whole});
}

Shared::Shared(const MlShape& shape, const MlTeam& wanted)
    : plan(shape, wanted), team(wanted), members(wanted.devices * wanted.threads), block(choose_block(plan, wanted)) {
  const MlShape& s = plan.s;
  windows.assign(s.windows, s.windows + s.layers);
  exchanges[0].assign(s.attention_exchanges, s.attention_exchanges + s.layers);
  exchanges[1].assign(s.mlp_exchanges, s.mlp_exchanges + s.layers);
  inverse_frequencies.assign(s.inverse_frequencies, s.inverse_frequencies + s.head_dim / 2);
  for (auto& numbers : peer_number) numbers.assign(s.layers, -1);
  if (team.devices > 1) {
    for (int layer = 0; layer < s.layers; ++layer)
      for (int kind = 0; kind < 2; ++kind) {
        const int later = layer + s.delay;
        const bool read_later = later < s.layers && exchanges[kind][later] == ML_PAST;
        if (exchanges[kind][layer] == ML_PRESENT || read_later) peer_number[kind][layer] = peer_exchanges++;
      }
    if (s.streams > 1 && !plan.head_by_stream) head_peer = peer_exchanges++;
  }

  attn_norms.assign(int64_t(s.layers) * s.hidden, 1);
  ffn_norms = attn_norms;
  norm.assign(s.hidden, 1);
  head_panels.assign(plan.head_by_stream ? s.streams * plan.head_panels : plan.head_panels, nullptr);
  if (!s.tied_head) embedding = Pages<uint16_t>(int64_t(s.vocab) * s.hidden, PageSize::kSmall);
  const int64_t cache_values = int64_t(s.layers) * plan.shards * plan.kv_heads * positions() * s.head_dim;
  const int64_t peer_lines =
      int64_t(plan.out_panels) * block * (s.head == ML_LANE && s.streams > 1 ? plan.streams : 1);
  for (int device = 0; device < team.devices; ++device) {
    for (int thread = 0; thread < team.threads; ++thread) {
      tapes.emplace_back(plan.tape_values(device, thread) + kAhead, PageSize::kHuge);
      const Run run = plan.run(ML_HEAD, device, thread);
      const uint16_t* at = tapes.back().data() + plan.offset(ML_HEAD, 0, device, thread);
      const int first = plan.head_by_stream ? device * plan.units(ML_HEAD) : 0;
      for (int unit = run.first; unit < run.last; ++unit)
        head_panels[first + unit] = at + int64_t(plan.place(ML_HEAD, device, thread, unit)) * plan.head_cols * kLine;
    }
    keys.emplace_back(cache_values, PageSize::kSmall);
    values.emplace_back(cache_values, PageSize::kSmall);
    boards.push_back(std::make_unique<Board>(team.threads, local_lines()));
    // Four times what may be under way, and room for both ends to learn of each other's progress.
    if (team.devices > 1)
      peers.push_back(std::make_unique<PeerBoard>(team.devices, team.threads, peer_lines, 8 * s.delay + 10));
  }
  everyone = std::make_unique<Board>(members, members);
  scores = allocate<float>(s.vocab + kLine);
  claims = std::vector<Claims>(members);
  middles = std::vector<Middle>(members);
}

// Memory that will be read.
struct Stretch {
  const char *upto, *end;

  // Reads `lines` of it, whatever that takes; returns how many of them were beyond the end.
  int touch(int lines) {
    for (; lines > 0 && upto < end; --lines, upto += 64) (void)*reinterpret_cast<const volatile char*>(upto);
    return lines;
  }
};

// One thread of the team.
class Member {
 public:
  Member(Shared& shared, int index);
  // Runs the job in hand. Returns how it ended.
  int run();

  double phase_ns[kPhases][3] = {};
  int decoded = 0;
  std::vector<MlSpan> spans;

 private:
  enum Wait { kWork, kLocal, kPeer };

  // What a waiting thread does: it asks for the tape that it will read next, and counts the time.
  struct Idle {
    Member& m;
    Wait kind;
    int64_t since = 0;
    void operator()(bool begin) {
      if (begin && m.timed_) since = now_ns();
      m.course_.meanwhile();
    }
    void ended() {
      if (m.timed_) m.waited_[kind] += now_ns() - since;
    }
  };
  Idle idle(Wait kind = kLocal) { return {*this, kind}; }

  // The steps of a block of `tokens_` positions from `position_` on. Each returns false if the team aborts.
  bool block(const int32_t* ids, bool last);
  void embed(const int32_t* ids);
  bool qkv(int layer);
  bool attention(int layer);
  bool attention_of_one(int layer);
  bool attention_of_many(int layer);
  bool project(int tensor, int layer, const float* in, int64_t in_shard);
  bool gate_up(int layer);
  bool add_outputs(int kind, int layer);
  bool head(const float* x, int tokens, int64_t vocab);
  bool head_vector(const float* x, int tokens);
  int sample(int32_t* id);

  template <Half kHalf>
  Run multiply(int tensor, int layer, const float* in, int64_t in_shard, float* to_lines);
  template <Half kHalf>
  Run multiply_one(int tensor, int layer, const float* in, int64_t in_shard, float* to_lines);
  template <Half kHalf>
  Run multiply_many(int tensor, int layer, const float* in, int64_t in_shard, float* to_lines);
  template <Half kHalf>
  Run head_of_one(float* scores);
  bool lost(int tensor, int k) const;
  bool take(int tensor, int k);
  template <class Emit>
  bool gather(int units, int64_t lines_a_unit, int tensor, Emit&& emit);
  void close_local();
  void send(int64_t number, const float* rows, int panels);
  bool receive(int64_t number, int from, float* rows, int panels);
  void tell(const float* words, int count);
  void wait_for_link(int64_t sent);
  bool everyone_at(int member, float* line);
  void rms_norm(const float* x, const float* scale, float* out, int tokens);
  void rotate(float* rows, int heads, int head_stride_rows);
  void turn_tables();

  int64_t plan_cache_reads(int layer);
  void read_cache_early(int lines);
  AttentionSplit attention_split(int layer) const;
  void mark(Phase phase, int layer);

  static constexpr int kLinesMeanwhile = 24;  // asked for between two steps of attention
  static constexpr int64_t kCacheAhead = 384 << 10;  // with Course::kFurthest, most of a second-level cache of 1 MB

  Shared& shared_;
  const Plan& plan_;
  const int index_, device_, thread_;
  Exchange local_, global_;
  Course course_;
  Claims& claims_;
  const Claims* const partner_;  // null: nobody to share with
  Run head_run_;                 // units of the head whose scores are this thread's to look at
  std::vector<Stretch> cache_asked_;  // what attention will read, in that order
  size_t cache_at_ = 0;

  int tokens_ = 0, position_ = 0;
  int64_t peer_base_ = 0;  // number of the block's first peer exchange
  std::vector<std::pair<float*, int64_t>> peer_reads_;  // this thread's share of buffers to clear

  Aligned<float> x_, normed_, gathered_, heads_, outputs_, sum_, received_, total_, lines_, scores_, partials_;
  // [delay] outputs of this device's shards, and their sum: over all devices if it is known, else over these.
  Aligned<float> past_[2], past_sum_[2];
  Aligned<float> cos_, sin_;
  int64_t scores_stride_ = 0;
  std::vector<Partial> parts_;
  std::vector<uint8_t> seen_;
  std::vector<float> scratch_;

  bool timed_ = false, traced_ = false;
  int generated_ = 0;
  int64_t last_ns_ = 0;
  int64_t waited_[3] = {};
};

// The member that shares its phases with member `index`, or -1. Behind a barrier nobody sees how far the others are.
static int partner_of(const Shared& shared, int index) {
  const int threads = shared.plan.threads, partner = shared.plan.partner(index % threads);
  return partner < 0 || shared.team.barrier ? -1 : index / threads * threads + partner;
}
static const uint16_t* partner_tape(const Shared& shared, int index) {
  const int partner = partner_of(shared, index);
  return partner < 0 ? nullptr : shared.tapes[partner].data();
}
static const Claims* partner_claims(const Shared& shared, int index) {
  const int partner = partner_of(shared, index);
  return partner < 0 ? nullptr : &shared.claims[partner];
}

Member::Member(Shared& shared, int index)
    : shared_(shared),
      plan_(shared.plan),
      index_(index),
      device_(index / shared.team.threads),
      thread_(index % shared.team.threads),
      local_(*shared.boards[device_], thread_, shared.team.barrier != 0, shared.abort),
      global_(*shared.everyone, index, false, shared.abort),
      course_(plan_, device_, thread_, shared.tapes[index].data(), partner_tape(shared, index)),
      claims_(shared.claims[index]),
      partner_(partner_claims(shared, index)) {
  const MlShape& s = plan_.s;
  const int64_t t = shared.block, hidden = int64_t(plan_.out_panels) * kLine;
  const int64_t widest = std::max({plan_.qkv_panels, plan_.ffn_panels, plan_.out_panels}) * int64_t(kLine);
  const int64_t wide = s.streams > 1 && s.head == ML_LANE ? s.streams : plan_.streams;
  x_ = allocate<float>(plan_.streams * hidden * t);
  normed_ = allocate<float>(wide * hidden * t);
  gathered_ = allocate<float>(plan_.shards * widest * t);
  heads_ = allocate<float>(int64_t(plan_.shards) * plan_.q_cols * t);
  outputs_ = allocate<float>(plan_.shards * hidden * t);
  sum_ = allocate<float>(std::max<int64_t>(wide, 1) * hidden * t);
  received_ = allocate<float>(wide * hidden * t);
  total_ = allocate<float>(wide * hidden * t);
  lines_ = allocate<float>(2 * kLine * t);
  scores_stride_ = shared.positions() + kBlock;
  scores_ = allocate<float>(kTogether * scores_stride_);
  // Zero, so that the words behind a head's last are no sentinel.
  const int64_t partials = int64_t(plan_.group) * panels_of(s.head_dim + 2) * kLine;
  partials_ = allocate<float>(partials);
  std::fill(partials_.get(), partials_.get() + partials, 0.0f);
  parts_.resize(plan_.group);
  cache_asked_.reserve(int64_t(2) * plan_.shards * plan_.kv_heads);
  cos_ = allocate<float>(t * s.head_dim);
  sin_ = allocate<float>(t * s.head_dim);
  for (int kind = 0; kind < 2; ++kind) {
    past_[kind] = allocate<float>(s.delay * plan_.shards * hidden * t);
    past_sum_[kind] = allocate<float>(s.delay * hidden * t);
  }
  seen_.assign(s.vocab, 0);
  scratch_.reserve(s.vocab);
}

void Member::mark(Phase phase, int layer) {
  if (!timed_) return;
  const int64_t now = now_ns();
  const int64_t waiting = waited_[kLocal] + waited_[kPeer];
  phase_ns[phase][kWork] += double(now - last_ns_ - waiting);
  phase_ns[phase][kLocal] += double(waited_[kLocal]);
  phase_ns[phase][kPeer] += double(waited_[kPeer]);
  if (traced_) {
    // Waits come last within a phase's exchange; drawn in that order they sum to the truth.
    int64_t at = last_ns_;
    const int64_t parts[3] = {now - last_ns_ - waiting, waited_[kLocal], waited_[kPeer]};
    for (int kind = 0; kind < 3; ++kind) {
      if (parts[kind] > 0)
        spans.push_back({phase, layer, device_, thread_, kind, at - shared_.start_ns, at + parts[kind] - shared_.start_ns});
      at += parts[kind];
    }
  }
  waited_[kLocal] = waited_[kPeer] = 0;
  last_ns_ = now;
}

// Rotations of the block's positions. Angles in double: at position 4000 a float32 angle is already off by 2e-4.
void Member::turn_tables() {
  const int half = plan_.s.head_dim / 2;
  for (int t = 0; t < tokens_; ++t)
    for (int j = 0; j < half; ++j) {
      const double angle = double(position_ + t) * shared_.inverse_frequencies[j];
      cos_[t * half + j] = float(std::cos(angle));
      sin_[t * half + j] = float(std::sin(angle));
    }
}

// One head of one token: the two of a pair lie `apart` words apart, the pairs kStep words. One loop of vectors, once
// inlined.
template <int kStep>
static void turn_head(float* __restrict head, const float* __restrict cosines, const float* __restrict sines, int half,
                      int apart) {
  for (int j = 0; j < half; ++j) {
    const float u = head[kStep * j], v = head[kStep * j + apart];
    head[kStep * j] = u * cosines[j] - v * sines[j];
    head[kStep * j + apart] = v * cosines[j] + u * sines[j];
  }
}

// Turns `heads` heads of [head_dim][tokens] rows in place.
void Member::rotate(float* rows, int heads, int head_rows) {
  const int half = plan_.s.head_dim / 2, t_count = tokens_;
  if (t_count == 1) {
    for (int h = 0; h < heads; ++h) {
      float* head = rows + int64_t(h) * head_rows;
      plan_.s.rope_interleaved ? turn_head<2>(head, cos_.get(), sin_.get(), half, 1)
                               : turn_head<1>(head, cos_.get(), sin_.get(), half, half);
    }
    return;
  }
  for (int h = 0; h < heads; ++h) {
    float* head = rows + int64_t(h) * head_rows * t_count;
    for (int j = 0; j < half; ++j) {
      float* a = head + int64_t(plan_.s.rope_interleaved ? 2 * j : j) * t_count;
      float* b = head + int64_t(plan_.s.rope_interleaved ? 2 * j + 1 : j + half) * t_count;
      for (int t = 0; t < t_count; ++t) {
        const float c = cos_[t * half + j], s = sin_[t * half + j], u = a[t], v = b[t];
        a[t] = u * c - v * s;
        b[t] = v * c + u * s;
      }
    }
  }
}

// [hidden][tokens]: each column over its root mean square, times `scale`.
void Member::rms_norm(const float* x, const float* scale, float* out, int tokens) {
  const int hidden = plan_.s.hidden;
  if (tokens == 1) {
    Vec squares[4] = {};
    int k = 0;
    for (; k + 4 * kWidth <= hidden; k += 4 * kWidth)
      for (int i = 0; i < 4; ++i) {
        const Vec v = load(x + k + i * kWidth);
        squares[i] += v * v;
      }
    float total = sum(squares[0] + squares[1] + squares[2] + squares[3]);
    for (; k < hidden; ++k) total += x[k] * x[k];
    const float inverse = 1.0f / std::sqrt(total / float(hidden) + plan_.s.norm_eps);
    for (int i = 0; i < hidden; ++i) out[i] = x[i] * inverse * scale[i];
    return;
  }
  std::vector<float>& inverse = scratch_;
  inverse.assign(tokens, 0);
  for (int k = 0; k < hidden; ++k)
    for (int t = 0; t < tokens; ++t) inverse[t] += x[int64_t(k) * tokens + t] * x[int64_t(k) * tokens + t];
  for (int t = 0; t < tokens; ++t) inverse[t] = 1.0f / std::sqrt(inverse[t] / float(hidden) + plan_.s.norm_eps);
  for (int k = 0; k < hidden; ++k)
    for (int t = 0; t < tokens; ++t)
      out[int64_t(k) * tokens + t] = x[int64_t(k) * tokens + t] * inverse[t] * scale[k];
}

// True if the k-th unit of this thread's own was taken by its partner.
bool Member::lost(int tensor, int k) const {
  return partner_ && k > 0 && k + int64_t(partner_->taken.units(course_.phase())) >= course_.part(tensor).count;
}

// Takes the partner's unit that is this thread's k-th, if the partner has not begun it.
bool Member::take(int tensor, int k) {
  const Part& part = course_.part(tensor);
  const int wanted = k - part.count + 1;
  if (!partner_ || wanted >= part.partners) return false;
  const uint32_t phase = course_.phase();
  if (uint32_t(wanted) <= claims_.taken.units(phase)) return true;
  const uint32_t begun = std::max(1u, partner_->begun.units(phase));
  if (begun > uint32_t(part.partners - wanted)) return false;
  claims_.taken.say(phase, std::clamp(course_.expected(tensor) - part.count - 1, wanted, part.partners - int(begun)));
  return true;
}

// This thread's panels of a tensor times its shard's columns of `in`; results as lines [unit][tokens]. Returns the units.
template <Half kHalf>
Run Member::multiply(int tensor, int layer, const float* in, int64_t in_shard, float* to_lines) {
  return tokens_ == 1 ? multiply_one<kHalf>(tensor, layer, in, in_shard, to_lines)
                      : multiply_many<kHalf>(tensor, layer, in, in_shard, to_lines);
}

template <Half kHalf>
Run Member::multiply_one(int tensor, int layer, const float* in, int64_t in_shard, float* to_lines) {
  const Part& part = course_.part(tensor);
  const int cols = plan_.cols(tensor), per_shard = plan_.units_per_shard(tensor), panels = plan_.panels_per_unit(tensor);
  const int64_t panel = int64_t(cols) * kLine;
  float* y = lines_.get();
  course_.begin(tensor, layer);
  const bool attends_next = tensor == ML_QKV && part.count > 0;
  const int likely = std::max(1, std::min(part.count, course_.expected(tensor)));
  const int cache_lines = attends_next ? int(plan_cache_reads(layer) / (64 * likely)) + 1 : 0;
  auto compute = [&](int k) {
    const int unit = part.unit(k);
    const float* x = in + unit / per_shard * in_shard;
    const uint16_t* tape = course_.at(tensor, layer, k);
    course_.begin_unit(tensor, layer, k);
    for (int p = 0; p < panels; ++p) panel_vector<kHalf>(tape + p * panel, x, cols, y + p * kLine, course_);
    if (cache_lines) read_cache_early(cache_lines);
    if (panels == 2) {
      for (int i = 0; i < kLine; i += kWidth) store(y + i, silu(load(y + i)) * load(y + kLine + i));
    }
    if (k == 0) local_.forget();
    publish_line(to_lines + int64_t(unit) * kLine, y);
  };
  int k = 0;
  for (; k < part.count && !lost(tensor, k); ++k) {
    claims_.begun.say(course_.phase(), k + 1);
    compute(k);
  }
  if (k == part.count && k > 0)
    for (; take(tensor, k); ++k) compute(k);
  if (k == 0) local_.forget();
  course_.end(tensor, layer, k);
  return part.run(k);
}

template <Half kHalf>
Run Member::multiply_many(int tensor, int layer, const float* in, int64_t in_shard, float* to_lines) {
  local_.forget();
  const Part& part = course_.part(tensor);
  const int cols = plan_.cols(tensor), per_shard = plan_.units_per_shard(tensor), t = tokens_;
  const int panels = plan_.panels_per_unit(tensor);
  const int64_t panel = int64_t(cols) * kLine;
  float* y = lines_.get();
  for (int k = 0; k < part.count;) {
    const uint16_t* tape = course_.at(tensor, layer, k);
    const int unit = part.unit(k), shard = unit / per_shard;
    const float* x = in + shard * in_shard;
    // Two panels at a time where the registers hold them: a gate and its up, or two of one shard.
    const bool two = kTilePanels == 2 && panels == 1 && k + 1 < part.count && part.unit(k + 1) / per_shard == shard;
    const int now = two ? 2 : 1, count = now * panels;
    if (count == 2 && kTilePanels == 2) {
      panel_block<kHalf, kTilePanels>(tape, x, cols, t, y);
    } else {
      for (int p = 0; p < count; ++p) panel_block<kHalf, 1>(tape + p * panel, x, cols, t, y + p * t * kLine);
    }
    if (panels == 2) {
      for (int i = 0; i < t * kLine; i += kWidth) store(y + i, silu(load(y + i)) * load(y + t * kLine + i));
    }
    for (int i = 0; i < now; ++i)
      for (int token = 0; token < t; ++token)
        publish_line(to_lines + (int64_t(part.unit(k + i)) * t + token) * kLine, y + (i * t + token) * kLine);
    k += now;
  }
  course_.skip(tensor, layer);
  return part.run(part.count);
}

AttentionSplit Member::attention_split(int layer) const {
  const int window = shared_.windows[layer];
  return {window ? std::max(0, position_ + 1 - window) : 0, position_ + 1, plan_.shards * plan_.kv_heads,
          plan_.threads};
}

// What this thread will read of the cache in a layer, as far as a second-level cache holds it. Returns the bytes.
int64_t Member::plan_cache_reads(int layer) {
  const AttentionSplit split = attention_split(layer);
  const Run mine = split.heads_of(thread_);
  int64_t left = kCacheAhead;
  cache_asked_.clear();
  cache_at_ = 0;
  auto add = [&](const uint16_t* first, const uint16_t* last) {
    const char *from = reinterpret_cast<const char*>(first), *to = reinterpret_cast<const char*>(last);
    to = std::min(to, from + left);
    cache_asked_.push_back({from, to});
    left -= to - from;
  };
  for (int head = mine.first; head < mine.last; ++head) {
    const CacheView cache = shared_.cache(device_, layer, head);
    const Run positions = split.positions_of(thread_, head);
    const int64_t first = positions.first / kBlock * kBlock, last = panels_of(positions.last) * kBlock;
    add(cache.keys + first * cache.head_dim, cache.keys + last * cache.head_dim);
    add(cache.values + first * cache.head_dim, cache.values + last * cache.head_dim);
  }
  return kCacheAhead - left;
}

// Among the products of the queries, keys and values the cache is read as the tape is, so that attention finds it near.
void Member::read_cache_early(int lines) {
  while (cache_at_ < cache_asked_.size() && (lines = cache_asked_[cache_at_].touch(lines)) > 0) ++cache_at_;
}

// Everybody here has read this exchange, and with it what other devices had sent before it.
void Member::close_local() {
  local_.close();
  for (auto& [at, lines] : peer_reads_) clear_lines(at, lines);
  peer_reads_.clear();
}

// Reads `lines_a_unit` lines of each unit of a phase, in order, from whichever thread published them.
template <class Emit>
bool Member::gather(int units, int64_t lines_a_unit, int tensor, Emit&& emit) {
  float line[kLine] __attribute__((aligned(64)));
  for (int unit = 0; unit < units; ++unit)
    for (int64_t i = 0; i < lines_a_unit; ++i) {
      if (!local_.read(unit * lines_a_unit + i, line, idle())) return false;
      if (unit % 4 == 0) course_.meanwhile();
      emit(unit, int(i), line);
    }
  for (int thread = 0; thread < plan_.threads; ++thread)
    if (plan_.run(tensor, device_, thread).count() == 0 && !local_.read_presence(thread, idle())) return false;
  close_local();
  return true;
}

// One phase: multiply, publish, gather all threads' rows as [shard][padded rows][tokens].
bool Member::project(int tensor, int layer, const float* in, int64_t in_shard) {
  float* lines = local_.open();
  const Run run = plan_.s.bfloat16 ? multiply<Half::kBfloat16>(tensor, layer, in, in_shard, lines)
                                   : multiply<Half::kFloat16>(tensor, layer, in, in_shard, lines);
  const int t = tokens_;
  local_.publish(int64_t(run.first) * t, int64_t(run.count()) * t);
  float* to = tensor == ML_ATTN_OUT || tensor == ML_DOWN ? outputs_.get() : gathered_.get();
  if (t == 1)
    return gather(plan_.units(tensor), t, tensor, [&](int unit, int, const float* line) {
      for (int i = 0; i < kLine; i += kWidth) store(to + int64_t(unit) * kLine + i, load(line + i));
    });
  return gather(plan_.units(tensor), t, tensor, [&](int unit, int token, const float* line) {
    float* rows = to + int64_t(unit) * kLine * t + token;
    for (int r = 0; r < kLine; ++r) rows[int64_t(r) * t] = line[r];
  });
}

void Member::embed(const int32_t* ids) {
  const MlShape& s = plan_.s;
  const int t_count = tokens_;
  for (int t = 0; t < t_count; ++t) {
    const int id = ids[t];
    const uint16_t* row;
    int64_t step = 1;
    if (s.tied_head) {
      const int panel = plan_.head_by_stream ? id / plan_.head_rows * plan_.head_panels + id % plan_.head_rows / kLine
                                             : id / kLine;
      const int lane = plan_.head_by_stream ? id % plan_.head_rows % kLine : id % kLine;
      row = shared_.head_panels[panel] + lane;
      step = kLine;
    } else {
      row = shared_.embedding.data() + int64_t(id) * s.hidden;
    }
    for (int k = 0; k < s.hidden; ++k) {
      const uint16_t h = row[k * step];
      x_[int64_t(k) * t_count + t] = s.bfloat16 ? bfloat_to_float(h) : half_to_float(h);
    }
  }
  const int64_t stream = int64_t(s.hidden) * t_count;
  for (int i = 1; i < plan_.streams; ++i) std::copy(x_.get(), x_.get() + stream, x_.get() + i * stream);
}

bool Member::qkv(int layer) {
  const int64_t stream = int64_t(plan_.s.hidden) * tokens_;
  for (int i = 0; i < plan_.streams; ++i)
    rms_norm(x_.get() + i * stream, &shared_.attn_norms[int64_t(layer) * plan_.s.hidden], normed_.get() + i * stream,
             tokens_);
  if (!project(ML_QKV, layer, normed_.get(), plan_.streams > 1 ? stream : 0)) return false;
  const float scale = float(1.0 / std::sqrt(double(plan_.s.head_dim)));
  for (int shard = 0; shard < plan_.shards; ++shard) {
    float* rows = gathered_.get() + int64_t(shard) * plan_.qkv_panels * kLine * tokens_;
    rotate(rows, plan_.q_heads + plan_.kv_heads, plan_.s.head_dim);
    for (int64_t i = 0; i < int64_t(plan_.q_cols) * tokens_; ++i) rows[i] *= scale;
  }
  return true;
}

bool Member::attention(int layer) { return tokens_ == 1 ? attention_of_one(layer) : attention_of_many(layer); }

// Decode: (KV head, block of positions) units are dealt to the threads; readers merge what shares a head.
bool Member::attention_of_one(int layer) {
  const int dim = plan_.s.head_dim, heads = plan_.shards * plan_.kv_heads, group = plan_.group;
  const int lines = panels_of(dim + 2), per_head = group * lines;
  const AttentionSplit split = attention_split(layer);
  auto rows_of = [&](int head) {
    return gathered_.get() + int64_t(head / plan_.kv_heads) * plan_.qkv_panels * kLine;
  };

  const Run mine = split.heads_of(thread_);
  float* out = local_.open() + int64_t(thread_) * heads * per_head * kLine;
  float* packed = partials_.get();
  for (int head = mine.first; head < mine.last; ++head) {
    const CacheView cache = shared_.cache(device_, layer, head);
    const float* rows = rows_of(head);
    const int in_shard = head % plan_.kv_heads;
    const auto [from, to] = split.positions_of(thread_, head);
    if (to == position_ + 1) {
      const float* key = rows + int64_t(plan_.q_heads + in_shard) * dim;
      cache.append(position_, key, key + int64_t(plan_.kv_heads) * dim);
    }
    attend(cache, rows + int64_t(in_shard) * group * dim, group, from, to, scores_.get(), scores_stride_, packed,
           lines * kLine, parts_.data(), [&] { course_.ask_near(kLinesMeanwhile); });
    if (head == mine.first) local_.forget();
    for (int g = 0; g < group; ++g) {
      packed[g * lines * kLine + dim] = parts_[g].peak;
      packed[g * lines * kLine + dim + 1] = parts_[g].weight;
    }
    for (int i = 0; i < per_head; ++i)
      publish_line(out + (int64_t(head) * per_head + i) * kLine, packed + i * kLine);
  }
  if (!mine.count()) local_.forget();
  const int64_t base = int64_t(thread_) * heads * per_head;
  local_.publish(base + int64_t(mine.first) * per_head, int64_t(mine.count()) * per_head);

  std::vector<float>& weights = scratch_;
  weights.assign(2 * heads * group, 0);
  float* peaks = weights.data() + heads * group;
  for (int thread = 0; thread < plan_.threads; ++thread) {
    const Run theirs = split.heads_of(thread);
    if (!theirs.count() && !local_.read_presence(thread, idle())) return false;
    for (int q = theirs.first * group; q < theirs.last * group; ++q) {
      for (int i = 0; i < lines; ++i)
        if (!local_.read(int64_t(thread) * heads * per_head + q * lines + i, packed + i * kLine, idle())) return false;
      const Partial merged = merge({peaks[q], weights[q]}, heads_.get() + int64_t(q) * dim,
                                   {packed[dim], packed[dim + 1]}, packed, dim);
      peaks[q] = merged.peak;
      weights[q] = merged.weight;
    }
  }
  close_local();
  for (int q = 0; q < heads * group; ++q)
    for (int d = 0; d < dim; ++d) heads_[int64_t(q) * dim + d] /= weights[q];
  return true;
}

// Prefill: the block's keys and values go to the cache first, then (KV head, token) units are dealt to the threads.
bool Member::attention_of_many(int layer) {
  const int dim = plan_.s.head_dim, heads = plan_.shards * plan_.kv_heads, group = plan_.group, t_count = tokens_;
  const int window = shared_.windows[layer], lines = panels_of(dim);
  const Run units = share(heads * t_count, thread_, plan_.threads);
  std::vector<float>& column = scratch_;
  column.resize(std::max(2, group) * dim);
  auto row = [&](int head, int row_in_shard) {
    return gathered_.get() +
           (int64_t(head / plan_.kv_heads) * plan_.qkv_panels * kLine + row_in_shard) * t_count;
  };
  for (int unit = units.first; unit < units.last; ++unit) {
    const int head = unit / t_count, t = unit % t_count, in_shard = head % plan_.kv_heads;
    const float* key = row(head, (plan_.q_heads + in_shard) * dim);
    const float* value = row(head, (plan_.q_heads + plan_.kv_heads + in_shard) * dim);
    for (int d = 0; d < dim; ++d) {
      column[d] = key[int64_t(d) * t_count + t];
      column[dim + d] = value[int64_t(d) * t_count + t];
    }
    shared_.cache(device_, layer, head).append(position_ + t, column.data(), column.data() + dim);
  }
  local_.open();
  local_.forget();
  local_.publish(0, 0);
  for (int thread = 0; thread < plan_.threads; ++thread)
    if (!local_.read_presence(thread, idle())) return false;
  close_local();

  float* to = local_.open();
  local_.forget();
  float* out = partials_.get();
  for (int unit = units.first; unit < units.last; ++unit) {
    const int head = unit / t_count, t = unit % t_count, in_shard = head % plan_.kv_heads;
    const int last = position_ + t + 1, first = window ? std::max(0, last - window) : 0;
    const float* queries = row(head, in_shard * group * dim);
    for (int d = 0; d < group * dim; ++d) column[d] = queries[int64_t(d) * t_count + t];
    attend(shared_.cache(device_, layer, head), column.data(), group, first, last, scores_.get(), scores_stride_, out,
           lines * kLine, parts_.data(), [] {});
    for (int g = 0; g < group; ++g) {
      float* mixed = out + g * lines * kLine;
      for (int d = 0; d < dim; ++d) mixed[d] /= parts_[g].weight;
    }
    for (int i = 0; i < group * lines; ++i)
      publish_line(to + (int64_t(unit) * group * lines + i) * kLine, out + i * kLine);
  }
  const int64_t per_unit = int64_t(group) * lines;
  local_.publish(units.first * per_unit, units.count() * per_unit);
  float line[kLine] __attribute__((aligned(64)));
  for (int unit = 0; unit < heads * t_count; ++unit)
    for (int g = 0; g < group; ++g)
      for (int i = 0; i < lines; ++i) {
        if (!local_.read((int64_t(unit) * group + g) * lines + i, line, idle())) return false;
        const int head = unit / t_count, t = unit % t_count;
        float* rows = heads_.get() + (int64_t(head * group + g) * dim + i * kLine) * t_count + t;
        for (int r = 0; r < std::min(kLine, dim - i * kLine); ++r) rows[int64_t(r) * t_count] = line[r];
      }
  for (int thread = 0; thread < plan_.threads; ++thread)
    if (share(heads * t_count, thread, plan_.threads).count() == 0 && !local_.read_presence(thread, idle()))
      return false;
  close_local();
  return true;
}

bool Member::gate_up(int layer) {
  const int64_t stream = int64_t(plan_.s.hidden) * tokens_;
  for (int i = 0; i < plan_.streams; ++i)
    rms_norm(x_.get() + i * stream, &shared_.ffn_norms[int64_t(layer) * plan_.s.hidden], normed_.get() + i * stream,
             tokens_);
  return project(ML_GATE_UP, layer, normed_.get(), plan_.streams > 1 ? stream : 0);
}

// This thread's share of [panels * 16][tokens] rows into every other device's mailbox.
void Member::send(int64_t number, const float* rows, int panels) {
  const Run run = share(panels, thread_, plan_.threads);
  const int t_count = tokens_;
  order_before_publishing();
  for (int peer = 0; peer < plan_.devices; ++peer) {
    if (peer == device_) continue;
    PeerBoard& board = *shared_.peers[peer];
    float* to = board.section(number, device_);
    float line[kLine];
    for (int p = run.first; p < run.last; ++p)
      for (int t = 0; t < t_count; ++t) {
        for (int r = 0; r < kLine; ++r) line[r] = rows[(int64_t(p) * kLine + r) * t_count + t];
        publish_line(to + (int64_t(p) * t_count + t) * kLine, line);
      }
    std::fill(line, line + kLine, 0.0f);
    write_time(line, now_ns());
    publish_line(board.stamp(number, device_, thread_), line);
  }
}

// What device `from` sent in an exchange, as [panels * 16][tokens]. Arrival is as late as the link makes it.
bool Member::receive(int64_t number, int from, float* rows, int panels) {
  PeerBoard& board = *shared_.peers[device_];
  const float* at = board.section(number, from);
  const int t_count = tokens_;
  float line[kLine] __attribute__((aligned(64)));
  auto wait = [&](const float* source) {
    if (try_line(source, line)) return true;
    Idle waiting = idle(kPeer);
    waiting(true);
    Spin spin(shared_.abort);
    do {
      waiting(false);
      if (!spin.again()) return false;
    } while (!try_line(source, line));
    waiting.ended();
    return true;
  };
  int64_t sent = 0;
  for (int thread = 0; thread < plan_.threads; ++thread) {
    if (!wait(board.stamp(number, from, thread))) return false;
    sent = std::max(sent, read_time(line));
  }
  wait_for_link(sent);
  for (int p = 0; p < panels; ++p)
    for (int t = 0; t < t_count; ++t) {
      if (!wait(at + (int64_t(p) * t_count + t) * kLine)) return false;
      for (int r = 0; r < kLine; ++r) rows[(int64_t(p) * kLine + r) * t_count + t] = line[r];
    }
  // Everybody here has read it once the next exchange of this device is complete; each clears a share.
  const Run share_of = share(panels * t_count, thread_, plan_.threads);
  peer_reads_.emplace_back(board.section(number, from) + int64_t(share_of.first) * kLine, share_of.count());
  peer_reads_.emplace_back(board.stamp(number, from, thread_), 1);
  order_after_polling();
  return true;
}

// Adds a module's outputs (outputs_: [shard][padded hidden][tokens]) to the residual streams: engine/models/config.py's Exchange.
bool Member::add_outputs(int kind, int layer) {
  const MlShape& s = plan_.s;
  const int how = shared_.exchanges[kind][layer];
  const int64_t rows = int64_t(plan_.out_panels) * kLine * tokens_, used = int64_t(s.hidden) * tokens_;
  const int number = shared_.peer_number[kind][layer];
  const int slot = s.delay ? layer % s.delay : 0;
  float* own = outputs_.get();

  const bool keep = s.delay > 0 && layer + s.delay < s.layers && shared_.exchanges[kind][layer + s.delay] == ML_PAST;
  const float* local = own;  // sum over this device's shards
  if (plan_.shards > 1 && (how == ML_PRESENT || keep)) {
    for (int64_t i = 0; i < rows; ++i) {
      float v = own[i];
      for (int shard = 1; shard < plan_.shards; ++shard) v += own[shard * rows + i];
      sum_[i] = v;
    }
    local = sum_.get();
  }
  if (number >= 0) send(peer_base_ + number, local, plan_.out_panels);

  // The sum over all devices, in the same order on each of them.
  auto total_of = [&](const float* mine, int peer_exchange) {
    if (plan_.devices == 1) {
      std::copy(mine, mine + used, total_.get());
      return true;
    }
    for (int from = 0; from < plan_.devices; ++from) {
      const float* part = mine;
      if (from != device_) {
        if (!receive(peer_base_ + peer_exchange, from, received_.get(), plan_.out_panels)) return false;
        part = received_.get();
      }
      if (from == 0)
        std::copy(part, part + used, total_.get());
      else
        for (int64_t i = 0; i < used; ++i) total_[i] += part[i];
    }
    return true;
  };

  if (how == ML_NONE) {
    const float scale = s.streams > 1 ? std::sqrt(float(s.streams)) : 1.0f;
    for (int i = 0; i < plan_.streams; ++i)
      for (int64_t k = 0; k < used; ++k) x_[i * used + k] += own[i * rows + k] * scale;
  } else if (how == ML_PRESENT) {
    if (!total_of(local, number)) return false;
    for (int i = 0; i < plan_.streams; ++i)
      for (int64_t k = 0; k < used; ++k) x_[i * used + k] += total_[k];
  } else {
    const float* past = past_[kind].get() + int64_t(slot) * plan_.shards * rows;
    const float* past_sum = past_sum_[kind].get() + slot * rows;
    if (shared_.exchanges[kind][layer - s.delay] == ML_PRESENT)
      std::copy(past_sum, past_sum + used, total_.get());  // what was received then, kept
    else if (!total_of(past_sum, shared_.peer_number[kind][layer - s.delay]))
      return false;
    for (int i = 0; i < plan_.streams; ++i)
      for (int64_t k = 0; k < used; ++k) x_[i * used + k] += own[i * rows + k] + (total_[k] - past[i * rows + k]);
  }
  if (keep) {
    std::copy(own, own + plan_.shards * rows, past_[kind].get() + int64_t(slot) * plan_.shards * rows);
    const float* sum = how == ML_PRESENT ? total_.get() : local;
    std::copy(sum, sum + used, past_sum_[kind].get() + slot * rows);
  }
  return true;
}

// normed_ becomes what meets the head: [head_cols][tokens], or one such block a stream.
bool Member::head_vector(const float* x, int tokens) {
  const MlShape& s = plan_.s;
  const int64_t stream = int64_t(s.hidden) * tokens;
  if (s.streams == 1 || plan_.head_by_stream) {
    for (int i = 0; i < plan_.streams; ++i) rms_norm(x + i * stream, shared_.norm.data(), normed_.get() + i * stream, tokens);
    return true;
  }
  const int kept = tokens_;
  tokens_ = tokens;
  const int64_t padded = int64_t(plan_.out_panels) * kLine * tokens;
  const bool wide = s.head == ML_LANE;
  const int panels = plan_.out_panels * (wide ? plan_.streams : 1);
  // This device's part: its lanes side by side, or added up.
  std::fill(sum_.get(), sum_.get() + padded * (wide ? plan_.streams : 1), 0.0f);
  for (int i = 0; i < plan_.streams; ++i) {
    const float* from = x + i * stream;
    if (!s.sum_before_norm || wide) {
      rms_norm(from, shared_.norm.data(), total_.get(), tokens);
      from = total_.get();
    }
    float* to = sum_.get() + (wide ? i * padded : 0);
    for (int64_t k = 0; k < stream; ++k) to[k] += from[k];
  }
  if (shared_.head_peer >= 0) send(peer_base_ + shared_.head_peer, sum_.get(), panels);
  for (int from = 0; from < plan_.devices; ++from) {
    const float* part = sum_.get();
    if (from != device_) {
      if (!receive(peer_base_ + shared_.head_peer, from, received_.get(), panels)) return false;
      part = received_.get();
    }
    if (wide) {
      for (int i = 0; i < plan_.streams; ++i)
        std::copy(part + i * padded, part + i * padded + stream, normed_.get() + (from * plan_.streams + i) * stream);
    } else if (from == 0) {
      std::copy(part, part + stream, total_.get());
    } else {
      for (int64_t k = 0; k < stream; ++k) total_[k] += part[k];
    }
  }
  if (!wide && s.sum_before_norm) {
    rms_norm(total_.get(), shared_.norm.data(), normed_.get(), tokens);
  } else if (!wide) {
    for (int64_t k = 0; k < stream; ++k) normed_[k] = total_[k] / float(s.streams);
  }
  tokens_ = kept;
  return true;
}

// Which ids the rows of a head unit are: `rows` of them from `first_id` on.
static void unit_ids(const Plan& plan, int device, int unit, int* first_id, int* rows) {
  const int in_shard = unit % plan.head_panels * kLine;
  const int lane = plan.head_by_stream ? device * plan.streams + unit / plan.head_panels : 0;
  *first_id = lane * plan.head_rows + in_shard;
  *rows = std::min(kLine, plan.head_rows - in_shard);
}

// Scores of one token, for the units that this thread gets: the middle of a pair is dealt as the two come to it. Exactly
// once, since scores are changed in place where they lie.
template <Half kHalf>
Run Member::head_of_one(float* scores) {
  const Part& part = course_.part(ML_HEAD);
  auto middle_of = [](int count) { return std::min(count / 8, Middle::kMost / 2); };  // more than two cores differ by
  const bool shares = partner_ && part.count > 0 && part.partners > 0;
  const int total = shares ? middle_of(part.count) + middle_of(part.partners) : 0;
  Middle& middle = shared_.middles[index_ - thread_ % 2];
  float* y = lines_.get();
  course_.begin(ML_HEAD, 0);
  int k = 0, until = part.count - (shares ? middle_of(part.count) : 0);
  do {
    for (; k < until; ++k) {
      const int unit = part.unit(k);
      const float* in = normed_.get() + (plan_.head_by_stream ? unit / plan_.head_panels * plan_.s.hidden : 0);
      course_.begin_unit(ML_HEAD, 0, k);
      panel_vector<kHalf>(course_.at(ML_HEAD, 0, k), in, plan_.head_cols, y, course_);
      int first_id, rows;
      unit_ids(plan_, device_, unit, &first_id, &rows);
      std::copy(y, y + rows, scores + first_id);
    }
    until += middle.take(course_.phase(), Plan::downwards(thread_), total);
  } while (k < until);
  course_.end(ML_HEAD, 0, k);
  return part.run(k);
}

// Logits of this thread's rows for each of `tokens` columns, to to[token * vocab + id].
bool Member::head(const float* x, int tokens, int64_t vocab) {
  if (!head_vector(x, tokens)) return false;
  float* to = shared_.job.params.all_logits ? shared_.job.params.all_logits + int64_t(position_) * vocab
                                            : shared_.scores.get();
  if (tokens == 1) {
    head_run_ = plan_.s.bfloat16 ? head_of_one<Half::kBfloat16>(to) : head_of_one<Half::kFloat16>(to);
    return true;
  }
  const Part& part = course_.part(ML_HEAD);
  const int64_t stream = int64_t(plan_.s.hidden) * tokens;
  float* y = lines_.get();
  for (int k = 0; k < part.count; ++k) {
    const int unit = part.unit(k);
    const float* in = normed_.get() + (plan_.head_by_stream ? unit / plan_.head_panels * stream : 0);
    const uint16_t* tape = course_.at(ML_HEAD, 0, k);
    plan_.s.bfloat16 ? panel_block<Half::kBfloat16, 1>(tape, in, plan_.head_cols, tokens, y)
                     : panel_block<Half::kFloat16, 1>(tape, in, plan_.head_cols, tokens, y);
    int first_id, rows;
    unit_ids(plan_, device_, unit, &first_id, &rows);
    for (int t = 0; t < tokens; ++t) std::copy(y + t * kLine, y + t * kLine + rows, to + t * vocab + first_id);
  }
  course_.skip(ML_HEAD, 0);
  return true;
}

// Publishes the first words of a line to every member; read with everyone_at.
void Member::tell(const float* words, int count) {
  float line[kLine] __attribute__((aligned(64))) = {};
  if (shared_.team.link_latency_ns > 0) write_time(line + kLine - kTimeWords, now_ns());
  std::copy(words, words + count, line);
  float* const to = global_.open() + int64_t(index_) * kLine;
  global_.forget();
  publish_line(to, line);
  global_.publish(index_, 1);
}

// A member of another device sees what was told a link later.
bool Member::everyone_at(int member, float* line) {
  const bool far = member / shared_.team.threads != device_;
  if (!global_.read(member, line, idle(far ? kPeer : kLocal))) return false;
  if (far) wait_for_link(read_time(line + kLine - kTimeWords));
  return true;
}

void Member::wait_for_link(int64_t sent) {
  const int64_t latency = shared_.team.link_latency_ns;
  if (latency <= 0 || now_ns() >= sent + latency) return;
  Idle waiting = idle(kPeer);
  waiting(true);
  while (now_ns() < sent + latency) relax();
  waiting.ended();
}

// True if one of a line of scores is greater.
static bool any_above(const float* scores, float best) {
  bool found = false;
  for (int i = 0; i < kLine; i += kWidth) found |= any(load(scores + i) > best);
  return found;
}

// The next token, agreed by all members, or one of the codes below.
constexpr int kAborted = -1, kToken = 0, kTokenThenStop = 1;
int Member::sample(int32_t* id) {
  const MlJob& job = shared_.job.params;
  const Run run = head_run_;
  float* scores = shared_.scores.get();
  const bool greedy = job.temperature == 0, penalised = job.repetition_penalty != 1.0f;
  const bool filtered = !greedy && (job.top_k > 0 || job.top_p < 1.0f || job.min_p > 0);
  auto each_row = [&](auto&& visit) {
    for (int unit = run.first; unit < run.last; ++unit) {
      int first_id, rows;
      unit_ids(plan_, device_, unit, &first_id, &rows);
      for (int r = 0; r < rows; ++r) visit(first_id + r, scores[first_id + r]);
    }
  };
  if (penalised || !greedy) {
    each_row([&](int row, float& score) {
      if (penalised && seen_[row]) score = score > 0 ? score / job.repetition_penalty : score * job.repetition_penalty;
      if (!greedy) score /= job.temperature;
    });
  }

  float line[kLine] __attribute__((aligned(64)));
  float floor = -std::numeric_limits<float>::infinity();
  if (filtered) {
    for (int round = 0; round < 2; ++round) {
      // First everyone's scores are complete, then member 0 says which are kept.
      if (round == 1 && index_ == 0) floor = filter_threshold(scores, plan_.s.vocab, job, scratch_);
      tell(&floor, 1);
      for (int m = 0; m < shared_.members; ++m) {
        if (!everyone_at(m, line)) return kAborted;
        if (m == 0) floor = line[0];
      }
      global_.close();
    }
  }
  Candidate best;
  if (greedy) {
    for (int unit = run.first; unit < run.last; ++unit) {
      int first_id, rows;
      unit_ids(plan_, device_, unit, &first_id, &rows);
      if (rows == kLine && best.id != INT32_MAX && !any_above(scores + first_id, best.score)) continue;
      for (int r = 0; r < rows; ++r)
        if (scores[first_id + r] > best.score || best.id == INT32_MAX) best = {scores[first_id + r], first_id + r};
    }
  } else {
    Draw draw(job.seed, position_ + 1);
    each_row([&](int row, float score) {
      if (score >= floor) draw.consider(row, score);
    });
    best = draw.best;
  }
  // An id in two words that no NaN can be.
  const int32_t mine = best.id == INT32_MAX ? -1 : best.id;
  const bool asked_to_stop = index_ == 0 && shared_.stop.load(std::memory_order_relaxed);
  const float words[] = {best.score, float((mine + 1) & 0xFFFF), float((mine + 1) >> 16), asked_to_stop ? 1.0f : 0.0f};
  tell(words, 4);
  Candidate winner;
  bool stop = false;
  for (int m = 0; m < shared_.members; ++m) {
    if (!everyone_at(m, line)) return kAborted;
    const int32_t theirs = (int32_t(line[1]) | int32_t(line[2]) << 16) - 1;
    const Candidate candidate{line[0], theirs};
    if (theirs >= 0 && (winner.id == INT32_MAX || candidate.beats(winner))) winner = candidate;
    if (m == 0) stop = line[3] != 0;
  }
  global_.close();
  // Logits that are all NaN have no best; the lowest id is what the reference's argmax would say.
  *id = winner.id == INT32_MAX ? 0 : winner.id;
  return stop ? kTokenThenStop : kToken;
}

// One pass of the tape: `tokens_` positions from `position_` on. With `last`, logits of the last one follow.
bool Member::block(const int32_t* ids, bool last) {
  const MlShape& s = plan_.s;
  embed(ids);
  turn_tables();
  mark(kEmbed, -1);
  for (int layer = 0; layer < s.layers; ++layer) {
    if (!qkv(layer)) return false;
    mark(kQkv, layer);
    if (!attention(layer)) return false;
    mark(kAttention, layer);
    if (!project(ML_ATTN_OUT, layer, heads_.get(), int64_t(plan_.q_cols) * tokens_)) return false;
    if (!add_outputs(0, layer)) return false;
    mark(kAttnOut, layer);
    if (!gate_up(layer)) return false;
    mark(kGateUp, layer);
    if (!project(ML_DOWN, layer, gathered_.get(), int64_t(plan_.ffn_panels) * kLine * tokens_)) return false;
    if (!add_outputs(1, layer)) return false;
    mark(kDown, layer);
  }
  const bool all = shared_.job.params.all_logits != nullptr;
  bool sent_head = false;
  if (all) {
    if (!head(x_.get(), tokens_, s.vocab)) return false;
    sent_head = true;
  } else if (last) {
    if (tokens_ > 1) {
      // The last column of each stream, side by side: what one token's head wants.
      for (int i = 0; i < plan_.streams; ++i)
        for (int k = 0; k < s.hidden; ++k)
          x_[int64_t(i) * s.hidden + k] = x_[(int64_t(i) * s.hidden + k) * tokens_ + tokens_ - 1];
    }
    if (!head(x_.get(), 1, s.vocab)) return false;
    sent_head = true;
  }
  mark(kHead, -1);
  peer_base_ += shared_.peer_exchanges - (shared_.head_peer >= 0 && !sent_head ? 1 : 0);
  return true;
}

int Member::run() {
  const Job& job = shared_.job;
  const MlJob& params = job.params;
  const int prompt = int(job.tokens.size());
  std::fill(seen_.begin(), seen_.end(), 0);
  for (int32_t token : job.tokens) seen_[token] = 1;
  for (auto& phase : phase_ns) std::fill(phase, phase + 3, 0.0);
  decoded = 0;
  generated_ = 0;
  spans.clear();
  timed_ = false;
  traced_ = params.trace_first == 0 && params.trace_last > 0;
  timed_ = traced_;
  last_ns_ = now_ns();
  waited_[kLocal] = waited_[kPeer] = 0;

  for (position_ = 0; position_ < prompt; position_ += tokens_) {
    const float asked = index_ == 0 && shared_.stop.load(std::memory_order_relaxed) ? 1.0f : 0.0f;
    tell(&asked, 1);
    float line[kLine] __attribute__((aligned(64)));
    bool stop = false;
    for (int m = 0; m < shared_.members; ++m) {
      if (!everyone_at(m, line)) return ML_CANCELLED;
      if (m == 0) stop = line[0] != 0;
    }
    global_.close();
    if (stop) return ML_CANCELLED;
    tokens_ = std::min(shared_.block, prompt - position_);
    if (!block(job.tokens.data() + position_, position_ + tokens_ == prompt)) return ML_CANCELLED;
    if (index_ == 0) {
      shared_.prefilled.store(position_ + tokens_, std::memory_order_relaxed);
      shared_.ring.signal();
    }
  }
  position_ = prompt - 1;
  tokens_ = 1;
  if (index_ == 0) shared_.prefill_ns = now_ns() - shared_.start_ns;
  if (params.all_logits) return ML_LENGTH;

  while (true) {
    int32_t id;
    const int verdict = sample(&id);
    if (verdict == kAborted) return ML_CANCELLED;
    mark(kSample, -1);
    // The first token comes out of the prefill: its phases are no part of a decode token's mean.
    if (generated_ == 0) {
      for (auto& phase : phase_ns) std::fill(phase, phase + 3, 0.0);
    } else {
      ++decoded;
    }
    if (std::find(job.stop_ids.begin(), job.stop_ids.end(), id) != job.stop_ids.end()) return ML_STOP;
    seen_[id] = 1;
    if (index_ == 0) shared_.ring.push(id, now_ns() - shared_.start_ns);
    ++generated_;
    if (verdict == kTokenThenStop) return ML_CANCELLED;
    if (generated_ == job.limit) return ML_LENGTH;
    traced_ = params.trace_first <= generated_ && generated_ < params.trace_last;
    const bool was_timed = timed_;
    timed_ = params.profile != 0 || traced_;
    if (timed_ && !was_timed) last_ns_ = now_ns();
    ++position_;
    if (!block(&id, true)) return ML_CANCELLED;
  }
}

static int usable_cores() {
#if defined(__linux__)
  cpu_set_t allowed;
  if (!sched_getaffinity(0, sizeof allowed, &allowed)) return CPU_COUNT(&allowed);
#endif
  return int(std::thread::hardware_concurrency());
}

static void pin_to_core(int index) {
#if defined(__linux__)
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
  int skip = index % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || skip-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return;
  }
#else
  (void)index;
#endif
}

}  // namespace ml

using namespace ml;

struct MlKernel {
  MlKernel(const MlShape& shape, const MlTeam& team) : shared(shape, team) {
    for (int i = 0; i < shared.members; ++i) members.push_back(std::make_unique<Member>(shared, i));
    try {
      for (int i = 0; i < shared.members; ++i) threads.emplace_back([this, i] { serve(i); });
    } catch (...) {
      leave();
      throw;
    }
  }
  ~MlKernel() { leave(); }

  void leave() {
    shared.abort.store(true);
    {
      std::lock_guard<std::mutex> hold(shared.mutex);
      shared.quit = true;
    }
    shared.wake.notify_all();
    for (auto& thread : threads)
      if (thread.joinable()) thread.join();
  }

  // A member's life: sleep, run a job, sleep again.
  void serve(int index) {
    if (shared.team.pin && shared.members <= usable_cores()) pin_to_core(index);
    int64_t served = 0;
    while (true) {
      {
        std::unique_lock<std::mutex> hold(shared.mutex);
        shared.wake.wait(hold, [&] { return shared.quit || shared.launches > served; });
        if (shared.quit) return;
        served = shared.launches;
      }
      const int how = members[index]->run();
      if (shared.running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        shared.finish.store(how, std::memory_order_release);
        shared.ring.signal();
      }
    }
  }

  Shared shared;
  std::vector<std::unique_ptr<Member>> members;
  std::vector<std::thread> threads;
};

static bool sound(const MlShape& s, const MlTeam& t) {
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
  for (int i = 0; i < s.layers; ++i) {
    if (s.windows[i] < 0) return false;
    for (int how : {s.attention_exchanges[i], s.mlp_exchanges[i]}) {
      if (how < ML_NONE || how > ML_PAST) return false;
      if (how == ML_PAST && (s.delay == 0 || i < s.delay || s.streams == 1)) return false;
      if (how == ML_NONE && s.streams == 1 && s.shards > 1) return false;
    }
  }
  return true;
}

extern "C" {

int ml_create(const MlShape* shape, const MlTeam* team, MlKernel** out) {
  *out = nullptr;
  if (shape->size != sizeof(MlShape) || team->size != sizeof(MlTeam)) return ML_BAD_STRUCT;
  if (!sound(*shape, *team)) return ML_BAD_SHAPE;
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
  Shared& shared = kernel->shared;
  const Plan& plan = shared.plan;
  if (shared.finish.load() == ML_RUNNING && shared.running.load() > 0) return ML_BUSY;
  if (tensor == ML_EMBED) {
    if (!plan.s.tied_head)
      std::memcpy(shared.embedding.data(), rows, size_t(plan.s.vocab) * plan.s.hidden * sizeof(uint16_t));
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
      const Run run = plan.run(tensor, device, thread);
      uint16_t* tape = shared.tapes[device * plan.threads + thread].data() + plan.offset(tensor, layer, device, thread);
      for (int unit = run.first; unit < run.last; ++unit) {
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

int ml_norm(MlKernel* kernel, int32_t which, int32_t layer, const float* scale) {
  Shared& shared = kernel->shared;
  const int hidden = shared.plan.s.hidden;
  if (which < 0 || which > 2 || layer < 0 || layer >= shared.plan.s.layers) return ML_BAD_SHAPE;
  float* to = which == 2 ? shared.norm.data()
                         : (which ? shared.ffn_norms : shared.attn_norms).data() + int64_t(layer) * hidden;
  std::copy(scale, scale + hidden, to);
  return ML_OK;
}

int ml_launch(MlKernel* kernel, const MlJob* job) {
  Shared& shared = kernel->shared;
  if (job->size != sizeof(MlJob)) return ML_BAD_STRUCT;
  if (shared.running.load() > 0) return ML_BUSY;
  const MlShape& s = shared.plan.s;
  if (job->count < 1 || job->max_tokens < 0 || job->count > s.context) return ML_TOO_LONG;
  for (int i = 0; i < job->count; ++i)
    if (job->tokens[i] < 0 || job->tokens[i] >= s.vocab) return ML_BAD_TOKEN;
  Job next;
  next.params = *job;
  next.tokens.assign(job->tokens, job->tokens + job->count);
  next.stop_ids.assign(job->stop_ids, job->stop_ids + job->stop_count);
  next.limit = std::min(job->max_tokens, s.context - job->count);
  if (next.limit < 1 && !job->all_logits) return ML_TOO_LONG;
  shared.ring.reset(next.limit);
  shared.job = std::move(next);
  shared.stop.store(false);
  shared.prefilled.store(0);
  shared.prefill_ns = 0;
  shared.finish.store(ML_RUNNING);
  shared.running.store(shared.members);
  shared.start_ns = now_ns();
  {
    std::lock_guard<std::mutex> hold(shared.mutex);
    ++shared.launches;
  }
  shared.wake.notify_all();
  return ML_OK;
}

int32_t ml_poll(MlKernel* kernel, int32_t* ids, int64_t* t_ns, int32_t capacity, int64_t timeout_ns) {
  Shared& shared = kernel->shared;
  const int64_t until = now_ns() + timeout_ns;
  while (true) {
    const uint32_t heard = shared.ring.bell();
    const bool ended = shared.finish.load(std::memory_order_acquire) != ML_RUNNING;
    const int32_t n = shared.ring.take(ids, t_ns, capacity);
    const int64_t left = until - now_ns();
    if (n || ended || left <= 0) return n;
    shared.ring.sleep(heard, left);
  }
}

void ml_stop(MlKernel* kernel) { kernel->shared.stop.store(true); }

int32_t ml_finish(MlKernel* kernel, int64_t* prefill_ns, int32_t* prefilled) {
  const int32_t how = kernel->shared.finish.load(std::memory_order_acquire);
  *prefilled = kernel->shared.prefilled.load();
  *prefill_ns = how == ML_RUNNING ? 0 : kernel->shared.prefill_ns;
  return how;
}

int32_t ml_profile(MlKernel* kernel, double* out, int32_t phases) {
  if (phases != kPhases) return -1;
  const int decoded = kernel->members[0]->decoded;
  for (int phase = 0; phase < kPhases; ++phase)
    for (int kind = 0; kind < 3; ++kind) {
      double total = 0;
      for (const auto& member : kernel->members) total += member->phase_ns[phase][kind];
      out[phase * 3 + kind] = decoded ? total / double(decoded) / double(kernel->members.size()) : 0.0;
    }
  return decoded;
}

int32_t ml_spans(MlKernel* kernel, MlSpan* out, int32_t capacity) {
  int32_t n = 0;
  for (const auto& member : kernel->members)
    for (const MlSpan& span : member->spans) {
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
