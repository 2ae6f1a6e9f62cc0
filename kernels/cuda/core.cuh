// One SM's state: shared memory, the two ends of the ring, and what a consumer thread knows about itself.
#pragma once
#include "exchange.cuh"
#include "experts.cuh"
#include "mailbox.cuh"
#include "neighbour.cuh"
#include "profile.cuh"
#include "stream.cuh"
#include "units.cuh"

constexpr int CONSUMERS = WARPS * 32;
constexpr int PRODUCERS = experts::ANY ? 32 : 1;  // a slot of experts takes many copies: a lane each
// Then all wait for what a producer that walks experts executes between the router's answer and the first copy: it spills nothing.
constexpr bool ONE_WITH_EXPERTS = experts::ANY && model::REQUESTS == 1;
constexpr int CONSUMER_REGISTERS = ONE_WITH_EXPERTS ? 224 : 232, PRODUCER_REGISTERS = ONE_WITH_EXPERTS ? 56 : 40;
static_assert(CONSUMERS * CONSUMER_REGISTERS + 128 * PRODUCER_REGISTERS <= 65536, "registers of one SM");
constexpr int SLOTS = model::SLOTS;
constexpr int REQUESTS = model::REQUESTS;  // that a launch may have at once (several.cuh)
static_assert(SLOT_UNITS >= MAX_TILES, "a slot holds at least one chunk of columns of a full group");

// The inner dimension of each matrix, as one lane sees it, in 32-column chunks.
template <int PHASE>
struct Matrix;
template <>
struct Matrix<QKV> {
    static constexpr int COLUMNS = model::HIDDEN;
};
template <>
struct Matrix<ATTN_OUT> {
    static constexpr int COLUMNS = model::Q_DIM / model::LANES;
};
template <>
struct Matrix<GATE_UP> {
    static constexpr int COLUMNS = model::HIDDEN;
};
template <>
struct Matrix<DOWN> {
    static constexpr int COLUMNS = model::FFN / model::LANES;
};
template <>
struct Matrix<HEAD> {
    static constexpr int COLUMNS = model::HEAD_COLUMNS;
};

DEVICE constexpr int chunks_of(int columns) { return ceil_div(columns, CHUNK_COLUMNS); }
DEVICE constexpr int phase_chunks(int phase) {
    return chunks_of(phase == ATTN_OUT ? Matrix<ATTN_OUT>::COLUMNS
                     : phase == DOWN   ? Matrix<DOWN>::COLUMNS
                     : phase == HEAD   ? Matrix<HEAD>::COLUMNS
                                       : model::HIDDEN);
}

constexpr int MAX_COLUMNS = larger(larger(model::HIDDEN, Matrix<ATTN_OUT>::COLUMNS),
                                   larger(Matrix<DOWN>::COLUMNS, Matrix<HEAD>::COLUMNS));
