// What the host hands to one launch. engine/backends/cuda/launch.py packs the same structs, field by field.
#pragma once
#include "types.cuh"

// Which dependent step of a token: the order of the tape within a layer, then the head.
enum Phase : int { QKV = 0, ATTN_OUT = 1, GATE_UP = 2, DOWN = 3, HEAD = 4, MATRICES = 5 };

// What a spin was waiting for when the watchdog ended it (launch.py holds the words).
enum Wait : u32 { WAIT_FULL = 1, WAIT_EMPTY, WAIT_VECTOR, WAIT_QUERY, WAIT_PARTIAL, WAIT_LANES, WAIT_CANDIDATE,
                  WAIT_BARRIER, WAIT_LANDED, WAIT_RANKS };

enum Finish : u32 { FINISH_RUNNING = 0, FINISH_STOP = 1, FINISH_LENGTH = 2, FINISH_CANCELLED = 3, FINISH_ABORTED = 4 };

// One SM's share of a matrix: `tiles` tiles of eight rows, from packed tile `first`.
struct Share {
    int first;
    int tiles;
};

constexpr int MAX_RANKS = 8;  // GPUs that run one model together

// Device memory; zero before each launch. `aborted` and what follows it are the watchdog's report.
struct Control {
    u32 arrivals;
    u32 aborted;
    u32 sm, warp, wait, phase, layer, position;
    u32 ranks_arrived[MAX_RANKS];  // written by each GPU: how many barriers of all GPUs it has come to
};

// What one GPU writes in another one's memory.
struct Peer {
    u32* mail;
    u64* candidates;
    u64* filters;
    float* outputs;
    Control* control;
};

// Host memory, mapped: the device writes, the host reads.
struct Status {
    u64 prefill_ns;
    u32 prefilled;
    u32 finish;
    u32 generated;
    u32 passes;
};

struct Sampling {
    u64 least_weight;  // that min-p keeps
    float temperature;
    float top_p;
    float repetition_penalty;
    float frequency_penalty;
    float presence_penalty;
    int top_k;         // 0 keeps all
    u32 seed_low, seed_high;
    u32 filtered;      // 1 if top-k, top-p or min-p may remove anything
    u32 adjusts;       // 1 if a penalty or a bias may move a logit
};

struct Bias {
    int id;
    float value;
};

struct Params {
    const u8* tape;             // all SMs' tapes
    const u64* tape_offset;     // [SMS] bytes
    const Share* shares;        // [SMS][SEATS][MATRICES]
    const u16* embed;           // [VOCAB][HIDDEN]
    const u16* norms;           // [2 * LAYERS + 1][HIDDEN]: attention and MLP of each layer, then the last
    const float2* rotation;     // [CAPACITY][HEAD_DIM / 2] cosine, sine
    u16* kv;                    // rows.cuh gives the layout
    u32* mail;                  // mailbox.cuh
    u64* candidates;            // [2][RANKS * SMS + 1]
    u64* filters;               // filters.cuh
    float* stream;              // prefill: [LANES][CHUNK][HIDDEN] residual
    float* outputs;             // prefill: [2][DELAY + 1][TOTAL_LANES][CHUNK][HIDDEN] module outputs
    float* queries;             // prefill: [CHUNK][Q_DIM]
    u16* operand_hidden;        // prefill operands in fragment order (prefill.cuh)
    u16* operand_heads;
    u16* operand_ffn;
    float* logits;              // [steps kept][VOCAB]: the first GPU's, on all of them
    const int* ids;             // the sequence so far
    const int* stop_ids;
    const Bias* biases;
    Control* control;
    const u32* stop_flag;       // device memory, written by the host while the launch runs
    u64* ring;                  // mapped host memory: one word a generated token
    Status* status;
    u64* profile;               // PROFILE only: profile.cuh gives the layout
    Peer peers[MAX_RANKS];      // by rank, this GPU among them
    u64 spin_budget_ns;
    Sampling sampling;
    int first;                  // index of the first id to process; those before it are in the cache
    int prefill_end;            // ids [first, prefill_end) go through prefill, the rest through decode
    int ids_count;
    int max_new;
    int stop_count;
    int bias_count;
    int sampled_from;           // ids from here on were sampled, those before are the prompt
    int keep_logits;            // 1: row i of `logits` is kept for the id at first + i
    int trace_first, trace_last;
    int slots_in_flight;        // copies on their way to one SM at a time
    int blocks_a_split;         // cache blocks of a head before one more SM shares it; 0: attention.cuh decides
    int rank;                   // which GPU this is; the first one tells the host
    u32 serial;                 // number of this launch's first decode pass, over all launches; from 1
};
