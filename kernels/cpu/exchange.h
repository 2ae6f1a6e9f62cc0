// An exchange: every worker of a group publishes lines, and every worker reads what all have published.
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

// The memory that the workers of a group share.
struct MailboxBuffer {
  MailboxBuffer(int workers, int64_t lines) : workers(workers), lines(lines) {
    for (auto& buffer : buffers) {
      buffer = allocate<float>((lines + workers) * kLine);
      clear_lines(buffer.get(), lines + workers);
    }
  }
  const int workers;
  const int64_t lines;
  Aligned<float> buffers[kBuffers];
  // For the barrier mode: arrivals of the exchange in hand, and how many exchanges have completed.
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int64_t> completed{0};
};

// One worker's side of a mailbox buffer.
class Mailbox {
 public:
  Mailbox(MailboxBuffer& buffer, int worker, bool barrier, const std::atomic<bool>& abort)
      : buffer_(buffer), worker_(worker), barrier_(barrier), abort_(abort) {}

  // Where line 0 of the exchange in hand lies. Call once, before publishing; clear_stale() comes in between.
  float* open() {
    order_before_publishing();
    return lines();
  }
  float* lines() { return buffer_.buffers[number_ % kBuffers].get() + int64_t(buffer_.workers) * kLine; }

  // Records that this worker has published `count` lines from `first` on. A worker without a line publishes a heartbeat:
  // the others may clear their lines only because they know that it has come this far.
  void publish(int64_t first, int64_t count) {
    mine_ = count ? lines() + first * kLine : heartbeat(worker_);
    mine_count_ = count ? count : 1;
    if (!count) {
      const float here[kLine] = {};
      publish_line(heartbeat(worker_), here);
    }
    if (barrier_) arrive();
  }

  // Waits for a line; `idle` has begin, step and end. Returns false if the team aborts.
  template <class Idle>
  bool read(int64_t line, float* to, Idle&& idle) {
    return wait_line(lines() + line * kLine, to, idle);
  }
  template <class Idle>
  bool read_heartbeat(int worker, Idle&& idle) {
    float ignored[kLine];
    return wait_line(heartbeat(worker), ignored, idle);
  }

  // Every line of every worker has been read: what this worker published one exchange ago has become stale.
  void close() {
    order_after_polling();
    stale_ = before_;
    stale_count_ = before_count_;
    before_ = mine_;
    before_count_ = mine_count_;
    ++number_;
  }
  // Clears the stale lines. Call once an exchange, between opening it and publishing the first line. A line that another
  // core has read is slow to store to, and later stores wait for it: best done while memory is read anyway.
  void clear_stale() {
    if (!barrier_ && stale_) clear_lines(stale_, stale_count_);
    stale_ = nullptr;
    order_before_publishing();
  }

 private:
  float* heartbeat(int worker) { return buffer_.buffers[number_ % kBuffers].get() + int64_t(worker) * kLine; }

  template <class Idle>
  bool wait_line(const float* from, float* to, Idle&& idle) {
    if (try_line(from, to) || barrier_) return true;
    Spin spin(abort_);
    idle.begin();
    do {
      idle.step();
      if (!spin.again()) return false;
    } while (!try_line(from, to));
    idle.end();
    return true;
  }

  void arrive() {
    if (buffer_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == buffer_.workers) {
      buffer_.arrived.store(0, std::memory_order_relaxed);
      buffer_.completed.fetch_add(1, std::memory_order_release);
      return;
    }
    Spin spin(abort_);
    while (buffer_.completed.load(std::memory_order_acquire) <= number_)
      if (!spin.again()) return;
  }

  MailboxBuffer& buffer_;
  const int worker_;
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
struct PeerMailbox {
  PeerMailbox(int devices, int threads, int64_t lines, int depth)
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