constexpr int VECTOR_CHUNK_BYTES = 2 * CHUNK_COLUMNS * 2;  // of one vector: both parts of the split, 32 columns
constexpr int VECTOR_STEP_BYTES = VECTOR_CHUNK_BYTES / 2;  // one product of 16 columns
constexpr int CHUNK_OPERAND_BYTES = REQUESTS * VECTOR_CHUNK_BYTES;
constexpr int OPERAND_STEP_BYTES = CHUNK_OPERAND_BYTES / 2;
// The eight lanes that store a chunk of one request, half of them of the second product, would meet in banks: so there neighbours
// have changed places. From where a lane reads its part of the first product, the way to that of the second.
DEVICE constexpr int request_row(int request, int step) { return request ^ step; }
DEVICE int second_step(u32 lane) { return OPERAND_STEP_BYTES + (REQUESTS == 1 ? 0 : lane & 4 ? -VECTOR_STEP_BYTES : VECTOR_STEP_BYTES); }
constexpr int QUAD_OPERAND_BYTES = QUAD_CHUNKS * CHUNK_OPERAND_BYTES;
constexpr int VECTOR_CHUNKS = round_up(chunks_of(MAX_COLUMNS), any_by_warpgroups() ? 2 * QUAD_CHUNKS : 1);
// Long vectors, and those of several requests, lie in shared memory a window of their columns at a time (windows.cuh,
// several_products.cuh).
constexpr int ROUND_CHUNKS = 4 * WARPS;
static_assert(model::WINDOW_CHUNKS % ROUND_CHUNKS == 0, "each thread fetches whole pieces of a window");
constexpr int OPERAND_CHUNKS = smaller(model::WINDOW_CHUNKS, VECTOR_CHUNKS);
// Of several requests gate_up of experts has them whole, where it is one product (experts::ONCE): the room is kept wherever they fit.
constexpr int STORED_CHUNKS = experts::VECTORS_FIT ? larger(OPERAND_CHUNKS, experts::VECTOR_CHUNKS) : OPERAND_CHUNKS;
// Behind all chunks those whose numbers are digits have their sizes, each chunk or each run its own (digits.cuh, slot_runs.cuh).
constexpr int SIZES_OFFSET = STORED_CHUNKS * CHUNK_OPERAND_BYTES;
constexpr int OPERAND_BYTES = SIZES_OFFSET + (fewest_chunks_a_size() ? STORED_CHUNKS / larger(1, fewest_chunks_a_size()) * REQUESTS * int(sizeof(float)) : 0);
static_assert(!experts::ANY || VECTOR_CHUNKS * VECTOR_CHUNK_BYTES <= SIZES_OFFSET, "down of experts takes one request's vector at a time, whole");
constexpr int PAIRS = MAX_TILES * TILE_ROWS / 2;            // row pairs of a full group
// Of one request. Lanes that leave those of several requests together would meet in banks: they lie a tile's further apart.
constexpr int REQUEST_PARTIALS = WARPS * PAIRS + (REQUESTS > 1 ? TILE_ROWS / 2 : 0);
constexpr int PARTIAL_BYTES = 2 * REQUESTS * REQUEST_PARTIALS * int(sizeof(float2));
constexpr int ATTENTION_ROWS = 8;
constexpr int MERGE_ROW = model::HEAD_DIM + 4;              // accumulator, maximum, sum; whole 16 bytes
constexpr int DECODE_MERGE_BYTES = (WARPS + 1) * model::ITEM_QUERIES * MERGE_ROW * 4;  // of an item
constexpr int PREFILL_MERGE_BYTES = WARPS * ATTENTION_ROWS * MERGE_ROW * 4;
constexpr int MOST_STAGES = 4;                              // of a long prompt's tiles (stages.cuh)
constexpr int PREFILL_PARTIAL_BYTES = WARPS * PREFILL_TOKENS_A_STEP * PAIRS * int(sizeof(float2));
// Sums over some tokens: weights of those that score more than a bar, of all, and how many score more (filters.cuh).
struct FilterSums {
    u64 above, all;
    u32 count;
};
static_assert(PROBES == WARPS, "each warp finds one");
constexpr int FILTER_BYTES = (1 + REQUESTS + PROBES) * WARPS * int(sizeof(FilterSums));

// What the sequence and the request say of a vocabulary row: its bias, how often it was sampled, and SEEN if it occurs at all.
struct RowState {
    float bias;
    u32 uses;
};
constexpr u32 SEEN = 1u << 31;

