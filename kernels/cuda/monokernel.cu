// One launch a request: prefill, every decode step, sampling, and the stop check. One block an SM. Eight warps
// compute. Of four more, in decode the first one walks the SM's tape and keeps the ring full, and never waits for an activation;
// in long prompts all of them fill the stages of tiles.
#include "decode.cuh"
#include "expert_producer.cuh"
#include "expert_tiles.cuh"
#include "prefill.cuh"
#include "routing_warp.cuh"
#ifdef MODEL_SEVERAL
#include "several.cuh"
#endif

constexpr int LAST_ON_TAPE = experts::ANY ? ATTN_OUT : DOWN;

template <int N>
DEVICE constexpr bool all_within(const int (&numbers)[N], int least, int most) {
    for (int number : numbers) {
        if (number < least || number > most) return false;
    }
    return true;
}

// The producer's walk over the tape. Mirrors the consumers: passes, layers, phases, groups, slots.
struct Producer {
    const Params& params;
    Shared& shared;
    Place place;
    // Of dense models alone: registers are few where experts are walked, and these cost little to find again.
    const u8* tape;
    u64 policy;
    Cursor fill, landed;
    const u8* next = nullptr;
    u32 issued = 0;
    u32 waited = 0;     // slots known to have landed
    int quiet = 0;      // slots from here on that go one at a time, none below 1
    bool ended = false;

