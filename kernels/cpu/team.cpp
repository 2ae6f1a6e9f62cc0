#include "team.h"

#include <algorithm>

#include "packed_panel.h"

namespace ml {

static int choose_block(const Plan& plan, const MlTeam& options) {
  if (options.block > 0) return options.block;
  // A block's residual streams and histories are private to a worker: many wide lanes get a shorter one.
  const int64_t a_token = int64_t(plan.streams) * plan.s.hidden * (4 + 2 * plan.s.delay) * 4;
  const int64_t tokens = (int64_t(8) << 20) / a_token;
  return int(std::clamp<int64_t>(tokens / kTile * kTile, kTile, 48));
}

Team::Team(const MlShape& shape, const MlTeam& wanted)
    : plan(shape, wanted), options(wanted), workers(wanted.devices * wanted.threads), block(choose_block(plan, wanted)),
      columns(std::max(block, wanted.rows)), requests(wanted.rows) {
  const MlShape& s = plan.s;
  windows.assign(s.windows, s.windows + s.layers);
  exchanges[0].assign(s.attention_exchanges, s.attention_exchanges + s.layers);
  exchanges[1].assign(s.mlp_exchanges, s.mlp_exchanges + s.layers);
  rotations.assign(s.layer_rotations, s.layer_rotations + s.layers);
  const int64_t pairs = int64_t(s.rotations) * (s.head_dim / 2);
  inverse_frequencies.assign(s.inverse_frequencies, s.inverse_frequencies + pairs);
  amplitudes.assign(s.amplitudes, s.amplitudes + pairs);
  number_peer_exchanges();

  const bool used[] = {true, true, true, s.post_norms != 0, s.post_norms != 0, s.qk_norm != 0, s.qk_norm != 0,
                       s.qkv_bias != 0, s.out_bias != 0, s.sinks != 0, s.experts != 0, s.experts_biased != 0,
                       s.experts_biased != 0, s.experts_biased != 0};
  for (int which = 0; which < kVectors; ++which)
    if (used[which]) vectors[which].assign(vector_at(which, s.layers, 0), which < ML_QKV_BIAS ? 1.0f : 0.0f);
  head_panels.assign(plan.head_by_stream ? s.streams * plan.head_panels : plan.head_panels, nullptr);
  if (!s.tied_head) {
    const int storage = plan.storage_of(ML_EMBED_ROWS, 0);
    const int64_t size = is_packed(storage) ? panels_of(s.vocab) * panel_bytes(storage, s.hidden)
                                            : s.vocab * row_bytes(storage, s.hidden);
    embedding = Pages<uint8_t>(size, PageSize::kSmall);
  }
  for (int device = 0; device < options.devices; ++device) allocate_device(device);
  add_cache();
  team_mail = std::make_unique<MailboxBuffer>(workers, workers);
  scores = allocate<float>(options.rows * (scores_of(1) - scores_of(0)));
  claims = std::vector<Claims>(workers);
  middles = std::vector<SharedMiddle>(workers);
}

int64_t Team::vector_size(int which) const {
  const MlShape& s = plan.s;
  switch (which) {
    case ML_QKV_BIAS: return plan.qkv_rows;
    case ML_Q_NORM:
    case ML_K_NORM: return s.head_dim;
    case ML_SINKS: return plan.q_heads;
    case ML_ROUTER:
    case ML_DOWN_BIAS: return int64_t(s.experts) * s.hidden;
    case ML_ROUTER_BIAS: return s.experts;
    case ML_GATE_UP_BIAS: return int64_t(s.experts) * 2 * plan.ffn;
    default: return s.hidden;
  }
}

// Where a vector begins among those of its kind.
int64_t Team::vector_at(int which, int layer, int shard) const {
  const int64_t shards = is_cut(which) ? plan.s.shards : 1;
  return (layer * shards + shard) * vector_size(which);
}

void Team::number_peer_exchanges() {
  const MlShape& s = plan.s;
  for (auto& numbers : peer_number) numbers.assign(s.layers, -1);
  if (options.devices == 1) return;
  for (int layer = 0; layer < s.layers; ++layer)
    for (int kind = 0; kind < 2; ++kind) {
      const int later = layer + s.delay;
      const bool read_later = later < s.layers && exchanges[kind][later] == ML_DELAYED;
      if (exchanges[kind][layer] == ML_SYNC || read_later) peer_number[kind][layer] = peer_exchanges++;
    }
  if (s.streams > 1 && !plan.head_by_stream) head_peer = peer_exchanges++;
}

void Team::allocate_device(int device) {
  const MlShape& s = plan.s;
  for (int thread = 0; thread < options.threads; ++thread) {
    tapes.push_back(std::make_unique<Tape>(plan, device, thread));
    const Tape& tape = *tapes.back();
    const Range range = tape.map.range(ML_HEAD);
    const int first = plan.head_by_stream ? device * plan.units(ML_HEAD) : 0;
    for (int unit = range.first; unit < range.last; ++unit)
      head_panels[first + unit] = tape.data() + tape.map.place(ML_HEAD, 0, unit);
  }
  if (s.experts) {
    int64_t bytes = 0;
    expert_starts.clear();
    for (int layer = 0; layer < s.layers; ++layer) {
      expert_starts.push_back(bytes);
      bytes += s.experts * plan.expert_bytes(layer);
    }
    experts.emplace_back(bytes + kAhead, PageSize::kHuge);
  }
  device_mail.push_back(std::make_unique<MailboxBuffer>(options.threads, mailbox_lines()));
  if (options.devices == 1) return;
  const int64_t lines = int64_t(plan.out_panels) * block * (s.head == ML_LANE && s.streams > 1 ? plan.streams : 1);
  // Four times what may be under way, and room for both ends to learn of each other's progress.
  peer_mail.push_back(std::make_unique<PeerMailbox>(options.devices, options.threads, lines, 8 * s.delay + 10));
}

void Team::read_embedding(int id, float* out, int64_t step) const {
  const int hidden = plan.s.hidden;
  if (plan.s.tied_head) {
    const int in_shard = plan.head_by_stream ? id % plan.head_rows : id;
    const int panel = id / plan.head_rows * plan.head_panels + in_shard / kLine;
    return read_row(plan.storage_of(ML_HEAD_ROWS, 0), head_panels[panel], in_shard % kLine, hidden, out, step);
  }
  const int storage = plan.storage_of(ML_EMBED_ROWS, 0);
  if (is_packed(storage)) {
    const uint8_t* panel = embedding.data() + id / kLine * panel_bytes(storage, hidden);
    return read_row(storage, panel, id % kLine, hidden, out, step);
  }
  const uint16_t* row = reinterpret_cast<const uint16_t*>(embedding.data()) + int64_t(id) * hidden;
  for (int k = 0; k < hidden; ++k)
    out[k * step] = storage == ML_BF16 ? bfloat_to_float(row[k]) : half_to_float(row[k]);
}

uint8_t* Team::unit(int tensor, int layer, int device, int number) const {
  int worker = device * plan.threads;
  while (number >= tapes[worker]->map.range(tensor).last) ++worker;
  return tapes[worker]->data() + tapes[worker]->map.place(tensor, layer, number);
}

int Team::add_cache() {
  const int64_t size = int64_t(plan.s.layers) * cache_heads() * positions() * plan.s.head_dim * (options.fp8_cache ? 1 : 2);
  Cache made;
  for (int device = 0; device < options.devices; ++device) {
    made.keys.emplace_back(size, PageSize::kSmall);
    made.values.emplace_back(size, PageSize::kSmall);
  }
  auto place = std::find(caches.begin(), caches.end(), nullptr);
  if (place == caches.end()) place = caches.emplace(place);
  *place = std::make_unique<Cache>(std::move(made));
  return int(place - caches.begin());
}

void Team::copy_cache(const Cache& from, const Cache& to, int count, int part, int parts) const {
  const int64_t blocks = panels_of(count);
  const Range heads = share_of(plan.s.layers * cache_heads(), part, parts);
  for (int device = 0; device < options.devices; ++device)
    for (int head = heads.first; head < heads.last; ++head) {
      const CacheView source = view(from, device, 0, head), target = view(to, device, 0, head);
      std::copy(source.keys, source.keys + source.bytes(blocks * kBlock), target.keys);
      std::copy(source.values, source.values + source.bytes(count), target.values);
    }
}

void Team::read_cache(int number, int count, float* keys, float* values) const {
  const int64_t dim = plan.s.head_dim, heads = int64_t(options.devices) * cache_heads();
  for (int layer = 0; layer < plan.s.layers; ++layer)
    for (int head = 0; head < heads; ++head) {
      const CacheView kept = view(*caches[number], head / cache_heads(), layer, head % cache_heads());
      for (int position = 0; position < count; ++position) {
        const int64_t at = ((layer * heads + head) * count + position) * dim;
        kept.read(position, keys + at, values + at);
      }
    }
}

// The most lines that the workers of a device publish in one exchange.
int64_t Team::mailbox_lines() const {
  const int64_t heads = int64_t(plan.shards) * plan.kv_heads;
  const int64_t widest = std::max({plan.qkv_panels, plan.out_panels, plan.ffn_panels});
  const int64_t partials = options.rows * plan.threads * heads * plan.group * panels_of(plan.s.head_dim + 2);
  const int64_t whole = heads * block * plan.group * panels_of(plan.s.head_dim);
  const int64_t met = int64_t(plan.s.experts_chosen) * block * plan.ffn_panels;
  const int64_t scores = int64_t(panels_of(plan.s.experts)) * block;
  return std::max({plan.shards * widest * columns, partials, whole, met, scores});
}

bool Team::is_busy() const {
  return std::any_of(requests.begin(), requests.end(), [](const Request& request) { return request.is_running(); });
}

void Team::join(int row) {
  std::lock_guard<std::mutex> hold(mutex);
  const uint32_t number = arrived.load(std::memory_order_relaxed);
  joining[number % kMostRows] = row;
  arrived.store(number + 1, std::memory_order_release);
  if (!launched) launch();
}

void Team::end_launch(uint32_t taken) {
  std::lock_guard<std::mutex> hold(mutex);
  launched = false;
  if (taken != arrived.load(std::memory_order_relaxed)) launch();
}

void Team::launch() {
  launched = true;
  running.store(workers);
  ++launches;
  wake.notify_all();
}

}  // namespace ml