// The candidate in question, its score without noise, the largest score, and whether a wait was given up.
struct Draw {
    int id;
    float score, top;
    u32 lost;
};
constexpr int NEWEST_BYTES = 2 * model::HEAD_DIM * 2;
constexpr int SLICE_QUADS = ceil_div(model::HIDDEN / 4, model::SMS);  // most of an SM where lanes are joined (head_input.cuh)
constexpr int SLICES_BYTES = mail::JOINS_LANES ? REQUESTS * model::STREAMS * SLICE_QUADS * int(sizeof(float4)) : 0;
constexpr int ASIDE_BYTES = round_up(larger(larger(DECODE_MERGE_BYTES + NEWEST_BYTES, FILTER_BYTES), SLICES_BYTES), 8);
// Of several requests, and of a dense model, it lies where the operand does, which nobody reads meanwhile: that leaves the ring more
// slots. What joins lanes goes from there into the operand.
constexpr bool ASIDE_IN_OPERAND = REQUESTS > 1 || !(experts::ANY || mail::JOINS_LANES);
constexpr int PARTIAL_OFFSET = ASIDE_IN_OPERAND ? larger(OPERAND_BYTES, ASIDE_BYTES) : OPERAND_BYTES;
constexpr int ASIDE_OFFSET = ASIDE_IN_OPERAND ? 0 : OPERAND_BYTES + PARTIAL_BYTES;
constexpr int ROWS_OFFSET = larger(PARTIAL_OFFSET + PARTIAL_BYTES, ASIDE_OFFSET + ASIDE_BYTES);
constexpr int TABLE_BYTES = model::HEAD_ROWS * int(sizeof(RowState) + sizeof(float));  // of one request: of several in the GPU's memory
constexpr bool HAS_TABLE = REQUESTS == 1 && model::FILTERS;
constexpr int DECODE_BYTES = ROWS_OFFSET + (HAS_TABLE ? TABLE_BYTES : 0);
// Two parts of a head lie on two SMs that are a cluster, and are joined in shared memory: an exchange less (phases.py says for whom).
constexpr bool IN_PAIRS = model::HAS_PAIRS && REQUESTS == 1 && !model::FILTERS;
constexpr int CLUSTER = IN_PAIRS ? 2 : 1;
constexpr int NEIGHBOUR_BYTES = IN_PAIRS ? model::ITEM_QUERIES * (model::HEAD_DIM + 2) * 4 : 0;
constexpr int NEIGHBOUR_OFFSET = round_up(DECODE_BYTES, 8);
constexpr int NORM_BYTES = model::LANES * WARPS * int(sizeof(float));  // prefill: of each lane and warp, the last ones of all
constexpr int SCRATCH_BYTES = round_up(larger(NEIGHBOUR_OFFSET + NEIGHBOUR_BYTES, larger(PREFILL_PARTIAL_BYTES, PREFILL_MERGE_BYTES)), 128);

// Whether each phase asks for the warp's number anew. Not where it was slower: docs/performance-log.md.
constexpr bool ASKS_FOR_WARP = REQUESTS == 1 && !(experts::FOLDED && model::RANKS > 1);

// Of one request in whole words, of several, which have many items, in halves.
template <bool SEVERAL>
struct ItemNumber {
    using Type = int;
};
template <>
struct ItemNumber<true> {
    using Type = i16;
};
// Which part of which head an SM attends to in a layer, if any (ring_blocks.cuh).
struct AttentionItem {
    using Number = ItemNumber<(REQUESTS > 1)>::Type;
    Number head, split, splits;  // head < 0: none
    Number blocks;               // positions [first, position] lie in so many of the cache,
    int first;
    Number begin, end;           // of which those from `begin` to `end` - 1 are the part's
};

// Where a request of several is, between two passes: the same on all SMs.
struct Seat {
    int position, id, generated;
    u32 serial, finish;
};

// When a warp last looked for what its own GPU owes the head, and for anything that the head waits for.
constexpr bool KEEPS_LOOKS = model::PROFILE && model::RANKS > 1 && mail::JOINS_LANES;
struct LastLooks {
    u64 near, any;
};

struct Shared {
    u8 ring[SLOTS][SLOT_BYTES];    // the tape, in flight or ready; in long prompts stages (stages.cuh)
    // Decode: operand and partial sums; attention, the head's slices or scales, or sums of filters (ASIDE_OFFSET); rows of the
    // vocabulary.
    // Prefill: its own partial sums; behind the ring, stages of a long prompt's tiles reach into it (stages.cuh).
    u8 scratch[SCRATCH_BYTES];
    u64 full[SLOTS];
    u64 empty[SLOTS];
    u64 stage_full[MOST_STAGES];
    u64 stage_empty[MOST_STAGES];
    u64 phase_begun;               // all SMs have written what the phase's tiles read
    u64 done;                      // the consumers want no more
    u64 ring_begun;                // consumers have planned the items of a pass whose blocks may come through the ring,
    u64 items_read;                // and the producer needs them no more (ring_blocks.cuh)
    // decode: the rows of its lane's stream that this SM finishes; with POST_NORMS all of it, and behind it sums of squares
    alignas(model::POST_NORMS ? 16 : 4) float residual[REQUESTS * model::RESIDUAL_ROWS];
    TileRange shares[MATRICES];
    Groups groups[MATRICES];
    AttentionItem items[REQUESTS * model::LAYERS];  // decode: of this pass
    // Sums of squares of the vector in use, and of the next. Aligned, so that the 16-byte pieces in which they are read hold
    // nothing that others write: race checkers count that too.
    alignas(16) float squares[2 * REQUESTS][WARPS];
    u64 best[WARPS];
    float best_scores[WARPS];      // of later rounds: without noise
    u32 top_keys[WARPS];           // the largest scores, ordered as integers
    Draw draw[REQUESTS];
    u32 draw_exchanges[REQUESTS], probe_exchanges[REQUESTS];  // of this launch: not in registers, which the layers need (filters.cuh)
    u32 token[REQUESTS];
    u32 verdict[REQUESTS];                   // on the pass just done: bits of Verdict (sampling.cuh)
    ProfileTotals totals;
    LastLooks looks[KEEPS_LOOKS ? WARPS : 1];
    experts::Routing routing;      // of this layer
    Seat seats[REQUESTS];          // of several requests
    experts::Routes<(REQUESTS > 1)> routes;
    Neighbour<IN_PAIRS> neighbour;  // a part of a head

