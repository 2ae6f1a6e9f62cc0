// Mailboxes: the data is its own flag.
//
// A word that holds the sentinel has not been written yet. The producer stores results, the consumer polls the words that
// it needs, and there is no flag, counter or barrier. (NCCL's LL protocol also puts flags in the data.) The sentinel is a
// NaN whose low bits are set: arithmetic on 16-bit weights never yields it.
//
// Life of a buffer. The exchanges of a team are numbered; exchange n lives in buffer n mod 3. A worker reads all of
// exchange n before it publishes to n + 1. So a worker that has read all of n + 1 knows that all workers have read n, and
// clears its own lines of n. It does so before it publishes to n + 2, and nobody polls buffer n mod 3 again before reading
// all of n + 2: a reader sees the sentinel or the new value, never the old one.
// Two threads may publish the same line with the same words (work_stealing.h), and then both clear it. The above still
// holds, because each of them also published a line to n that is its alone.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "simd.h"

namespace ml {

constexpr uint32_t kSentinel = 0xFFFFA5A5u;
constexpr int kLine = 16;  // words in a cache line, rows in a panel
constexpr int kBuffers = 3;

// The thread sanitizer knows no fences and no vectors: for it, every word is an atomic with its own order. So it is on
// processors for which as_loaded does nothing.
#if defined(__SANITIZE_THREAD__) || !(defined(__x86_64__) || defined(__aarch64__))
constexpr bool kWordAtomics = true;
#else
constexpr bool kWordAtomics = false;
#endif

static inline uint32_t peek_word(const float* p) {
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(p), __ATOMIC_ACQUIRE);
}
static inline void poke_word(float* p, uint32_t word) {
  __atomic_store_n(reinterpret_cast<uint32_t*>(p), word, __ATOMIC_RELEASE);
}
static inline uint32_t word_of(float x) {
  uint32_t w;
  std::memcpy(&w, &x, 4);
  return w;
}
static inline float float_of(uint32_t w) {
  float x;
  std::memcpy(&x, &w, 4);
  return x;
}

// Orders this thread's earlier reads, clears and cache writes before what it publishes next.
static inline void order_before_publishing() {
  if constexpr (!kWordAtomics) std::atomic_thread_fence(std::memory_order_release);
}
// Orders what this thread polled before what it reads or clears next.
static inline void order_after_polling() {
  if constexpr (!kWordAtomics) std::atomic_thread_fence(std::memory_order_acquire);
}

// A line of 16 results. Each word is written once; a reader may see the words appear in any order.
static inline void publish_line(float* to, const float* from) {
  if constexpr (kWordAtomics) {
    for (int i = 0; i < kLine; ++i) poke_word(to + i, word_of(from[i]));
  } else {
    for (int i = 0; i < kLine; i += kWidth) store(to + i, load(from + i));
    asm volatile("" ::: "memory");
  }
}

static inline void clear_lines(float* at, int64_t lines) {
  if constexpr (kWordAtomics) {
    for (int64_t i = 0; i < lines * kLine; ++i) poke_word(at + i, kSentinel);
  } else {
    const Vec mark = from_bits(IVec{} + int32_t(kSentinel));
    for (int64_t i = 0; i < lines * kLine; i += kWidth) store(at + i, mark);
  }
}

// The value as it was loaded, once: a compiler may otherwise load twice, pass on what it saw first (no result yet) and
// judge by what it saw then (a result).
static inline Vec as_loaded(Vec v) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(v));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(v));
#endif
  return v;
}

// True if the line is complete; its words are then in `to`.
static inline bool try_line(const float* from, float* to) {
  if constexpr (kWordAtomics) {
    bool ready = true;
    for (int i = 0; i < kLine; ++i) {
      const uint32_t w = peek_word(from + i);
      ready &= w != kSentinel;
      to[i] = float_of(w);
    }
    return ready;
  } else {
    asm volatile("" ::: "memory");  // look again at memory, each time
#if defined(__AVX512F__)
    const __m512i v = (__m512i)as_loaded(load(from));
    _mm512_storeu_si512(to, v);
    return _mm512_cmpeq_epi32_mask(v, _mm512_set1_epi32(int32_t(kSentinel))) == 0;
#else
    IVec missing{};
    for (int i = 0; i < kLine; i += kWidth) {
      const Vec v = as_loaded(load(from + i));
      store(to + i, v);
      missing |= bits(v) == int32_t(kSentinel);
    }
    int32_t any = 0;
    for (int i = 0; i < kWidth; ++i) any |= missing[i];
    return any == 0;
#endif
  }
}

// Waits politely: spins first, then lets other threads of this core run (a team may outnumber the cores).
class Spin {
 public:
  // `abort` ends every wait of the team at once. Returns false when it is raised.
  explicit Spin(const std::atomic<bool>& abort) : abort_(abort) {}
  bool again() {
    relax();
    if (++count_ < kPatience) return true;
    if (abort_.load(std::memory_order_relaxed)) return false;
    sched_yield();
    return true;
  }

 private:
  static constexpr int kPatience = 2000;
  const std::atomic<bool>& abort_;
  int count_ = 0;
};

}  // namespace ml
