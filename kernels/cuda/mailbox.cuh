// Exchange between SMs inside a token, through words that carry their own readiness (words.cuh).
//
// Why a word is never overwritten before all have read it: each layer has its own mailboxes, a pass ends with an
// exchange that every SM of every GPU takes part in after its last read (sampling.cuh), and a word is written once a
// pass. exchange.cuh has what crosses from one GPU to another.
#pragma once
#include "mma.cuh"
#include "units.cuh"
#include "watchdog.cuh"
#include "words.cuh"

// Where each vector of a layer lies, in words.
namespace mail {
constexpr int QUERIES = 0;
constexpr int KEYS = QUERIES + model::Q_DIM;
constexpr int VALUES = KEYS + model::KV_DIM;
constexpr int HEADS_OUT = VALUES + model::KV_DIM;                       // attention's result, [Q_DIM]
constexpr int AFTER_ATTENTION = HEADS_OUT + model::Q_DIM;               // residual, [LANES][HIDDEN]
constexpr int GATED = AFTER_ATTENTION + model::LANES * model::HIDDEN;   // [FFN]
constexpr int AFTER_MLP = GATED + model::FFN;                           // residual, [STREAMS][HIDDEN]
constexpr int LANES_ATTENTION = AFTER_MLP + model::STREAMS * model::HIDDEN;  // module outputs, for other lanes
constexpr int LANES_MLP = LANES_ATTENTION + (model::TOTAL_LANES > 1 ? model::TOTAL_LANES * model::HIDDEN : 0);
// A model without lanes that is cut over GPUs: each posts to all what its part of a module gives, the first one with the stream before
// it. Of two GPUs whoever reads the stream adds the parts up, and of up to four if it is not longer than it has been timed, so that it is one
// exchange. Else whoever finishes the rows adds them up, and posts the stream within the GPU: more parts are more to look at and to hold in
// registers. Requests that share a launch add up in the second way, to the same bits.
constexpr bool IN_PARTS = model::STREAMS == 1 && model::TOTAL_LANES > 1;
constexpr int MOST_STREAM_PARTS = model::HIDDEN <= 4096 ? 4 : 2;
// Models with packed matrices whose slots are left as soon as they are read add up in the second way, too: SLOTS_LATE in matvec.cuh.
constexpr bool READ_IN_PARTS = IN_PARTS && model::TOTAL_LANES <= MOST_STREAM_PARTS && model::REQUESTS == 1 && !any_by_warps();
constexpr int STREAM_PARTS = READ_IN_PARTS ? model::TOTAL_LANES : 1;
constexpr int STREAM_AFTER_ATTENTION = READ_IN_PARTS ? LANES_ATTENTION : AFTER_ATTENTION;  // [STREAM_PARTS][HIDDEN]
constexpr int STREAM_AFTER_MLP = READ_IN_PARTS ? LANES_MLP : AFTER_MLP;
constexpr int SCORE_PARTS = model::FOLDS_ROUTER ? model::RANKS : 1;
constexpr int SCORES = LANES_MLP + (model::TOTAL_LANES > 1 ? model::TOTAL_LANES * model::HIDDEN : 0);  // of experts, [SCORE_PARTS][EXPERTS]
constexpr int PARTIALS = SCORES + round_up(SCORE_PARTS * model::EXPERTS, 4);
constexpr int PARTIAL_ROW = model::HEAD_DIM + 2;                         // accumulator, maximum, sum; 8 bytes each
constexpr int PARTIAL_ITEM = model::ITEM_QUERIES * PARTIAL_ROW;
constexpr int PART_ITEMS =
    model::KV_HEADS * larger(model::QUERY_GROUPS * model::MAX_SPLITS, model::SHORT_QUERY_GROUPS * model::SHORT_MAX_SPLITS);
constexpr int LAYER = round_up(PARTIALS + PART_ITEMS * PARTIAL_ITEM * 2, 32);
static_assert(KEYS % 4 == 0 && VALUES % 4 == 0 && HEADS_OUT % 4 == 0 && AFTER_ATTENTION % 4 == 0 && GATED % 4 == 0 &&
                  AFTER_MLP % 4 == 0 && LANES_ATTENTION % 4 == 0 && LANES_MLP % 4 == 0 && PARTIALS % 4 == 0,
              "vectors are read in 16-byte words");

// Once a pass, after all layers: what the head of a model with several lanes reads (head_input.cuh).
constexpr bool JOINS_LANES = model::STREAMS > 1 && model::HEAD_KIND != HEAD_VOCAB_PARALLEL;
constexpr size_t HEAD_INPUT = size_t(LAYER) * model::LAYERS;                              // [HIDDEN]
constexpr size_t SQUARES = HEAD_INPUT + (JOINS_LANES ? model::HIDDEN : 0);                // [STREAMS][TILES]
constexpr int TILES = model::HIDDEN / TILE_ROWS;
static_assert(SQUARES + (JOINS_LANES ? model::STREAMS * TILES : 0) == model::MAIL_WORDS, "the host reserves as much");
}  // namespace mail
