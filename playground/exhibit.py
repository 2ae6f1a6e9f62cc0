"""What a shared page says of its lanes: names, figures and facts, ready to be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.sampling import OPTIONS
from playground.models import Generation, Lane, Share

Fact = tuple[str, str]
"""A label and what it says."""
_FINISHES = {"stop": "Finished", "length": "Reached its limit of tokens", "cancelled": "Stopped"}
_BACKEND = {"threads": "Threads", "isa": "Instruction set", "sync": "Threads wait by", "link": "Link"}
"""Of what a backend tells, the facts that a reader can use; debugging switches stay out."""
_PARTS = {"queue": "queue", "tokenizer": "tokenizer", "prefill": "reading the prompt", "launch": "launch"}


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of time; `start` and `width` are percent of the whole that it is part of."""

    name: str
    label: str
    ms: float
    start: float
    width: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in ms by the worker's clock, from the request's creation on; `tok_s` is of the decode alone."""

    tok_s: float
    tokens: int
    prompt_tokens: int
    queue_ms: float
    prefill_ms: float
    tokenize_ms: float
    launch_ms: float
    """Of the time to the first token, what was neither queue, tokenizer nor prefill."""
    ttft_ms: float
    decode_ms: float

    @property
    def total_ms(self) -> float:
        return self.ttft_ms + self.decode_ms

    @property
    def first_token(self) -> list[Part]:
        """Where the time to the first token went, in order."""
        times = {
            "queue": self.queue_ms,
            "tokenizer": self.tokenize_ms,
            "prefill": self.prefill_ms,
            "launch": self.launch_ms,
        }
        whole, parts, start = sum(times.values()) or 1.0, [], 0.0
        for name, ms in times.items():
            width = 100 * ms / whole
            parts.append(Part(name, _PARTS[name], ms, round(start, 2), round(width, 2)))
            start += width
        return parts


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One lane of a shared page. A pacer has no text and no facts: it is a pace, and no engine."""

    name: str
    hardware: str
    pacer: bool
    figures: Figures
    finish: str
    text: str
    pace: tuple[float, ...]
    """tok/s over equal stretches of the decode."""
    stretch_ms: float
    facts: tuple[Fact, ...]


def exhibits(share: Share) -> list[Exhibit]:
    """The lanes of a page that `sharing.shared_page` read."""
    lanes = list(share.lanes.all())
    budget = max(lane.generation.request["max_tokens"] for lane in lanes if lane.generation)
    return [_exhibit(lane, budget) for lane in lanes]


def first_generation(share: Share) -> Generation:
    """The one whose prompt and settings stand for all of them."""
    return next(lane.generation for lane in share.lanes.all() if lane.generation)


def finishing_order(lanes: Sequence[Exhibit]) -> list[int]:
    """The place of each lane by the time that it took, 1 for the first; equal times share a place."""
    return [1 + sum(other.figures.total_ms < lane.figures.total_ms for other in lanes) for lane in lanes]


def prompt_parts(prompt: Mapping[str, Any]) -> list[Fact]:
    """A prompt as labelled texts: the parts of a text, or the messages of a chat."""
    if prompt.get("messages"):
        return [(message["role"].capitalize(), message["content"]) for message in prompt["messages"]]
    if prompt.get("suffix") is None:
        return [("Prompt", prompt["text"])]
    return [("Before the gap", prompt["text"]), ("After the gap", prompt["suffix"])]


