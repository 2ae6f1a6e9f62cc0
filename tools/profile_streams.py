"""Where the microseconds of a pass go with several streams in one launch, on GPUs.

    python -m tools.profile_streams [--model random:smollm2-135m] [--streams 1 2 4 8] [--devices 1]

Opens the backend with the profile compiled in, runs each number of streams twice, of which the first run
warms up, and prints for each phase what an SM waits for its input, what it works, and the part of that in
which weights were not there: means over SMs and passes. One stream runs alone, by the kernel for one. A
profiled pass is slower than others, so its sums are no speeds; what a phase has more with more streams is
what the table is for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from engine.backends import open_backend
from engine.backends.base import Job
from engine.backends.cuda.backend import CudaBackend
from engine.backends.cuda.profile import LaunchProfile
from engine.backends.running import drain
from engine.cli.terminal import table
from engine.errors import EngineError
from engine.measuring.point import Point, prompts_of
from engine.measuring.runs import run_together
from engine.models.catalogue import open_model
from engine.sampling import PLAYGROUND
from engine.settings import MOST_ROWS


def main() -> int:
    parser = argparse.ArgumentParser(description="Phases of a pass with several streams in one launch.")
    parser.add_argument("--model", default="random:smollm2-135m", metavar="NAME|PATH")
    parser.add_argument(
        "--streams", type=int, nargs="+", default=[1, 2, 4, 8], choices=range(1, MOST_ROWS + 1)
    )
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    try:
        model = open_model(args.model)
        options = {"rows": max(2, *args.streams), "profile": True}
        backend = cast("CudaBackend", open_backend("cuda", model, devices=args.devices, options=options))
        try:
            point = Point(args.context, args.tokens, 1, PLAYGROUND, streams=max(args.streams))
            prompts = prompts_of(model, point)
            found = {count: profile(backend, point, prompts[:count]) for count in args.streams}
        finally:
            backend.close()
    except EngineError as error:
        print(f"profile_streams: {error}", file=sys.stderr)
        return 2
    print(
        f"{model.config.name}, context {args.context}, {args.tokens} tokens, us a pass: wait, work (starved)"
    )
    print(report(found))
    return 0


def profile(backend: CudaBackend, point: Point, prompts: Sequence[tuple[int, ...]]) -> LaunchProfile:
    """Of the second of two runs. Raises SystemExit if not all streams shared its last launch."""
    found: LaunchProfile | None = None
    jobs = [Job(prompt, point.room, replace(PLAYGROUND, seed=i)) for i, prompt in enumerate(prompts)]
    for _ in range(2):
        if len(jobs) == 1:
            found = profile_alone(backend, replace(jobs[0], max_tokens=point.tokens, profile=True))
        else:
            run_together(backend, jobs, point.tokens, lambda _: None)
            found = backend.rows_profile
    if found is None or found.requests != len(jobs):
        sys.exit(f"profile_streams: the last launch was not one of {len(jobs)} streams")
    return found


def profile_alone(backend: CudaBackend, job: Job) -> LaunchProfile:
    launch = backend.launch(job)
    try:
        drain(launch)
        phases = launch.outcome.phases_us if launch.outcome else {}
        return LaunchProfile(1, job.max_tokens, phases, getattr(launch, "starved_us", {}))
    finally:
        launch.close()


def report(found: Mapping[int, LaunchProfile]) -> str:
    """A row a phase, a column a number of streams; then sums. In brackets the part of work that starved."""
    phases = [name for name in next(iter(found.values())).phases_us if name != "embed"]
    rows = [[name, *(_cell(profile, [name]) for profile in found.values())] for name in phases]
    rows.append(["all", *(_cell(profile, phases) for profile in found.values())])
    return table(["phase", *(f"{count} streams" if count > 1 else "alone" for count in found)], rows)


def _cell(profile: LaunchProfile, phases: Sequence[str]) -> str:
    times = [profile.phases_us[name] for name in phases]
    wait, work = sum(t.wait_local + t.wait_peer for t in times), sum(t.work for t in times)
    starved = sum(profile.starved_us.get(name, 0.0) for name in phases)
    return f"{wait:.1f}, {work:.1f} ({starved:.1f})"


if __name__ == "__main__":
    sys.exit(main())
