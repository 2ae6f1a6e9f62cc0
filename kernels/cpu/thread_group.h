// Threads that are started for one measurement and end with it, whatever happens on the way.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

namespace ml {

class ThreadGroup {
 public:
  // Raises std::system_error if the system refuses; those already started then find `cancelled` raised.
  template <class Work>
  void start(Work&& work) {
    threads_.emplace_back(std::forward<Work>(work));
  }
  void join() {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }
  // Ends their waits: a Spin of it returns false.
  const std::atomic<bool>& cancelled() const { return cancelled_; }

  ThreadGroup() = default;
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;
  ~ThreadGroup() {
    cancelled_.store(true);
    join();
  }

 private:
  std::vector<std::thread> threads_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace ml