    DEVICE u8* operand() { return scratch; }
    DEVICE float* sizes() { return reinterpret_cast<float*>(scratch + SIZES_OFFSET); }
    DEVICE float* norm_parts() { return reinterpret_cast<float*>(scratch + SCRATCH_BYTES - NORM_BYTES); }
    DEVICE float2* partial(u32 buffer) {
        return reinterpret_cast<float2*>(scratch + PARTIAL_OFFSET) + buffer * (REQUESTS * REQUEST_PARTIALS);
    }
    DEVICE float* merge() { return reinterpret_cast<float*>(scratch + ASIDE_OFFSET); }
    // Of the neighbour's part of a head: the values, then maximum and sum of each row.
    DEVICE float* neighbours_values() { return reinterpret_cast<float*>(scratch + NEIGHBOUR_OFFSET); }
    DEVICE float2* neighbours_scales() { return reinterpret_cast<float2*>(neighbours_values() + model::ITEM_QUERIES * model::HEAD_DIM); }
    DEVICE u16* newest() { return reinterpret_cast<u16*>(scratch + ASIDE_OFFSET + DECODE_MERGE_BYTES); }
    DEVICE float4* slices() { return reinterpret_cast<float4*>(merge()); }
    DEVICE FilterSums* sums() { return reinterpret_cast<FilterSums*>(scratch + ASIDE_OFFSET); }
    DEVICE FilterSums* found(int request) { return sums() + (1 + request) * WARPS; }
    DEVICE FilterSums* probe_sums(u32 warp) { return sums() + (1 + REQUESTS + warp) * WARPS; }
};
static_assert(sizeof(Shared) <= model::SHARED_BYTES, "shared memory of one SM");

constexpr int ATTENTION = MATRICES;  // the phase that reads no tape

// Among the consumers of this block.
DEVICE void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// Which request of several a thread works for, and where all of them stand.
template <bool SEVERAL>
struct Own {
    static constexpr const Together* launch = nullptr;
    static constexpr int request = 0;

    DEVICE static u32* mailbox(const Params& params) { return params.mail; }
};
template <>
struct Own<true> {
    const Together* launch = nullptr;
    int request = 0;
    u32* mail = nullptr;  // the request's: to look its address up by a number known late takes as long as a part of a phase

    DEVICE u32* mailbox(const Params&) const { return mail; }
};

// What a launch is handed: of one request its Params, of several those of all; and whose prompt it reads.
template <bool SEVERAL>
struct LaunchOf {
    using Type = Params;
};
template <>
struct LaunchOf<true> {
    using Type = Together;
};
using Launched = LaunchOf<(REQUESTS > 1)>::Type;
DEVICE const Params& prompt_of(const Params& params) { return params; }
DEVICE const Params& prompt_of(const Together& launch) { return launch.requests[launch.reader]; }

// Through which layers a pass by tiles goes. Beside running requests a piece of a prompt goes through some in one launch and through
// others in the next ones (engine/backends/cuda/reading.py): all that a layer takes over from those before lies in memory.
struct Layers {
    int first, end;
};
DEVICE Layers layers_of(const Params&) { return {0, model::LAYERS}; }
DEVICE Layers layers_of(const Together& launch) { return {launch.first_layer, launch.end_layer}; }

