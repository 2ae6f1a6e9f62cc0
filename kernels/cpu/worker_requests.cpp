// The requests in flight: each joins between two tokens of the others, has its prompt read block by block between them, and leaves
// alone. Who is there is agreed on with the words that workers exchange anyway: worker 0 reads what the host wants, and all do
// the same.
#include <algorithm>

#include "worker.h"

namespace ml {

void Worker::run() {
  for (bool knows = false;; knows = true) {
    if ((!knows || find_reader()) && !look()) break;
    take_arrivals();
    if (in_flight_.empty()) return;
    if (!read_prompt() || !next_tokens()) break;
  }
  while (!in_flight_.empty()) leave(*in_flight_.back(), ML_CANCELLED);
}

// Those that worker 0 has seen.
void Worker::take_arrivals() {
  for (; taken_ != arrived_; ++taken_) {
    const int row = team_.joining[taken_ % kMostRows];
    generations_[row].request = &team_.requests[row];
    begin(generations_[row]);
    in_flight_.push_back(&generations_[row]);
  }
}

void Worker::begin(Generation& generation) {
  const Job& job = generation.request->job;
  generation.begin = generation.read = job.params.cached;
  generation.generated = 0;
  generation.seen.assign(plan_.s.vocab, 0);
  for (int32_t token : job.tokens) generation.seen[token] = 1;
  generation.sampled.assign(plan_.s.vocab, 0);
  for (auto token = job.tokens.end() - job.params.sampled; token != job.tokens.end(); ++token) ++generation.sampled[*token];
  if (in_flight_.empty()) begin_profile(job.params);
}

// A request that wants a profile is alone.
void Worker::begin_profile(const MlJob& job) {
  for (auto& phase : phase_ns) std::fill(phase, phase + 3, 0.0);
  decoded = 0;
  spans.clear();
  traced_ = job.trace_first == 0 && job.trace_last > 0;
  timed_ = traced_;
  start_ns_ = last_ns_ = now_ns();
  waited_[kLocal] = waited_[kPeer] = 0;
}

void Worker::leave(Generation& generation, int how) {
  in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), &generation));
  timed_ = traced_ = false;
  Request& request = *generation.request;
  if (request.inside.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  request.finish.store(how, std::memory_order_release);
  request.ring.ring();
}

// The first whose prompt is not read to its end.
Worker::Generation* Worker::find_reader() {
  for (Generation* generation : in_flight_)
    if (generation->is_reading()) return generation;
  return nullptr;
}

// Several answers to one prompt read it once: who has read nothing yet takes what another one of the same owner has read of
// the same prompt from the same place on, and goes on as that one did.
bool Worker::share_prompt(Generation& reader) {
  const Job& job = reader.request->job;
  if (!job.params.owner || reader.read != reader.begin) return true;
  for (const Generation* other : in_flight_) {
    const Job& theirs = other->request->job;
    const int count = other->whole_blocks(team_.block);
    const bool is_same = theirs.params.owner == job.params.owner && other->begin == reader.begin && theirs.tokens == job.tokens;
    if (!is_same || count <= reader.read || other->read < count) continue;
    team_.copy_cache(*other->request->cache, *reader.request->cache, count, index_, team_.workers);
    reader.read = count;
    if (index_ == 0) {
      for (auto* told : {&reader.request->prefilled, &reader.request->filled, &reader.request->cached})
        told->store(count, std::memory_order_release);
    }
    return look();  // which returns once everybody has copied a part
  }
  return true;
}

// One block of one prompt: so long do the others wait between two of their tokens.
bool Worker::read_prompt() {
  for (size_t i = in_flight_.size(); i-- > 0;)
    if (in_flight_[i]->is_reading() && is_stopped(*in_flight_[i])) leave(*in_flight_[i], ML_CANCELLED);
  Generation* const reader = find_reader();
  if (!reader) return true;
  if (!share_prompt(*reader)) return false;
  Request& request = *reader->request;
  const std::vector<int32_t>& tokens = request.job.tokens;
  const MlJob& job = request.job.params;
  const bool scored = job.all_logits && reader->read >= job.scored_from;
  const int at = reader->read, total = int(tokens.size());
  const int count = std::min(team_.block, (job.all_logits && !scored ? job.scored_from : total) - at);
  const bool last = at + count == total;
  const int32_t* ids = tokens.data() + at;
  all_logits_ = scored ? job.all_logits + int64_t(at - job.scored_from) * plan_.s.vocab : nullptr;
  const bool complete = count == 1 ? forward(OneToken{at, request.cache}, ids, last)
                                   : forward(TokenBlock{count, count, at, request.cache}, ids, last);
  if (!complete) return false;
  all_logits_ = nullptr;
  reader->read += count;
  if (index_ == 0) {
    request.prefilled.store(reader->read, std::memory_order_relaxed);
    request.filled.store(reader->read, std::memory_order_release);
    request.ring.ring();
    if (last) request.prefill_ns = now_ns() - request.start_ns;
  }
  if (!last) return true;
  reader->position = total - 1;
  if (!job.all_logits) return finish_token(*reader, 0);
  leave(*reader, ML_LENGTH);
  return true;
}

