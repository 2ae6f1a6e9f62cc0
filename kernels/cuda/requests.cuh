// Of several requests in a launch: for which one a thread works, and which of them run.
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

DEVICE bool runs(const Shared& shared, int request) { return shared.seats[request].finish == FINISH_RUNNING; }

}  // namespace several
