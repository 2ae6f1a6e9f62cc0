// Of several requests in a launch: for which one a thread works, which of them run, and how packed weights are read from the ring.
#pragma once
#include "quads.cuh"

namespace several {

// A core that works for another request: what all threads of a block do for one request after the other.
DEVICE Core for_request(const Core& core, int request) {
    const Seat& seat = core.shared.seats[request];
    Core other{core.own.launch->requests[request], core.shared, core.place, core.lane, core.warp, core.model_lane};
    other.own.launch = core.own.launch;
    other.own.request = request;
    other.own.mail = other.params.mail;
    other.staged = core.staged;
    other.position = other.place.position = seat.position;
    other.serial = seat.serial;
    other.epoch = seat.serial & 1u;
    return other;
}

// Packed weights are read where they lie in a slot, which is left once all that was read has arrived.
template <int STORAGE, bool APART>
struct SlotInPlace {
    template <int T>
    DEVICE static constexpr int chunks_a_slot() {
        return packed::SlotMap<STORAGE, T, APART>::CHUNKS;
    }

    template <int T>
    DEVICE void load(Core& core, int, int) {
        core.wait_full();
        loaded_ = 0;
    }
    DEVICE void leave_slot(Core& core) { core.free_slot_after(loaded_); }

protected:
    u32 loaded_;  // depends on all that was loaded from the slot
};

// Of a request's mailbox.
DEVICE size_t mail_at(int layer, int what) { return size_t(layer) * mail::LAYER + what; }

DEVICE bool runs(const Shared& shared, int request) { return shared.seats[request].finish == FINISH_RUNNING; }

// Calls `visit` with a core for the request. What that one notes in its profile is the step's.
template <class Visit>
DEVICE void visit_request(Core& core, int request, const Visit& visit) {
    Core other = for_request(core, request);
    if constexpr (model::PROFILE) other.profile = core.profile;
    visit(other);
    if constexpr (model::PROFILE) core.profile = other.profile;
}

template <class Visit>
DEVICE void for_each_running(Core& core, const Visit& visit) {
#pragma unroll 1
    for (int r = 0; r < REQUESTS; ++r) {
        if (runs(core.shared, r)) visit_request(core, r, visit);
    }
}

// The weights are the same for all requests; the first one's address is known when the kernel is compiled.
DEVICE const u16* norm_of(const Core& core, int index) {
    return core.own.launch->requests[0].norms + size_t(index) * model::HIDDEN;
}

}  // namespace several
