"""`check`: what this machine can run, tried out, in plain words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.backends import AUTO, availability, open_backend, storages
from engine.backends.base import Job, Topology
from engine.backends.running import complete
from engine.cli.options import Commands, add_model_flags, command, devices_of, options_of
from engine.cli.terminal import ProgressBar, print_json, table
from engine.errors import BackendUnavailable, EngineError
from engine.kv_cache import CacheFormat, kept_format
from engine.measuring.roofline import bytes_per_token, ceiling
from engine.measuring.verification import verify
from engine.models.catalogue import Model, open_model
from engine.models.presets import preset_names
from engine.models.probe import probe
from engine.progress import Progress

_PROBE_TOKENS = 8


@dataclass(frozen=True)
class Finding:
    """One backend: whether it ran a tiny model correctly here, why (not), and GB/s that each device reads."""

    backend: str
    usable: bool
    why: str
    devices: tuple[str, ...] = ()
    read_gbs: tuple[float, ...] = ()
    prefix_cache_mib: int = 0
    """Memory for the keys and values of recent sequences."""
    cache: CacheFormat = CacheFormat.FP16
    """How it keeps them."""


def add(commands: Commands) -> None:
    parser = command(commands, "check", "try out what this machine can run, and say what is missing", run)
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    devices = devices_of(args)
    with ProgressBar("check") as bar:
        findings = []
        asked = [a for a in availability() if args.backend in (AUTO, a[0])]
        for i, (name, usable, why) in enumerate(asked):
            bar.label = name
            bar(Progress(i, len(asked), "backends", "trying"))
            ours = devices if args.backend == name else 1
            findings.append(
                try_backend(name, ours, options_of(args), why, bar) if usable else Finding(name, False, why)
            )
    model, model_here, model_word = _model(args.model)
    ok = any(f.usable for f in findings) and model_here
    if args.json:
        print_json(
            {
                "ok": ok,
                "backends": [asdict(f) for f in findings],
                "model": {"name": args.model, "usable": model_here, "why": model_word},
            }
        )
        return 0 if ok else 2
    print(table(["backend", "runs here", "reads GB/s", "keeps MiB", "why"], [_row(f) for f in findings]))
    print()
    print(f"model {args.model}: {model_word}")
    for finding in findings:
        if model is not None and finding.usable:
            print(_ceiling(model, finding))
    return 0 if ok else 2


def try_backend(name: str, devices: int, options: dict[str, Any], there: str, bar: ProgressBar) -> Finding:
    """Runs a small random model, compares its tokens with the reference, and measures the memory.

    `there` is what the backend says of the machine.
    """
    model = probe()

    try:
        backend = open_backend(name, model, devices=devices, options=options, progress=bar)
    except EngineError as error:
        return Finding(name, False, str(error))
    try:
        prompt = tuple(range(1, 9))
        tokens = [token.id for token in complete(backend, Job(prompt, _PROBE_TOKENS))]
        names = tuple(device.name for device in backend.topology.devices)
        found = verify(backend, model, prompt, tokens)
        if not found.passed:
            return Finding(
                name, False, f"it runs, but its tokens or logits differ from those of: {found.against}", names
            )
        why = f"{there}; a small model's tokens are right{_spread(backend.topology)}"
        reads = tuple(round(gbs, 1) for gbs in backend.measure_bandwidth())
        budget = backend.prefix_cache.budget_bytes >> 20
        return Finding(name, True, why, names, reads, budget, kept_format(backend.facts))
    except EngineError as error:
        return Finding(name, False, str(error))
    finally:
        backend.close()


def _spread(topology: Topology) -> str:
    """How the small model lay on several devices."""
    count = len(topology.devices)
    if count == 1:
        return ""
    link = f", {topology.link}" if topology.link else ""
    return f" on {count} devices, {topology.lanes // count} of its {topology.lanes} lanes on each{link}"


def _model(name: str) -> tuple[Model | None, bool, str]:
    """One of its shape if that is known, whether it can be run, and a sentence."""
    try:
        model = open_model(name)
    except EngineError as error:
        shaped = open_model(name, seed=0) if name in preset_names() else None
        return shaped, False, str(error)
    words = "no tokenizer (random weights)" if model.tokenizer is None else "weights and tokenizer are here"
    return model, True, f"{words}, {model.config.parameters / 1e6:,.1f} M parameters"


def _row(finding: Finding) -> list[str]:
    return [
        finding.backend,
        "yes" if finding.usable else "no",
        _numbers(finding.read_gbs) or "-",
        f"{finding.prefix_cache_mib:,} ({finding.cache})" if finding.prefix_cache_mib else "-",
        finding.why,
    ]


def _ceiling(model: Model, finding: Finding) -> str:
    """What the backend would read a token: it may keep matrices otherwise than they ship."""
    try:
        storage = storages(finding.backend, model)
    except BackendUnavailable as error:
        return f"  on {finding.backend}: {error}"
    context = min(256, model.config.context // 2)
    read = bytes_per_token(model.config, context, storage, kv_bytes=finding.cache.bytes_each)
    gbs = sum(finding.read_gbs)
    return (
        f"  on {finding.backend}: {read.total / 1e6:,.0f} MB a token, so at most"
        f" {ceiling(read.total, gbs):,.0f} tok/s at {gbs:,.1f} GB/s"
    )


def _numbers(values: Sequence[float]) -> str:
    return " + ".join(f"{value:,.1f}" for value in values)