// A token more of each request whose prompt is read.
bool Worker::next_tokens() {
  Generation* whose[kMostRows];
  OneToken tokens[kMostRows];
  int32_t ids[kMostRows];
  int count = 0;
  for (Generation* generation : in_flight_)
    if (!generation->is_reading()) {
      whose[count] = generation;
      ids[count] = generation->token;
      tokens[count] = {++generation->position, generation->request->cache, count};
      ++count;
    }
  if (count == 0) return true;
  if (!(count == 1 ? forward(tokens[0], ids, true) : forward(TokenRows{count, tokens}, ids, true))) return false;
  for (int column = 0; column < count; ++column) {
    Generation& generation = *whose[column];
    if (index_ == 0) generation.request->filled.store(generation.position + 1, std::memory_order_release);
    if (!finish_token(generation, column)) return false;
  }
  return true;
}

// From a token's scores to the token: it goes to the host, or the request leaves.
bool Worker::finish_token(Generation& generation, int column) {
  Request& request = *generation.request;
  const Job& job = request.job;
  int32_t id;
  if (!sample(generation, column, &id)) return false;
  mark(kSample, -1);
  // The first token comes out of the prefill: its phases are no part of a decode token's mean.
  if (generation.generated == 0) {
    for (auto& phase : phase_ns) std::fill(phase, phase + 3, 0.0);
  } else {
    ++decoded;
  }
  const bool ends = std::find(job.stop_ids.begin(), job.stop_ids.end(), id) != job.stop_ids.end();
  if (ends) return leave(generation, ML_STOP), true;
  generation.seen[id] = 1;
  ++generation.sampled[id];
  generation.token = id;
  if (index_ == 0) request.ring.push(id, now_ns() - request.start_ns);
  const int generated = ++generation.generated;
  if (is_stopped(generation)) return leave(generation, ML_CANCELLED), true;
  if (generated == job.limit) return leave(generation, ML_LENGTH), true;
  traced_ = job.params.trace_first <= generated && generated < job.params.trace_last;
  const bool was_timed = timed_;
  timed_ = job.params.profile != 0 || traced_;
  if (timed_ && !was_timed) last_ns_ = now_ns();
  return true;
}

bool Worker::is_stopped(const Generation& generation) const {
  return stops_ >> (generation.request - team_.requests.data()) & 1;
}

// All workers must agree on who comes and who goes, so worker 0 reads what the host wants for everyone.
bool Worker::look() {
  float words[2] = {};
  write_wishes(words);
  broadcast(words, 2);
  float line[kLine] __attribute__((aligned(64)));
  for (int worker = 0; worker < team_.workers; ++worker) {
    if (!read_from(worker, line)) return false;
    if (worker == 0) read_wishes(line);
  }
  global_.close();
  return true;
}

// Two words: sixteen bits of how many requests have ever arrived, and a bit for each row that is to stop. Of what has arrived
// the stop flag is read later: it is that request's and no former one's.
void Worker::write_wishes(float* words) const {
  if (index_ != 0) return;
  words[0] = float(team_.arrived.load(std::memory_order_acquire) & 0xFFFF);
  uint32_t stops = 0;
  for (size_t row = 0; row < team_.requests.size(); ++row)
    stops |= uint32_t(team_.requests[row].stop.load(std::memory_order_relaxed)) << row;
  words[1] = float(stops);
}
void Worker::read_wishes(const float* words) {
  arrived_ += (uint32_t(words[0]) - arrived_) & 0xFFFF;
  stops_ = uint32_t(words[1]);
}

}  // namespace ml
