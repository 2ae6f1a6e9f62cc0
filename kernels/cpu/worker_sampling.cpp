// The next token, by the rule of engine/sampling.py and without sorting: the team proposes the best perturbed candidate,
// sums up what scores more, and takes the candidate if the filters keep it. If not, they keep nothing that scores less
// either, so the team draws again among what scores more.
#include "sampling.h"

#include <algorithm>
#include <limits>

#include "worker.h"

namespace ml {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Whole numbers in words that no NaN can be: sixteen bits each.
static void write_bits(float* to, uint64_t value, int words) {
  for (int i = 0; i < words; ++i) to[i] = float(value >> 16 * i & 0xFFFF);
}
static uint64_t read_bits(const float* from, int words) {
  uint64_t value = 0;
  for (int i = 0; i < words; ++i) value |= uint64_t(from[i]) << 16 * i;
  return value;
}

// Calls visit(first id, scores, count) for each unit of the head that this worker holds.
template <class Visit>
void Worker::each_unit(const Scored& of, Visit&& visit) {
  for (int unit = head_units_.first; unit < head_units_.last; ++unit) {
    const HeadRows rows = plan_.head_rows_of(device_, unit);
    visit(rows.first, of.scores + rows.first, rows.count);
  }
}

// This worker's logits become scores: penalties, bias, temperature.
void Worker::adjust_scores(const Scored& of) {
  const Job& job = of.generation.request->job;
  const std::vector<uint8_t>& seen = of.generation.seen;
  const std::vector<int32_t>& sampled = of.generation.sampled;
  const MlJob& p = job.params;
  const bool counts = p.frequency_penalty != 0 || p.presence_penalty != 0;
  if (p.repetition_penalty != 1.0f || counts)
    each_unit(of, [&](int first, float* scores, int count) {
      for (int r = 0; r < count; ++r) {
        float& score = scores[r];
        if (seen[first + r]) score = score > 0 ? score / p.repetition_penalty : score * p.repetition_penalty;
        if (const int times = sampled[first + r]; counts && times)
          score -= rounded(p.frequency_penalty * float(times)) + p.presence_penalty;
      }
    });
  for (size_t i = 0; i < job.bias_ids.size(); ++i) {
    const int id = job.bias_ids[i], unit = plan_.head_unit_of(device_, id);
    if (head_units_.first <= unit && unit < head_units_.last) of.scores[id] += job.biases[i];
  }
  if (p.temperature == 0) return;
  each_unit(of, [&](int, float* scores, int count) {
    int r = 0;
    for (; r + kWidth <= count; r += kWidth) store(scores + r, load(scores + r) / p.temperature);
    for (; r < count; ++r) scores[r] /= p.temperature;
  });
}

// True if one of some scores is greater.
static bool any_above(const float* scores, int count, float least) {
  bool found = false;
  int i = 0;
  for (; i + kWidth <= count; i += kWidth) found |= any(load(scores + i) > least);
  for (; i < count; ++i) found |= scores[i] > least;
  return found;
}

// The largest of this worker's scores; the lowest id among equals.
Candidate Worker::largest_score(const Scored& of) {
  Candidate best;
  each_unit(of, [&](int first, const float* scores, int count) {
    if (best.id != INT32_MAX && !any_above(scores, count, best.score)) return;
    for (int r = 0; r < count; ++r)
      if (scores[r] > best.score || best.id == INT32_MAX) best = {scores[r], first + r};
  });
  return best;
}

// The best perturbed candidate among this worker's scores above `floor`. `largest` is known to be one of them or no more
// than them: considered first, it spares most of the others their draw.
Worker::Proposal Worker::propose(const Scored& of, Candidate largest, float floor) {
  const MlJob& job = of.job;
  Proposal mine;
  mine.top = largest.score;
  if (job.temperature == 0) {
    mine.candidate = largest;
    return mine;
  }
  Draw draw(job.seed, of.generation.position + 1);
  if (largest.score > floor) draw.consider(largest.id, largest.score);
  each_unit(of, [&](int first, const float* scores, int count) {
    if (!any_above(scores, count, draw.least() - 0.5f)) return;  // with a margin for what rounds up to a tie
    for (int r = 0; r < count; ++r)
      if (scores[r] > floor) draw.consider(first + r, scores[r]);
  });
  mine.candidate = draw.best;
  mine.score = draw.unperturbed;
  return mine;
}

// The best of all workers' proposals; every worker gets the same. Worker 0 also says what the host wants.
bool Worker::agree(const Proposal& mine, Proposal* best) {
  float words[7] = {mine.top, mine.candidate.score, mine.score};
  write_bits(words + 3, uint32_t(mine.candidate.id), 2);
  write_wishes(words + 5);
  broadcast(words, 7);
  *best = {};
  float line[kLine] __attribute__((aligned(64)));
  for (int worker = 0; worker < team_.workers; ++worker) {
    if (!read_from(worker, line)) return false;
    const Candidate theirs{line[1], int32_t(read_bits(line + 3, 2))};
    best->top = std::max(best->top, line[0]);
    if (theirs.id != INT32_MAX && (best->candidate.id == INT32_MAX || theirs.beats(best->candidate))) {
      best->candidate = theirs;
      best->score = line[2];
    }
    if (worker == 0) read_wishes(line + 5);
  }
  global_.close();
  return true;
}

// Sets `kept` to whether the filters keep the proposed candidate. `first` is the first proposal for a token: top-p's total
// is summed up once.
bool Worker::filter(const Scored& of, const Proposal& proposal, bool first, bool* kept) {
  const MlJob& job = of.job;
  WeightSums& sums = weight_sums_;
  if (first) sums.total = 0;
  sums.above = sums.mass = 0;
  if (job.top_k > 0 || job.top_p < 1.0f) {
    const bool needs_total = first && job.top_p < 1.0f;
    // Everyone's scores are complete, and stay as they are until this worker has published its sums.
    float least = kNothing;
    if (needs_total && job.top_k > 0 && job.top_k < plan_.s.vocab)
      least = kth_largest(of.scores, plan_.s.vocab, job.top_k, scratch_);
    WeightSums mine;
    each_unit(of, [&](int, const float* scores, int count) {
      mine.add(scores, count, proposal.score, proposal.top, least, needs_total);
    });
    float words[12];
    write_bits(words, mine.above, 2);
    write_bits(words + 2, mine.mass, 4);
    write_bits(words + 6, mine.total, 4);
    broadcast(words, 10);
    float line[kLine] __attribute__((aligned(64)));
    for (int worker = 0; worker < team_.workers; ++worker) {
      if (!read_from(worker, line)) return false;
      sums.above += read_bits(line, 2);
      sums.mass += read_bits(line + 2, 4);
      sums.total += read_bits(line + 6, 4);
    }
    global_.close();
  }
  *kept = is_kept(job, proposal.score, proposal.top, sums);
  return true;
}

// The next token of the request whose scores are in a column of the pass. Returns false if the team aborts.
bool Worker::sample(const Generation& generation, int column, int32_t* id) {
  const Scored of{generation, generation.request->job.params, team_.scores_of(column)};
  const MlJob& job = of.job;
  const bool filtered = job.temperature != 0 && (job.top_k > 0 || job.top_p < 1.0f || job.min_p > 0);
  adjust_scores(of);
  const Candidate largest = largest_score(of);
  // Logits that are all NaN have no best; the lowest id is what the reference's argmax would say.
  *id = 0;
  bool kept = false;
  float floor = kNothing;
  for (bool first = true; !kept; first = false) {
    Proposal best;
    if (!agree(propose(of, largest, floor), &best)) return false;
    if (best.candidate.id == INT32_MAX) break;  // nothing scores more than the last candidate
    *id = best.candidate.id;
    kept = !filtered;
    if (filtered && !filter(of, best, first, &kept)) return false;
    floor = best.score;
  }
  return true;
}

}  // namespace ml
