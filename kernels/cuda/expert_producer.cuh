// The part of a producer's walk that leads through experts.
//
// Nothing of them can be asked for before the router has spoken.
#pragma once
#include "expert_prefill.cuh"

template <bool ANY>
struct ExpertWalk {
    template <class Producer>
    DEVICE void meet(Producer&, int) {}
    template <class Producer>
    DEVICE void meet_groups(Producer&, int) {}
};

template <>
struct ExpertWalk<true> {
    u32 turn = 0;  // parity of how often the router has spoken

    template <class Producer>
    DEVICE void meet(Producer& producer, int layer) {
        if (producer.ended) return;
        const bool meets = experts::ONCE || producer.shared.groups[GATE_UP].count || producer.shared.groups[DOWN].count;
        if (!meets) return;  // then the router tells nobody
        producer.place.phase = GATE_UP;
        const u8* region = all(producer);
        producer.await(&producer.shared.routing.known, turn, WAIT_ROUTE);
        turn ^= 1u;
        matrices<GATE_UP>(producer, region, layer);
        matrices<DOWN>(producer, region, layer);
        if constexpr (REQUESTS == 1 && experts::FOLDED) {
            if (!producer.ended) barrier_arrive(&producer.shared.routing.taken);  // else the consumers have left, and nobody waits for it
        }
    }

    // Prefill: the experts of all tokens of a chunk.
    template <class Producer>
    DEVICE void meet_groups(Producer& producer, int layer) {
        if (producer.ended) return;
        const u8* region = all(producer);
        producer.await(&producer.shared.routing.grouped, turn, WAIT_ROUTE);
        turn ^= 1u;
        expert_prefill::produce<GATE_UP>(producer, region, layer);
        expert_prefill::produce<DOWN>(producer, region, layer);
        barrier_arrive(&producer.shared.routing.copied);
    }

private:
    template <class Producer>
    DEVICE static const u8* all(const Producer& producer) {
        return producer.params.tape + producer.params.tape_offset[model::SMS];
    }
    // Of several requests each expert once, or the share of each request, one after the other.
    template <int WHICH, class Producer>
    DEVICE void matrices(Producer& producer, const u8* region, int layer) {
        if constexpr (REQUESTS == 1) {
            matrix<WHICH>(producer, region, layer, producer.shared.routing.met.chosen);
        } else if constexpr (WHICH == GATE_UP && experts::ONCE) {
            const experts::Distinct& distinct = producer.shared.routes.distinct;
            share<WHICH, experts::TILES_A_GROUP>(producer, region, layer, distinct.experts, distinct.groups, distinct.share.first);
        } else {
#pragma unroll 1
            for (int r = 0; r < REQUESTS; ++r) {
                if (producer.shared.seats[r].finish != FINISH_RUNNING) continue;
                matrix<WHICH>(producer, region, layer, producer.shared.routes.met(producer.shared.routing, r).chosen);
            }
        }
    }
    template <int WHICH, class Producer>
    DEVICE void matrix(Producer& producer, const u8* region, int layer, const int* chosen) {
        share<WHICH>(producer, region, layer, chosen, producer.shared.groups[WHICH], producer.shared.shares[WHICH].first);
    }
    // Tiles lie in a slot as those of a group of STRIDE tiles do, or else of their own group.
    template <int WHICH, int STRIDE = 0, class Producer>
    DEVICE void share(Producer& producer, const u8* region, int layer, const int* chosen, const Groups groups, int first_tile) {
        constexpr int CHUNKS = phase_chunks(WHICH), STORAGE = experts::STORAGE<WHICH>;
        producer.place.phase = WHICH;
        for (int g = 0; g < groups.count && !producer.ended; ++g) {
            const int tiles = groups.size(g);
            const int step = ONE_WITH_EXPERTS ? chunks_a_slot_of<WHICH, STORAGE, true>(tiles) : chunks_a_slot(STRIDE ? STRIDE : tiles, STORAGE, true);
            const int tile = first_tile + groups.first(g);
            for (int chunk = 0; chunk < CHUNKS && !producer.ended; chunk += step) {
                const int chunks = smaller(step, CHUNKS - chunk);
                const experts::SlotCopies<WHICH> copies{region, chosen, layer, tile, tiles, chunk, chunks, step};
                producer.fill_slot(u32(tiles * experts::bytes<WHICH>(chunks)), [&] {
                    const int t = int(threadIdx.x) - CONSUMERS;
                    const auto copy = [&](int at, const u8* from, int bytes) { producer.copy_part(u32(at), from, u32(bytes)); };
                    if (t < tiles) copies.of_tile(t, copy);
                });
            }
        }
    }
};
