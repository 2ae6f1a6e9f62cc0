// What all products of warpgroups have in common, whatever they multiply: how they begin and end, and how they find an operand.
#pragma once
#include "stream.cuh"

// What a product reads lies in shared memory, and its sums in registers that nothing else may touch until the products have ended.
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// A word that all lanes have, as one that the compiler knows to be the same: it then stays in registers of the warp, where `wgmma` wants its
// descriptors, with all that is added to it. From the lanes' registers each product's would go there anew, and be waited for.
DEVICE u32 uniform(u32 word) { return __reduce_or_sync(ALL_LANES, word); }

// The lower word of an operand's descriptor: its address in shared memory, and how many bytes its pieces of sixteen lie apart. Nothing in
// them is swapped about. It counts on in 16 bytes. (The upper word is how far eight rows, or columns, lie apart.)
DEVICE u32 descriptor_word(u32 address, u32 next_piece) { return (address & 0x3ffff) >> 4 | next_piece >> 4 << 16; }