    // Copies one slot's worth when its last readers have left it and few enough bytes are on their way: what is asked
    // for beyond the memory's delay only makes every exchange queue behind it.
    DEVICE void copy(const u8* from, u32 bytes) {
        fill_slot(bytes, [&] {
            if (leads()) copy_part(0, from, bytes);
        });
    }
    // flight.py says why so many.
    DEVICE u32 in_flight() const {
        constexpr int BY_PHASE[MATRICES + 1] = MODEL_SLOTS_IN_FLIGHT;
        static_assert(all_within(BY_PHASE, 1, SLOTS), "the ring cannot hold what is asked for at once");
        if (quiet > 0 && !experts::apart(place.phase)) return 1;
        u32 most = BY_PHASE[ATTENTION];
#pragma unroll
        for (int phase = 0; phase < MATRICES; ++phase) {
            if (place.phase == phase) most = BY_PHASE[phase];
        }
        return most;
    }
    // All lanes that produce do so together; one of them speaks for all.
    DEVICE static bool leads() { return PRODUCERS == 1 || threadIdx.x == CONSUMERS; }
    // Until the barrier is passed, or nobody wants more. Of one request each lane looks, as each reads or overwrites what is handed over,
    // and none has to be told; of several that takes more registers than there are. These waits report nothing where experts are: that is
    // most of a wait's code, which all SMs would have to keep at hand. Whoever waits within an SM waits in the end for another SM's word, and
    // that wait has a Spin. Of several requests await() still reports: it was not timed without.
    DEVICE void await(u64* barrier, u32 parity, Wait wait) {
        constexpr bool EACH = PRODUCERS > 1 && REQUESTS == 1;
        if constexpr (EACH) {
            QuietSpin spin(params);
            while (!__all_sync(ALL_LANES, barrier_passed(barrier, parity))) {
                if (__any_sync(ALL_LANES, done() || spin.hopeless())) {
                    ended = true;
                    break;
                }
            }
            return;
        }
        if (leads()) {
            Spin spin(params, place, wait);
            while (!barrier_passed(barrier, parity)) {
                if (done() || spin.hopeless()) {
                    ended = true;
                    break;
                }
            }
        }
        if constexpr (PRODUCERS > 1) ended = __shfl_sync(ALL_LANES, int(ended), 0);
    }
    // `copy_parts` issues copies of `bytes` in all.
    template <class CopyParts>
    DEVICE void fill_slot(u32 bytes, const CopyParts& copy_parts) {
        if (issued >= u32(SLOTS)) {
            await(&shared.empty[fill.slot], fill.round ^ 1u, WAIT_EMPTY);
            if (ended) return;
        }
        while (issued - waited >= in_flight()) land();  // fewer may be on their way than a phase ago
        if (leads()) barrier_expect(&shared.full[fill.slot], bytes);
        copy_parts();
        fill.advance(SLOTS);
        ++issued;
        if (model::QUIET_SLOTS) --quiet;
    }
    DEVICE void copy_part(u32 at, const u8* from, u32 bytes) {
        const u64 hint = experts::ANY ? evict_first_policy() : policy;
        bulk_copy(shared.ring[fill.slot] + at, from, bytes, &shared.full[fill.slot], hint);
    }
    DEVICE bool done() const { return barrier_has_passed(&shared.done, 0); }
    DEVICE void land() {
        if constexpr (PRODUCERS > 1) {
            // What has been asked of memory comes, or the GPU has failed. To look whether all have given up took 6 % of GPT-OSS-20B's speed.
            while (leads() && !barrier_passed(&shared.full[landed.slot], landed.round)) {}
            __syncwarp();
        } else {
            barrier_wait(&shared.full[landed.slot], landed.round, params, place, WAIT_LANDED);
        }
        landed.advance(SLOTS);
        ++waited;
    }
    // The matrices of a pass are read in the order in which they lie, from `next` on.
    DEVICE void matrix(int layer, int which) {
        place.layer = layer;
        place.phase = which;
        if (model::QUIET_SLOTS && which == ATTN_OUT) quiet = model::QUIET_SLOTS;
        visit_storage<ALL_STORAGES>(storage_of(layer, which), [&](auto stored) {
            const int chunks = phase_chunks(which);
            const Groups groups = shared.groups[which];
            for (int g = 0; g < groups.count && !ended; ++g) {
                const int tiles = groups.size(g);
                const int step = group_chunks_a_slot(halves_of(which), stored.STORAGE, tiles);
                for (int c = 0; c < chunks && !ended; c += step) {
                    const u32 bytes = u32(group_bytes_of(which, stored.STORAGE, tiles, smaller(step, chunks - c)));
                    copy(next, bytes);
                    next += bytes;
                }
            }
        });
    }
    DEVICE const u8* begin() const { return params.tape + params.tape_offset[place.sm]; }
    // Prefill needs of the last layer only keys and values, and no head.
    DEVICE void prefill_pass(ExpertWalk<experts::ANY>& experts) {
        next = experts::ANY ? begin() : tape;
        for (int layer = 0; layer < model::LAYERS; ++layer) {
            const bool last = layer == model::LAYERS - 1;
            for (int which = QKV; which <= (last ? QKV : LAST_ON_TAPE) && !ended; ++which) matrix(layer, which);
            if (!last) experts.meet_groups(*this, layer);
        }
    }
    // What the warps of this SM do not hold of the cache at once.
    DEVICE void cache_blocks(int layer, int position, bool& begun) {
        using namespace decode_attention;
        if (ended || !may_use_ring(params, position, window_of(layer))) return;
        place.phase = ATTENTION;
        if (!begun) await_begin(position);
        begun = true;
        const AttentionItem& item = shared.items[layer];
        if (ended || item.head < 0) return;
        for (int at = item.begin + ROUND; at < item.end && !ended; at += BLOCKS_A_SLOT) {
            const u32 bytes = u32(smaller(BLOCKS_A_SLOT, item.end - at)) * cache::BLOCK_BYTES;
            fill_slot(bytes, [&] {
                const auto* blocks = cache::block(params.kv, layer, kv_head(item), at);
                if (leads()) copy_shared(shared.ring[fill.slot], blocks, bytes, &shared.full[fill.slot]);
            });
        }
    }
    // No block of the cache before the consumers have begun the pass: then they know who attends to what, and they have come through an
    // exchange of all SMs, so that what was written to the cache before it is there for copies. They report what keeps them; a producer
    // that has no tiles may be here long before they are.
    DEVICE void await_begin(int position) {
        QuietSpin spin(params);
        const u32 parity = decode_attention::phase_parity(params, position);
        if constexpr (PRODUCERS == 1) {
            while (!ended && !barrier_passed(&shared.ring_begun, parity)) ended = done() || spin.hopeless();
        } else {
            while (!ended && !__all_sync(ALL_LANES, barrier_passed(&shared.ring_begun, parity))) {
                ended = __any_sync(ALL_LANES, done() || spin.hopeless()) != 0;
            }
        }
        fence_copies();
    }
    // The pass needs its items no more.
    DEVICE void end_in_ring(int position, bool begun) {
        if (!begun) await_begin(position);
        if (!ended) barrier_arrive(&shared.items_read);
    }
    // From layer `first` on.
    DEVICE void decode_pass(ExpertWalk<experts::ANY>& experts, int first, int position) {
        next = (experts::ANY ? begin() : tape) + layers_bytes(first);
        bool begun = false;
        for (int layer = first; layer < model::LAYERS; ++layer) {
#pragma unroll 1  // a copy for each would be code that all SMs keep at hand
            for (int which = QKV; which <= LAST_ON_TAPE && !ended; ++which) {
                matrix(layer, which);
                if constexpr (decode_attention::IN_RING) {
                    if (which == QKV) cache_blocks(layer, position, begun);
                }
            }
            experts.meet(*this, layer);
        }
        if (decode_attention::in_ring(params, position)) end_in_ring(position, begun);
        if (!ended) matrix(model::LAYERS, HEAD);
    }
    // Of the first `layers` layers, where they have nothing but matrices.
    DEVICE u64 layers_bytes(int layers) const {
        u64 bytes = 0;
        for (int matrix = 0; matrix < layers * HEAD; ++matrix) {
            const int layer = matrix / HEAD, which = matrix % HEAD;
            const Groups groups = shared.groups[which];
            const int storage = storage_of(layer, which);
            for (int g = 0; g < groups.count; ++g) bytes += u64(group_bytes_of(which, storage, groups.size(g), phase_chunks(which)));
        }
        return bytes;
    }
    // Nothing may still be on its way into shared memory when the block leaves.
    DEVICE void drain() {
        while (waited < issued) land();
    }
};

