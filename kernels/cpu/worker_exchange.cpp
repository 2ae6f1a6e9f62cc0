// Exchanges beyond a device: sums of module outputs over devices, and words broadcast to the whole team.
#include <algorithm>
#include <cmath>

#include "worker.h"

namespace ml {

// This worker's share of [panels * 16][count] rows into every other device's mailbox.
void Worker::send(int64_t number, const float* rows, int panels, int count) {
  const Range range = share_of(panels, thread_, plan_.threads);
  order_before_publishing();
  for (int peer = 0; peer < plan_.devices; ++peer) {
    if (peer == device_) continue;
    PeerMailbox& mail = *team_.peer_mail[peer];
    float* to = mail.section(number, device_);
    float line[kLine];
    for (int p = range.first; p < range.last; ++p)
      for (int t = 0; t < count; ++t) {
        for (int r = 0; r < kLine; ++r) line[r] = rows[(int64_t(p) * kLine + r) * count + t];
        publish_line(to + (int64_t(p) * count + t) * kLine, line);
      }
    std::fill(line, line + kLine, 0.0f);
    write_time(line, now_ns());
    publish_line(mail.stamp(number, device_, thread_), line);
  }
}

// What device `from` sent in an exchange, as [panels * 16][count]. It arrives as late as the link makes it.
bool Worker::receive(int64_t number, int from, float* rows, int panels, int count) {
  PeerMailbox& mail = *team_.peer_mail[device_];
  float* at = mail.section(number, from);
  float line[kLine] __attribute__((aligned(64)));
  int64_t sent = 0;
  for (int thread = 0; thread < plan_.threads; ++thread) {
    if (!poll_peer_line(mail.stamp(number, from, thread), line)) return false;
    sent = std::max(sent, read_time(line));
  }
  wait_for_link(sent);
  for (int p = 0; p < panels; ++p)
    for (int t = 0; t < count; ++t) {
      if (!poll_peer_line(at + (int64_t(p) * count + t) * kLine, line)) return false;
      for (int r = 0; r < kLine; ++r) rows[(int64_t(p) * kLine + r) * count + t] = line[r];
    }
  // Everybody here has read it once the next exchange of this device is complete; each worker clears a share.
  const Range mine = share_of(panels * count, thread_, plan_.threads);
  peer_reads_.emplace_back(at + int64_t(mine.first) * kLine, mine.count());
  peer_reads_.emplace_back(mail.stamp(number, from, thread_), 1);
  order_after_polling();
  return true;
}

bool Worker::poll_peer_line(const float* from, float* line) {
  if (try_line(from, line)) return true;
  Idle waiting = idle(kPeer);
  waiting.begin();
  Spin spin(team_.abort);
  do {
    waiting.step();
    if (!spin.again()) return false;
  } while (!try_line(from, line));
  waiting.end();
  return true;
}

void Worker::wait_for_link(int64_t sent) {
  const int64_t latency = team_.options.link_latency_ns;
  if (latency <= 0 || now_ns() >= sent + latency) return;
  Idle waiting = idle(kPeer);
  waiting.begin();
  while (now_ns() < sent + latency) relax();
  waiting.end();
}

// total_ becomes the sum of all devices' `mine`, added up in the same order on each device.
template <class Pass>
bool Worker::add_over_devices(Pass pass, const float* mine, int peer_exchange) {
  const int64_t used = int64_t(plan_.s.hidden) * pass.count;
  for (int from = 0; from < plan_.devices; ++from) {
    const float* part = mine;
    if (from != device_) {
      if (!receive(peer_base_ + peer_exchange, from, received_.get(), plan_.out_panels, pass.count)) return false;
      part = received_.get();
    }
    if (from == 0)
      std::copy(part, part + used, total_.get());
    else
      for (int64_t i = 0; i < used; ++i) total_[i] += part[i];
  }
  return true;
}

// What attention's output matrix has beside it, to each shard's outputs; of a sum over devices one part has it.
template <class Pass>
void Worker::add_out_bias(Pass pass, int layer) {
  const int64_t rows = int64_t(plan_.out_panels) * kLine * pass.count;
  for (int shard = 0; shard < plan_.shards; ++shard) {
    const float* bias = team_.vector(ML_OUT_BIAS, layer, device_ * plan_.shards + shard);
    if (!bias) return;
    for (int k = 0; k < plan_.s.hidden; ++k)
      for (int t = 0; t < pass.count; ++t) outputs_.of(pass.column)[shard * rows + int64_t(k) * pass.count + t] += bias[k];
  }
}
void Worker::add_out_bias(TokenRows pass, int layer) {
  for (int row = 0; row < pass.count; ++row) add_out_bias(pass.tokens[row], layer);
}
template void Worker::add_out_bias(OneToken, int);
template void Worker::add_out_bias(TokenBlock, int);

// Each shard's outputs, normalised in place.
template <class Pass>
void Worker::norm_outputs(Pass pass, const float* scale) {
  const int64_t rows = int64_t(plan_.out_panels) * kLine * pass.count;
  float* outputs = outputs_.of(pass.column);
  for (int shard = 0; shard < plan_.shards; ++shard)
    rms_norm(pass, outputs + shard * rows, scale, outputs + shard * rows);
}

// Adds a module's outputs (outputs_: [shard][padded hidden][tokens]) to the residual streams, as engine.models.config's
// Exchange says.
template <class Pass>
bool Worker::add_outputs(Pass pass, int kind, int layer) {
  const MlShape& s = plan_.s;
  const int how = team_.exchanges[kind][layer];
  const int64_t rows = int64_t(plan_.out_panels) * kLine * pass.count, used = int64_t(s.hidden) * pass.count;
  const int number = team_.peer_number[kind][layer];
  const int slot = s.delay ? layer % s.delay : 0;
  const float* post_norm = team_.vector(kind ? ML_FFN_POST_NORM : ML_ATTN_POST_NORM, layer);
  // What a shard of one stream puts out is a part of a sum, and the norm is that of the sum.
  const bool norm_sum = post_norm && s.streams == 1 && how == ML_SYNC;
  if (post_norm && !norm_sum) norm_outputs(pass, post_norm);
  float *x = x_.of(pass.column), *own = outputs_.of(pass.column);
  float *pasts = past_[kind].of(pass.column) + int64_t(slot) * plan_.shards * rows;
  float* past_sum = past_sum_[kind].of(pass.column) + slot * rows;

  const bool keep = s.delay > 0 && layer + s.delay < s.layers && team_.exchanges[kind][layer + s.delay] == ML_DELAYED;
  const float* local = own;  // sum over this device's shards
  if (plan_.shards > 1 && (how == ML_SYNC || keep)) {
    for (int64_t i = 0; i < rows; ++i) {
      float v = own[i];
      for (int shard = 1; shard < plan_.shards; ++shard) v += own[shard * rows + i];
      sum_[i] = v;
    }
    local = sum_.get();
  }
  if (number >= 0) send(peer_base_ + number, local, plan_.out_panels, pass.count);

  if (how == ML_LOCAL) {
    const float scale = s.streams > 1 ? std::sqrt(float(s.streams)) : 1.0f;
    for (int i = 0; i < plan_.streams; ++i)
      for (int64_t k = 0; k < used; ++k) x[i * used + k] += own[i * rows + k] * scale;
  } else if (how == ML_SYNC) {
    if (!add_over_devices(pass, local, number)) return false;
    if (norm_sum) rms_norm(pass, total_.get(), post_norm, total_.get());
    for (int i = 0; i < plan_.streams; ++i)
      for (int64_t k = 0; k < used; ++k) x[i * used + k] += total_[k];
  } else {
    if (team_.exchanges[kind][layer - s.delay] == ML_SYNC)
      std::copy(past_sum, past_sum + used, total_.get());  // what was received then, kept
    else if (!add_over_devices(pass, past_sum, team_.peer_number[kind][layer - s.delay]))
      return false;
    for (int i = 0; i < plan_.streams; ++i)
      for (int64_t k = 0; k < used; ++k) x[i * used + k] += own[i * rows + k] + (total_[k] - pasts[i * rows + k]);
  }
  if (keep) {
    std::copy(own, own + plan_.shards * rows, pasts);
    const float* sum = how == ML_SYNC ? total_.get() : local;
    std::copy(sum, sum + used, past_sum);
  }
  return true;
}
// Rows are for one device: nothing is sent, so that one follows the other.
bool Worker::add_outputs(TokenRows pass, int kind, int layer) {
  for (int row = 0; row < pass.count; ++row)
    if (!add_outputs(pass.tokens[row], kind, layer)) return false;
  return true;
}
template bool Worker::add_outputs(OneToken, int, int);
template bool Worker::add_outputs(TokenBlock, int, int);

// Publishes the first words of a line to every worker; each reads it with read_from.
void Worker::broadcast(const float* words, int count) {
  float line[kLine] __attribute__((aligned(64))) = {};
  if (team_.options.link_latency_ns > 0) write_time(line + kLine - kTimeWords, now_ns());
  std::copy(words, words + count, line);
  float* const to = global_.open() + int64_t(index_) * kLine;
  global_.clear_stale();
  publish_line(to, line);
  global_.publish(index_, 1);
}

// What a worker broadcast. From another device it arrives a link's latency later.
bool Worker::read_from(int worker, float* line) {
  const bool far = worker / team_.options.threads != device_;
  if (!global_.read(worker, line, idle(far ? kPeer : kLocal))) return false;
  if (far) wait_for_link(read_time(line + kLine - kTimeWords));
  return true;
}

}  // namespace ml