// A consumer thread. `place` is kept current for the watchdog's report.
struct Core {
    const Params& params;
    Shared& shared;
    Place place;
    u32 lane, warp;
    int model_lane;        // which of this GPU's lanes is this SM's
    Cursor cursor;
    u32 group = 0;         // groups finished so far: turns the partial buffers and the finishing warp
    u32 staged = 0;        // vectors staged so far: turns `squares`
    u32 serial;            // number of the pass, over all launches
    u32 epoch;             // its parity
    u32 barriers = 0, node_barriers = 0;
    u32 told[2] = {};      // `node_barriers` after the norm before the last one of prefill, and after the last one
    int position = 0;
    float squares = 0.0f;  // this thread's part of the sum of squares of the vector staged last
    Profile profile;
    Own<(REQUESTS > 1)> own;

    DEVICE const TileRange& share(int phase) const { return shared.shares[phase]; }
    DEVICE const Groups& groups(int phase) const { return shared.groups[phase]; }

    // What follows from a thread's place is computed anew in each phase: hoisted out of the loop over layers it would be
    // more than the registers hold, and a spilled word comes back from the L2, as slow as a look at the mailbox.
    // SMs that belong to no lane have empty shares; any lane will do for them.
    DEVICE void refresh() {
        if constexpr (REQUESTS > 1 && model::LANES == 1) {  // the kernel for one request keeps its instructions
            model_lane = 0;
            asm volatile("" : "+r"(lane), "+r"(warp), "+r"(place.sm), "+r"(place.layer));
            return;
        }
        model_lane = smaller(int(place.sm) / model::SMS_A_LANE, model::LANES - 1);
        asm volatile("" : "+r"(lane), "+r"(warp), "+r"(place.sm), "+r"(place.layer), "+r"(model_lane));
        // Kept from phase to phase, the warp's number drives the ring's cursor out of the few uniform registers, or is found there itself
        // and compared by the slow unit that belongs to them: which of the two changes with any line of the kernel.
        if constexpr (ASKS_FOR_WARP) warp = __shfl_sync(ALL_LANES, warp, 0);
        __builtin_assume(warp < WARPS);
    }

    // Of a barrier that has a phase a layer: of the phase of `layer`, which may be of the pass before, -1.
    DEVICE u32 layer_parity(int layer) const { return ((serial - params.serial) * model::LAYERS + u32(layer)) & 1u; }

    // The lane's number in the whole model.
    DEVICE int whole_lane() const { return params.rank * model::LANES + model_lane; }
    // Its residual stream's; GPUs that split a model without lanes all keep the same one.
    DEVICE int stream() const { return model::STREAMS == model::LANES ? model_lane : whole_lane(); }

    // Of the request: what scales its vector, and the rows of its stream.
    DEVICE float (&squares_left() const)[WARPS] { return shared.squares[(staged & 1) * REQUESTS + own.request]; }
    DEVICE float* residual() const { return shared.residual + own.request * model::RESIDUAL_ROWS; }
    DEVICE experts::Met& met() const { return shared.routes.met(shared.routing, own.request); }
    // Of the SM's score of its row `row` of the router each warp's part; FOLDED and of several requests each thread's.
    DEVICE float* score_parts(int row) const { return shared.routes.sums(shared.routing, own.request, row); }
    // Of this SM's vocabulary rows, from the begin of decode to the end of the launch; scores are of one pass.
    DEVICE RowState* rows() const {
        if constexpr (REQUESTS == 1) {
            return reinterpret_cast<RowState*>(shared.scratch + ROWS_OFFSET);
        } else {
            return reinterpret_cast<RowState*>(own.launch->tables + (size_t(own.request) * model::SMS + place.sm) * TABLE_BYTES);
        }
    }
    DEVICE float* scores() const { return reinterpret_cast<float*>(rows() + model::HEAD_ROWS); }
    // The warps that work for the request: all, or of several requests every REQUESTS-th.
    static constexpr int TEAM = WARPS / REQUESTS, TEAM_THREADS = TEAM * 32;
    DEVICE u32 member() const {
        if constexpr (REQUESTS == 1) {
            return warp;
        } else {
            return warp / REQUESTS;
        }
    }
    DEVICE int team_thread() const {
        if constexpr (REQUESTS == 1) {
            return int(threadIdx.x);
        } else {
            return int(member() * 32 + lane);
        }
    }
    DEVICE void team_sync() const {
        if constexpr (REQUESTS == 1) {
            consumers_sync();
        } else if constexpr (TEAM == 1) {
            __syncwarp();
        } else {
            asm volatile("bar.sync %0, %1;" ::"r"(2 + own.request), "n"(TEAM_THREADS) : "memory");
        }
    }
    // Whether a warp's best candidate of the head is one of the request's.
    DEVICE bool has_candidate(u32 warp) const {
        if constexpr (REQUESTS == 1) {
            return warp < WARPS;
        } else {
            return warp < WARPS && int(warp % REQUESTS) == own.request;
        }
    }

