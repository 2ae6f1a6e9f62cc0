// Generated tokens on their way to the host.
#pragma once

#include <time.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace ml {

// One writer, one reader, sized for the whole job. The reader sleeps until the bell rings.
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
    if (n > 0 && t_ns - rung_ns_ < kRingEveryNs) return;
    rung_ns_ = t_ns;
    ring();
  }

  // Wakes the reader, if it sleeps.
  void ring() {
    bell_.fetch_add(1, std::memory_order_release);
#if defined(__linux__)
    if (sleeping_.load(std::memory_order_seq_cst))
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell_), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
#endif
  }

  // How often the bell has rung.
  uint32_t rings() const { return bell_.load(std::memory_order_acquire); }

  // Sleeps for `timeout_ns`, or until the bell has rung more often than `rings`.
  void sleep(uint32_t rings, int64_t timeout_ns) {
    const timespec wait{time_t(timeout_ns / 1000000000), long(timeout_ns % 1000000000)};
#if defined(__linux__)
    sleeping_.store(true, std::memory_order_seq_cst);
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell_), FUTEX_WAIT_PRIVATE, rings, &wait, nullptr, 0);
    sleeping_.store(false, std::memory_order_relaxed);
#else
    (void)rings;
    const timespec nap{0, long(std::min<int64_t>(timeout_ns, 200000))};
    nanosleep(&nap, nullptr);
#endif
  }

  // Moves at most `capacity` new tokens to the caller. Returns how many.
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
  static constexpr int64_t kRingEveryNs = 16000000;

  std::vector<int32_t> ids_;
  std::vector<int64_t> times_;
  int64_t rung_ns_ = 0;
  std::atomic<uint32_t> produced_{0}, bell_{0};
  std::atomic<bool> sleeping_{false};
  uint32_t taken_ = 0;
};

}  // namespace ml
