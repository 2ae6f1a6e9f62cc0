// Long contexts: the cache's blocks that an SM's warps do not hold at once come through the ring, in the stream of the weights, between
// those of qkv and of attn_out. So memory goes on while one round of blocks is multiplied and the next one's queries are waited for.
#pragma once
#include "split_heads.cuh"

namespace decode_attention {

// Blocks that a warp has in registers while it waits for the queries.
constexpr int TOGETHER = model::BLOCKS_A_WARP;
constexpr int ROUND = WARPS * TOGETHER;  // that an SM's warps hold at once

// Into how many parts a head is split that attends from a position back to `window` positions; nobody's part yet. It is split when its
// blocks are more than an SM's warps hold at once: before that another exchange costs more than it saves. `blocks_a_split` may have fewer
// parts, but two for neighbours, which need no exchange.
DEVICE AttentionItem split_head(int position, int window, int blocks_a_split) {
    if (!blocks_a_split) blocks_a_split = ROUND;
    const int first = window && position + 1 > window ? position + 1 - window : 0;
    const int blocks = ceil_div(position, cache::BLOCK) - first / cache::BLOCK;
    int splits = larger(1, smaller(ceil_div(blocks, blocks_a_split), most_splits(blocks)));
    if (model::HAS_PAIRS && blocks > ROUND && splits == 1) splits = smaller(2, most_splits(blocks));
    using Number = AttentionItem::Number;
    return {-1, 0, Number(splits), Number(blocks), first, 0, 0};
}

// Makes it part `which` of all heads' parts. Blocks of a part lie side by side: one copy brings several.
DEVICE void take_part(AttentionItem& item, int which) {
    using Number = AttentionItem::Number;
    static_assert(cache::BLOCKS < 1 << 15, "numbers of blocks have 16 bits");
    const int splits = item.splits, blocks = item.blocks, split = which % splits, first_block = item.first / cache::BLOCK;
    item.head = Number(which / splits);
    item.split = Number(split);
    item.begin = Number(first_block + split * blocks / splits);
    item.end = Number(first_block + (split + 1) * blocks / splits);
}

// Heads x splits spread evenly over the SMs.
DEVICE AttentionItem item_of(int position, int window, int sm, int blocks_a_split) {
    AttentionItem item = split_head(position, window, blocks_a_split);
    if constexpr (IN_PAIRS) {
        if (item.splits == 2) {  // both parts on neighbours
            constexpr int PAIRS_OF_SMS = model::SMS / 2;
            const int heads = items_of(item.blocks), pair = sm / 2, head = ceil_div(pair * heads, PAIRS_OF_SMS);
            if (head < heads && head * PAIRS_OF_SMS / heads == pair) take_part(item, 2 * head + sm % 2);
            return item;
        }
    }
    const int items = items_of(item.blocks) * item.splits;
    const int mine = ceil_div(sm * items, model::SMS);
    if (mine < items && mine * model::SMS / items == sm) take_part(item, mine);
    return item;
}

// The first round is in registers before the queries are there, the others come through the ring. Of several requests the producer does
// not know who attends where. No warp has two blocks in a slot.
constexpr bool IN_RING = REQUESTS == 1 && SLOT_BYTES >= cache::BLOCK_BYTES;
constexpr int BLOCKS_A_SLOT = larger(1, smaller(WARPS, SLOT_BYTES / cache::BLOCK_BYTES));

// The last position from which no SM has blocks in the ring, whatever it attends to.
DEVICE int last_without_ring(const Params& params) {
    if constexpr (model::ASKS_FOR_ITEMS) return -1;  // of this SM its items tell more, and it is faster: phases.py
    return ROUND * cache::BLOCK * (params.blocks_a_split ? 1 : smaller(Long::SPLITS, Short::SPLITS));
}
// Whether any SM may have blocks in the ring: without a division, as the producer asks it in each layer.
DEVICE bool may_use_ring(const Params& params, int position, int window) {
    return (window ? smaller(position, window + 2 * cache::BLOCK) : position) > last_without_ring(params);
}
// Whether the producer asks who attends to what in the pass of decode at `position`: from some position on in all of them, whatever a
// layer's window. Such a pass begins, and ends for the producer, with a phase of a barrier. Neither side is more than one ahead: the
// producer waits for each pass to begin, and the consumers for it to have read their items before they plan others.
DEVICE bool in_ring(const Params& params, int position) { return IN_RING && may_use_ring(params, position, 0); }
// The parity of that phase: the first such pass of a launch has the first one.
DEVICE u32 phase_parity(const Params& params, int position) {
    return u32(position - larger(params.prefill_end, last_without_ring(params) + 1)) & 1u;
}
// Before any thread uses them. All that plan items arrive, and all that read them.
DEVICE void init_passes(Shared& shared) {
    barrier_init(&shared.ring_begun, CONSUMERS);
    barrier_init(&shared.items_read, PRODUCERS);
}

// A warp's walk over the slots that hold a part's blocks: over those too in which it has none.
struct RingWalk {
    Core& core;
    int next;  // the first block of the slot that comes next

    DEVICE void pass_slot() {
        core.wait_full();
        core.free_slot();
        next += BLOCKS_A_SLOT;
    }
    // The warp's next round: `index`, index + WARPS, .. below `end`, as in KvBlocks::load.
    DEVICE void take(KvBlock (&blocks)[TOGETHER], int index, int end) {
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
            const int at = index + k * WARPS;
            if (at >= end) break;
            while (next + BLOCKS_A_SLOT <= at) pass_slot();
            core.wait_full();
            const u8* block = core.shared.ring[core.cursor.slot] + (at - next) * cache::BLOCK_BYTES;
            core.free_slot_after(blocks[k].take(block, core.lane));
            next += BLOCKS_A_SLOT;
        }
    }
    DEVICE void leave(int end) {
        while (next < end) pass_slot();
    }
};

}  // namespace decode_attention