def prompt_for_page(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """A prompt as the playground's page takes it up."""
    messages = prompt.get("messages") or ()
    if messages:
        return {"messages": [{"role": one["role"], "content": one["content"]} for one in messages]}
    return {"prompt": prompt["text"], "suffix": prompt.get("suffix") or ""}


def prompt_text(prompt: Mapping[str, Any]) -> str:
    """The words that say most about a prompt: its text, or what was last said to the model."""
    said = [message["content"] for message in prompt.get("messages") or () if message["role"] == "user"]
    return str(said[-1] if said else prompt.get("text") or "")


def settings_of(request: Mapping[str, Any]) -> list[Fact]:
    """How a generation was asked for."""
    sampling = request["sampling"]
    facts = [("Max tokens", f"{request['max_tokens']:,}")]
    facts += [
        (option.label, str(value) if option.whole else f"{value:g}")
        for option in OPTIONS
        if (value := sampling.get(option.name)) is not None
    ]
    facts += [("Stop sequence", repr(text)) for text in request.get("stop", ())]
    return facts


def environment_facts(environment: Mapping[str, Any]) -> list[Fact]:
    """What decides the speed, of all that a worker told; serial numbers and the like stay out."""
    facts: list[tuple[str, object]] = []
    backend = environment.get("backend", {})
    facts.append(("Devices", count_names(backend.get("devices", ()))))
    facts.append(
        ("Parallelism", {"none": ""}.get(backend.get("parallelism", ""), backend.get("parallelism")))
    )
    facts += [(label, backend.get(name)) for name, label in _BACKEND.items()]
    cpu, gpus = environment.get("cpu", {}), environment.get("gpus", [])
    if cpu.get("model"):
        facts.append(("Processor", f"{cpu['model']}, {cpu['cores']} cores in use"))
    if gpus:
        facts.append(("Driver", gpus[0].get("driver")))
    facts.append(("Linux", environment.get("system", {}).get("kernel")))
    facts.append(("Python", environment.get("python", {}).get("version")))
    facts.append(("NumPy", environment.get("numpy", {}).get("version")))
    git = environment.get("git", {})
    facts.append(("Code", git.get("sha", "")[:12] + (" with changes" if git.get("dirty") else "")))
    facts.append(("Weights", environment.get("model", {}).get("digest", "")[:12]))
    return [(label, str(value)) for label, value in facts if value not in (None, "")]


def count_names(names: Sequence[str]) -> str:
    """Device names with how many there are of each: "8 × NVIDIA H200"."""
    return ", ".join(f"{n} × {name}" if n > 1 else name for name, n in Counter(names).items())


def _exhibit(lane: Lane, budget: int) -> Exhibit:
    if lane.generation is None:
        return _pacer(lane.pacer_tok_s or 0.0, budget)
    row = lane.generation
    timings = row.timings
    tokenize_ms = timings.get("tokenize_ms", 0.0)  # rows from before it was measured lack it
    known = timings["queue_ms"] + tokenize_ms + timings["prefill_ms"]
    figures = Figures(
        tok_s=timings["decode_tok_s"],
        tokens=timings["completion_tokens"],
        prompt_tokens=timings["prompt_tokens"],
        queue_ms=timings["queue_ms"],
        prefill_ms=timings["prefill_ms"],
        tokenize_ms=tokenize_ms,
        launch_ms=max(0.0, timings["ttft_ms"] - known),
        ttft_ms=timings["ttft_ms"],
        decode_ms=timings["decode_ms"],
    )
    return Exhibit(
        name=f"{row.model} on {row.backend}",
        hardware=_hardware(row.environment),
        pacer=False,
        figures=figures,
        finish=_FINISHES.get(row.finish_reason, "Ended"),
        text=row.text,
        pace=_rates(row.pace),
        stretch_ms=row.pace.get("stretch_us", 0) / 1000,
        facts=tuple(environment_facts(row.environment)),
    )


def _pacer(tok_s: float, tokens: int) -> Exhibit:
    """It begins at once and keeps its pace to the limit of tokens: what an engine would need at best."""
    gap_ms = 1000 / tok_s
    figures = Figures(tok_s, tokens, 0, 0.0, 0.0, 0.0, 0.0, gap_ms, (tokens - 1) * gap_ms)
    return Exhibit(f"Pacer at {tok_s:g} tok/s", "", True, figures, "A pace, not an engine", "", (), 0.0, ())


def _hardware(environment: Mapping[str, Any]) -> str:
    return count_names(environment.get("backend", {}).get("devices", ()))


def _rates(pace: Mapping[str, Any]) -> tuple[float, ...]:
    """The last stretch is left out: it is not over."""
    counts = pace.get("counts", ())[:-1]
    return tuple(count * 1e6 / pace["stretch_us"] for count in counts)