// The tiles of a long prompt, by all warps that do not compute. Where the rest of the prompt begins, which goes through the ring.
DEVICE int produce_tiles(const Params& params, Shared& shared, u32 sm, const Layers& layers) {
    int at = params.first;
    if constexpr (tiles::ANY) {
        const u32 warp = threadIdx.x / 32;
        tiles::Producer producer{params, shared, Place{sm, warp, MATRICES, 0, 0}, warp - WARPS, threadIdx.x % 32};
        while (at < params.prefill_end) {
            const prefill::Chunk chunk = prefill::next_chunk(params, at);
            if (!chunk.tiled) break;
            producer.pass(at, chunk.tokens, layers);
            at += chunk.tokens;
        }
        producer.drain();
    }
    return at;
}

// Of the first step of decode, before which prefill has come as far as `at`.
DEVICE int first_layer(const Params& params, int at) {
    return last_token::TAKEN_ALONG && at > params.prefill_end ? last_token::LAYER : 0;
}

DEVICE void produce(const Params& params, Shared& shared, u32 sm, int at) {
    Producer producer{params, shared, Place{sm, u32(WARPS), MATRICES, 0, 0}};
    if constexpr (!experts::ANY) {
        producer.tape = producer.begin();
        producer.policy = evict_first_policy();
    }
    ExpertWalk<experts::ANY> read, experts;
    for (; at < params.prefill_end && !producer.ended; at += prefill::next_chunk(params, at).tokens) producer.prefill_pass(read);
    int layer = first_layer(params, at);
    for (int position = params.prefill_end; !producer.ended && !producer.done(); ++position) {
        producer.decode_pass(experts, layer, position);
        layer = 0;
    }
    producer.drain();
}

// What SM 0 of the first GPU tells the host.
struct Reporter {
    const Params& params;
    u64 start;
    u32 sent = 0;