    DEVICE u32* mail(int layer) const { return mailbox() + size_t(layer) * mail::LAYER; }
    DEVICE u32* mailbox() const { return own.mailbox(params); }

    // Says again that these are the same in all lanes: after a prompt's loops the compiler no longer knows, and takes lanes for apart.
    DEVICE void keep_together() {
        warp = __shfl_sync(ALL_LANES, warp, 0);
        cursor.slot = __shfl_sync(ALL_LANES, cursor.slot, 0);
        cursor.round = __shfl_sync(ALL_LANES, cursor.round, 0);
    }

    // By a warp, which stays together (await_in_place). Should the slot never come, its producer reports, of experts an SM that waits for this one's words.
    DEVICE void wait_full() {
        const u64 before = model::PROFILE ? Profile::now() : 0;
        await_in_place(&shared.full[cursor.slot], cursor.round, &params.control->aborted);
        if constexpr (model::PROFILE) profile.starved_since(before);
    }
    // Each thread for itself: no warp has to come together for it, which cost 1 %, and race checkers can follow.
    DEVICE void free_slot() {
        barrier_arrive(&shared.empty[cursor.slot]);
        cursor.advance(SLOTS);
    }
    // The same where loads may hang: not before `word`, which depends on all that the thread loaded from the slot.
    DEVICE void free_slot_after(u32 word) {
        barrier_arrive_after(&shared.empty[cursor.slot], word, params.zero);
        cursor.advance(SLOTS);
    }

    // All SMs, and everything written before it is visible after it. Used between the phases of prefill, and
    // everywhere when the measured option `sync = barrier` asks for it. With TELLS other GPUs hear that this one has come so
    // far, and nobody waits for them: await_ranks.
    template <bool TELLS = false>
    DEVICE void grid_barrier() {
        ++barriers;
        if constexpr (TELLS && model::RANKS > 1) ++node_barriers;
        consumers_sync();
        if (threadIdx.x == 0) {
            if constexpr (TELLS && model::RANKS > 1) arrive_for_ranks();
            else {
                __threadfence();
                atomicAdd(&params.control->arrivals, 1u);
            }
            const u32 target = barriers * model::SMS;
            Spin spin(params, place, WAIT_BARRIER);
            while (load_relaxed(&params.control->arrivals) < target) {
                if (spin.hopeless()) break;
            }
            __threadfence();
        }
        consumers_sync();
    }

    // All SMs of all GPUs; what any of them wrote before it, in whatever GPU's memory, is visible after it.
    DEVICE void node_barrier() {
        if constexpr (model::RANKS == 1) {
            grid_barrier();
            return;
        }
        ++barriers;
        ++node_barriers;
        consumers_sync();
        if (threadIdx.x == 0) {
            arrive_for_ranks();
            spin_for_ranks(node_barriers);
        }
        consumers_sync();
    }

    // Until every GPU has come to its barrier number `barrier` of those that tell others; what it wrote before it, in whatever
    // GPU's memory, is visible after this.
    DEVICE void await_ranks(u32 barrier) {
        if constexpr (model::RANKS > 1) {
            if (threadIdx.x == 0) spin_for_ranks(barrier);
            consumers_sync();
        }
    }

    DEVICE void phase_end() {
        if constexpr (model::SYNC_BARRIER) grid_barrier();
    }

private:
    DEVICE void arrive_for_ranks() {
        __threadfence_system();
        const bool last = atomicAdd(&params.control->arrivals, 1u) + 1 == barriers * model::SMS;
        if (!last) return;
        __threadfence_system();
        for (int r = 0; r < model::RANKS; ++r) post_far(&params.peers[r].control->ranks_arrived[params.rank], node_barriers);
    }
    DEVICE void spin_for_ranks(u32 barrier) {
        Spin spin(params, place, WAIT_RANKS);
        for (int r = 0; r < model::RANKS; ++r) {
            while (load_far(&params.control->ranks_arrived[r]) < barrier) {
                if (spin.hopeless()) break;
            }
        }
        __threadfence_system();
    }
};
