"""NCCL's all-reduce, timed; what tools.bench_exchange.nccl starts:

    python -m tools.bench_exchange.nccl_rank MEETING-FILE GPUS,... REPEATS SIZE...

One process a GPU, as NCCL is used; with several numbers of GPUs, each time the first so many that are visible
take part. Each size is captured into a CUDA graph of many all-reduces one after the other, so that no launch
and no host stands between them; the last line of the output is JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

_IN_A_GRAPH = 100


def main(arguments: list[str]) -> int:
    meeting = Path(arguments[0]).absolute().as_uri()
    teams = [int(count) for count in arguments[1].split(",")]
    repeats, *sizes = map(int, arguments[2:])
    devices = max(teams)
    try:
        import torch
        import torch.multiprocessing as multiprocessing
    except ImportError as missing:
        return _refuse(f"PyTorch, through which NCCL is called, is not installed ({missing})")
    if torch.cuda.device_count() < devices:
        return _refuse(f"{devices} GPUs were asked for; there are {torch.cuda.device_count()}")
    multiprocessing.spawn(_rank, (meeting, teams, repeats, sizes), nprocs=devices)  # type: ignore[attr-defined,no-untyped-call]
    return 0


def _refuse(why: str) -> int:
    sys.stderr.write(why + "\n")
    return 1


def _rank(rank: int, meeting: str, teams: list[int], repeats: int, sizes: list[int]) -> None:
    import torch
    import torch.distributed as distributed

    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=meeting, rank=rank, world_size=max(teams))
    times = []
    for team in teams:
        group = distributed.new_group(list(range(team)))  # every process takes part in making it
        if rank < team:
            times += [(team, size, _time(torch, distributed, group, size, repeats)) for size in sizes]
    if rank == 0:
        version = "NCCL " + ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        sys.stdout.write(json.dumps({"version": version, "us": times}) + "\n")
        sys.stdout.flush()
    distributed.destroy_process_group()


def _time(torch: Any, distributed: Any, group: Any, size: int, repeats: int) -> float:
    """Microseconds of one all-reduce of `size` FP32, the median over replays of the graph."""
    values = torch.ones(size, dtype=torch.float32, device="cuda")
    for _ in range(3):
        distributed.all_reduce(values, group=group)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_IN_A_GRAPH):
            distributed.all_reduce(values, group=group)
    samples = []
    for _ in range(repeats + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        distributed.barrier(group=group)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / _IN_A_GRAPH)
    return float(median(samples[1:]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