    DEVICE explicit Reporter(const Params& p) : params(p), start(global_ns()) {}
    DEVICE u64 elapsed() const { return global_ns() - start + 1; }
    // One word: nanoseconds since launch (never 0), then the id.
    DEVICE void token(int id) {
        const u64 word = elapsed() << TOKEN_ID_BITS | u64(id);
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(params.ring + sent), "l"(word) : "memory");
        ++sent;
    }
    DEVICE void prefilled(int tokens) {
        *static_cast<volatile u64*>(&params.status->prefill_ns) = elapsed();
        *static_cast<volatile u32*>(&params.status->prefilled) = u32(tokens);
    }
};

// One chunk of a prompt, the way that is the faster one for it.
DEVICE void pass_prompt(Core& core, const prefill::Chunk& chunk, const Layers& layers, tiles::Stages& stages, u32& copied) {
    if constexpr (tiles::ANY) {
        if (chunk.tiled) {
            if constexpr (experts::ANY) prefill::pass(expert_tiles::ByExpertTiles{{core, chunk, stages}}, layers);
            else prefill::pass(prefill::ByTiles{core, chunk, stages}, layers);
            return;
        }
    }
    if constexpr (experts::ANY) prefill::pass(expert_prefill::ByExperts{{core, chunk}, copied});
    else prefill::pass(prefill::ByShares{core, chunk});
}

DEVICE void consume(const Launched& launched, Shared& memory, u32 sm) {
    const Params& params = prompt_of(launched);
    // Through shuffles, which no compiler does twice: it would read special registers again in every phase, for the thread's
    // number and for the address of the shared memory, to save registers of its own.
    const u32 thread = __shfl_sync(ALL_LANES, threadIdx.x, int(threadIdx.x % 32));
    const u32 nothing = __shfl_sync(ALL_LANES, params.zero, 0);
    Shared& shared = *reinterpret_cast<Shared*>(reinterpret_cast<u8*>(&memory) + nothing);
    Core core{params, shared};
    core.warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);  // for the compiler the same in all lanes: what depends on it divides no warp
    core.lane = thread % 32;
    core.place = Place{sm, core.warp, MATRICES, 0, 0};
    core.refresh();
    core.serial = params.serial;
    const bool ends = sm == 0 && threadIdx.x == 0, reports = ends && params.rank == 0;
    Reporter reporter(params);
    const LaunchBegin begun{global_ns(), Profile::now()};

    decode_attention::plan_items(core, params.prefill_end);
    consumers_sync();
    int at = params.first;
    tiles::Stages stages(core);
    u32 copied = 0;  // parity of the barrier of that name
    while (at < params.prefill_end) {
        const prefill::Chunk chunk = prefill::next_chunk(params, at);
        pass_prompt(core, chunk, layers_of(launched), stages, copied);
        at += chunk.tokens;
        if (reports && layers_of(launched).end == model::LAYERS) reporter.prefilled(smaller(at, params.prefill_end));
    }

#ifdef MODEL_SEVERAL
    const int passes = several::decode_all(launched, core, reporter.start);
    consumers_sync();
    if (threadIdx.x == 0) {
        barrier_arrive(&shared.done);
        leave_profile(params, shared.totals, sm, passes, begun);
    }
    return;
