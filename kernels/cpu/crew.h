// Threads that are started for one measurement and end with it, whatever happens on the way.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

namespace ml {

class Crew {
 public:
  // Raises std::system_error if the system refuses; those already started then find `given_up` raised.
  template <class Work>
  void start(Work&& work) {
    threads_.emplace_back(std::forward<Work>(work));
  }
  void join() {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }
  // Ends their waits: a Spin of it returns false.
  const std::atomic<bool>& given_up() const { return given_up_; }

  Crew() = default;
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  ~Crew() {
    given_up_.store(true);
    join();
  }

 private:
  std::vector<std::thread> threads_;
  std::atomic<bool> given_up_{false};
};

}  // namespace ml
