// Two threads share the units of several phases; in every other one the second thread holds a unit, in each of those a later one,
// until the first has computed more than its own. The first thread takes its own units one by one, the second two at a time. Usage:
// stealing. Writes, for each phase, how many units the first thread computed, how many the second, and how many of all nobody did.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "work_stealing.h"

namespace {

constexpr int kPhases = 6, kUnits = 40;  // units of each thread
constexpr std::chrono::seconds kPatience{30};  // whoever gives up shows it by what it computed

// What both have done by the end of a phase, as an exchange would tell.
void meet(std::atomic<int>& arrived, int phase) {
  ++arrived;
  while (arrived < 2 * (phase + 1)) std::this_thread::yield();
}

// Until the first thread has computed units of its partner's in this phase.
void hold(const std::atomic<int>& of_first) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (of_first <= kUnits && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace

int main() {
  ml::Claims claims[2];
  ml::WorkStealing first(claims[0], &claims[1]), second(claims[1], &claims[0]);
  std::vector<std::atomic<int>> computed(kPhases * 2 * kUnits), of_first(kPhases);
  std::atomic<int> arrived{0};
  int done[2][kPhases];
  auto work = [&](ml::WorkStealing& mine, int thread) {
    for (int phase = 0; phase < kPhases; ++phase) {
      auto compute = [&](int first_of_them, auto together) {
        for (int k = first_of_them; k < first_of_them + together; ++k) {
          ++computed[phase * 2 * kUnits + (thread ? 2 * kUnits - 1 - k : k)];
          if (thread == 0) ++of_first[phase];
          if (thread == 1 && phase % 2 && k == phase) hold(of_first[phase]);
        }
      };
      done[thread][phase] = thread ? mine.each_unit<2>(kUnits, kUnits, 0, compute) : mine.each_unit(kUnits, kUnits, 0, compute);
      meet(arrived, phase);
    }
  };
  std::thread other([&] { work(second, 1); });
  work(first, 0);
  other.join();
  for (int phase = 0; phase < kPhases; ++phase) {
    int missing = 0;
    for (int unit = 0; unit < 2 * kUnits; ++unit) missing += computed[phase * 2 * kUnits + unit] == 0;
    std::printf("%d %d %d\n", done[0][phase], done[1][phase], missing);
  }
}
