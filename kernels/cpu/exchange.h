// An exchange: every member of a group publishes lines, and every member reads what all have published.
// mailbox.h says why three buffers are enough.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "mailbox.h"

namespace ml {

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
using Aligned = std::unique_ptr<T[], FreeDeleter>;

template <class T>
static inline Aligned<T> allocate(int64_t count) {
  const size_t bytes = (size_t(count) * sizeof(T) + 4095) / 4096 * 4096;
  void* p = std::aligned_alloc(4096, bytes ? bytes : 4096);
  if (!p) throw std::bad_alloc();
  return Aligned<T>(static_cast<T*>(p));
}

// The memory that the members of a group share.
struct Board {
  Board(int members, int64_t lines) : members(members), lines(lines) {
    for (auto& buffer : buffers) {
      buffer = allocate<float>((lines + members) * kLine);
      clear_lines(buffer.get(), lines + members);
    }
  }
  const int members;
  const int64_t lines;
  Aligned<float> buffers[kBuffers];
  // For the barrier mode: arrivals of the exchange in hand, and how many exchanges have completed.
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int64_t> completed{0};
};

// One member's side of a board.
class Exchange {
 public:
  Exchange(Board& board, int member, bool barrier, const std::atomic<bool>& abort)
      : board_(board), member_(member), barrier_(barrier), abort_(abort) {}

  // Where line 0 of the exchange in hand lies. Call once, before publishing; forget() comes in between.
  float* open() {
    order_before_publishing();
    return lines();
  }
  float* lines() { return board_.buffers[number_ % kBuffers].get() + int64_t(board_.members) * kLine; }

  // What this member has published: `count` lines from `first` on. A member with nothing to say still shows that it
  // has come this far: the others' right to clear rests on it.
  void publish(int64_t first, int64_t count) {
    mine_ = count ? lines() + first * kLine : presence(member_);
    mine_count_ = count ? count : 1;
    if (!count) {
      const float here[kLine] = {};
      publish_line(presence(member_), here);
    }
    if (barrier_) arrive();
  }

  // Waits for a line. `while_waiting` is called in between. Returns false if the team is told to abort.
  template <class Idle>
  bool read(int64_t line, float* to, Idle&& while_waiting) {
    return wait_line(lines() + line * kLine, to, while_waiting);
  }
  template <class Idle>
  bool read_presence(int member, Idle&& while_waiting) {
    float ignored[kLine];
    return wait_line(presence(member), ignored, while_waiting);
  }

  // All lines of all members have been read: what this member said one exchange ago may be forgotten.
  void close() {
    order_after_polling();
    stale_ = before_;
    stale_count_ = before_count_;
    before_ = mine_;
    before_count_ = mine_count_;
    ++number_;
  }
  // Clears what is forgotten, once an exchange, between opening it and publishing the first line. Lines that another
  // core has read are slow to store to, and what is stored next waits for them: better while memory is read anyway.
  void forget() {
    if (!barrier_ && stale_) clear_lines(stale_, stale_count_);
    stale_ = nullptr;
    order_before_publishing();
  }

 private:
  float* presence(int member) { return board_.buffers[number_ % kBuffers].get() + int64_t(member) * kLine; }

  template <class Idle>
  bool wait_line(const float* from, float* to, Idle&& while_waiting) {
    if (try_line(from, to) || barrier_) return true;
    Spin spin(abort_);
    while_waiting(true);
    do {
      while_waiting(false);
      if (!spin.again()) return false;
    } while (!try_line(from, to));
    while_waiting.ended();
    return true;
  }

  void arrive() {
    if (board_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == board_.members) {
      board_.arrived.store(0, std::memory_order_relaxed);
      board_.completed.fetch_add(1, std::memory_order_release);
      return;
    }
    Spin spin(abort_);
    while (board_.completed.load(std::memory_order_acquire) <= number_)
      if (!spin.again()) return;
  }

  Board& board_;
  const int member_;
  const bool barrier_;
  const std::atomic<bool>& abort_;
  int64_t number_ = 0;
  float* mine_ = nullptr;
  float* before_ = nullptr;
  float* stale_ = nullptr;
  int64_t mine_count_ = 0, before_count_ = 0, stale_count_ = 0;
};

// Sums that devices send each other. Each device has a buffer a sender and an exchange in its own memory; senders store
// into it, its threads poll it. `depth` exchanges may be under way, since with delay a sum is read layers later.
// Exchanges are numbered by the caller, on every device alike.
struct PeerBoard {
  PeerBoard(int devices, int threads, int64_t lines, int depth)
      : devices(devices), threads(threads), lines(lines), depth(depth) {
    const int64_t total = int64_t(depth) * devices * (lines + threads);
    memory = allocate<float>(total * kLine);
    clear_lines(memory.get(), total);
  }
  // Line 0 of what `from` sends in exchange `number`; the senders' time stamps follow the data.
  float* section(int64_t number, int from) {
    return memory.get() + ((number % depth) * devices + from) * (lines + threads) * kLine;
  }
  float* stamp(int64_t number, int from, int thread) { return section(number, from) + (lines + thread) * kLine; }

  const int devices, threads;
  const int64_t lines;
  const int depth;
  Aligned<float> memory;
};

// A time in words that cannot be the sentinel.
constexpr int kTimeWords = 4;
static inline void write_time(float* to, int64_t ns) {
  for (int i = 0; i < kTimeWords; ++i) to[i] = float((ns >> (16 * i)) & 0xFFFF);
}
static inline int64_t read_time(const float* from) {
  int64_t ns = 0;
  for (int i = 0; i < kTimeWords; ++i) ns |= int64_t(from[i]) << (16 * i);
  return ns;
}

}  // namespace ml