#endif
    core.keep_together();
    if (model::FILTERS) begin_rows(core);

    int id = params.ids[params.prefill_end];
    u32 finish = FINISH_RUNNING;
    int generated = 0, layer = first_layer(params, at);
    for (int position = params.prefill_end; finish == FINISH_RUNNING; ++position) {
        core.position = core.place.position = position;
        core.epoch = core.serial & 1u;
        if (decode_attention::in_ring(params, position)) barrier_arrive(&core.shared.ring_begun);
        const u16* row = params.embed + size_t(id) * model::HIDDEN;
        decode::prefetch_row(core, id);  // the first qkv looks at it only after all that it can do without
        decode::layers(core, row, layer);
        layer = 0;
        const u32 stop_flag = reports ? load_relaxed(params.stop_flag) : 0u;
        float* kept = params.keep_logits ? params.logits + size_t(position - params.prefill_end) * model::VOCAB : nullptr;
        const Best best = decode::head(core, kept);
        core.profile.begin();
        const Chosen chosen = choose(core, best, stop_flag, [&] { decode::prepare_next(core, position + 1); });
        decode::finish_step(core, STEP_SAMPLE, 0);
        ++core.serial;
        ++core.profile.passes;
        if (chosen.aborted) {
            finish = FINISH_ABORTED;
            break;
        }
        if (position + 1 < params.ids_count) {
            id = params.ids[position + 1];
            if (chosen.stop_asked) finish = FINISH_CANCELLED;
            continue;
        }
        id = chosen.id;
        if (position + 1 == params.ids_count && reports) reporter.prefilled(params.ids_count);
        if (chosen.ends) {
            finish = FINISH_STOP;
            break;
        }
        if (reports && generated < params.max_new) reporter.token(id);
        ++generated;
        if (model::FILTERS && params.sampling.adjusts && threadIdx.x == 0) note_use(core, id, true);
        if (generated >= params.max_new || position + 2 >= model::CAPACITY) finish = FINISH_LENGTH;
        if (chosen.stop_asked) finish = FINISH_CANCELLED;
    }

    consumers_sync();
    if (threadIdx.x == 0) {
        barrier_arrive(&shared.done);
        leave_profile(params, shared.totals, sm, core.profile.passes, begun);
    }
    if (ends) {
        params.status->generated = u32(generated);
        params.status->passes = core.serial - params.serial;
        params.status->finish = finish;
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) monokernel(const __grid_constant__ Launched launched) {
    const Params& params = prompt_of(launched);
    extern __shared__ __align__(1024) u8 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x < MATRICES) {
        const TileRange share = params.shares[blockIdx.x * MATRICES + threadIdx.x];
        shared.shares[threadIdx.x] = share;
        shared.groups[threadIdx.x] = Groups::of(share.tiles);
    }
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) {
            barrier_init(&shared.full[slot], 1);
            barrier_init(&shared.empty[slot], CONSUMERS);
        }
        for (int stage = 0; stage < tiles::STAGES; ++stage) {
            barrier_init(&shared.stage_full[stage], tiles::PRODUCER_WARPS);
            barrier_init(&shared.stage_empty[stage], WARPS);
        }
        barrier_init(&shared.phase_begun, 1);
        decode_attention::init_passes(shared);
        barrier_init(&shared.done, 1);
        shared.neighbour.init();
        if constexpr (experts::ANY) {
            barrier_init(&shared.routing.known, experts::CHOOSERS);
            barrier_init(&shared.routing.taken, PRODUCERS);
            barrier_init(&shared.routing.grouped, CONSUMERS);
            barrier_init(&shared.routing.copied, PRODUCERS);
            barrier_init(&shared.routing.tiled, 1);
            if constexpr (experts::FOLDED) init_routing(shared.routing.decode());
        }
        if constexpr (model::PROFILE) {
            for (int k = 0; k < STEP_KINDS; ++k) {
                shared.totals.wait[k] = shared.totals.work[k] = shared.totals.starved[k] = shared.totals.peer[k] = 0;
            }
        }
        fence_barrier_init();
    }
    if constexpr (IN_PAIRS) cluster_sync();  // nobody sends to a barrier that is not there yet
    else __syncthreads();
    if (threadIdx.x < CONSUMERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        consume(launched, shared, blockIdx.x);
        if constexpr (IN_PAIRS) cluster_sync();  // nor to a block that has left
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        const int at = produce_tiles(params, shared, blockIdx.x, layers_of(launched));
        if (threadIdx.x < CONSUMERS + PRODUCERS) produce(params, shared, blockIdx.x, at);
        else if (threadIdx.x < CONSUMERS + PRODUCERS + 32) RoutingWarp<experts::FOLDED && REQUESTS == 1>(params, shared, blockIdx.x).run();
    }
}
