"""Real workers in processes of their own, around a real model that is small but never short of words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from engine.models.checkpoints.write import write_checkpoint
from engine.models.config import ModelConfig
from engine.models.prompt import Prompt
from engine.models.weights import RandomWeights
from engine.sampling import SamplingParams
from engine.serving.client import Client
from engine.serving.messages import Done, Frame, GenerateRequest, Started, Tokens
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[3]
_SCRIPT = """
import json, logging, sys
from engine.serving.worker import Worker
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
Worker(**json.loads(sys.argv[1])).run()
"""


def write_chatterbox(folder: Path, *, special: Sequence[str] = (), chat_template: str = "") -> Path:
    """A random Llama over bytes with a long context: some 0.5 ms a token, broken UTF-8, no end token.

    `special` tokens come on top, as a fill-in-the-middle model has them.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in special])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    config = ModelConfig(folder.name, 32, 2, 2, 1, 16, 64, len(alphabet) + len(special), 4096)
    write_checkpoint(RandomWeights(config, 7), folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    if chat_template:
        settings = json.dumps({"chat_template": chat_template})
        (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    return folder


@dataclass
class WorkerProcess:
    """A worker that can be killed, frozen and asked to end. Ends with the test at the latest."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self, timeout: float = PATIENCE_S) -> int:
        """Asks it to end and returns its exit status."""
        self.process.terminate()
        return self.process.wait(timeout)


class Workers:
    """Starts workers at one Redis."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self._url = redis_url
        self._folder = folder
        self._started: list[WorkerProcess] = []

    def start(self, name: str, model: str | Path, backend: str = "numpy", **more: Any) -> WorkerProcess:
        """Starts a worker and waits until it is ready."""
        settings = {"redis_url": self._url, "model": str(model), "backend": backend, "name": name, **more}
        log = self._folder / f"{name}-{len(self._started)}.log"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", _SCRIPT, json.dumps(settings)],
                cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=environment,
            )  # fmt: skip
        worker = WorkerProcess(name, process, log)
        self._started.append(worker)
        with Client(self._url) as client:
            wait_until(
                lambda: (
                    process.poll() is not None
                    or any(w.name == name and w.state == "idle" for w in client.workers())
                )
            )
        assert process.poll() is None, log.read_text()
        return worker

    def end(self) -> None:
        for worker in self._started:
            if worker.process.poll() is None:
                worker.thaw()
                worker.kill()


@dataclass
class Story:
    """A generation as a reader saw it."""

    frames: list[Frame] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """Every token; fails if one is missing or comes twice."""
        ids: list[int] = []
        for frame in self.frames:
            if isinstance(frame, Tokens):
                assert frame.seq == len(ids), f"a frame at token {frame.seq}, but {len(ids)} tokens so far"
                ids.extend(frame.ids)
        return ids

    @property
    def text(self) -> str:
        last = self.frames[-1]
        parts = [frame.text for frame in self.frames if isinstance(frame, Tokens)]
        return "".join(parts) + (last.text if isinstance(last, Done) else "")

    @property
    def workers(self) -> list[str]:
        return [frame.worker for frame in self.frames if isinstance(frame, Started)]

    @property
    def end(self) -> Frame:
        return self.frames[-1]


def read_story(
    client: Client, request_id: str, at: Mapping[int, Callable[[], object]] | None = None
) -> Story:
    """Reads a generation to its end; `at[n]` is called once n tokens have been seen."""
    story, seen, due = Story(), 0, sorted((at or {}).items(), reverse=True)
    for _, frame in client.frames(request_id):
        story.frames.append(frame)
        if isinstance(frame, Tokens):
            seen += len(frame.ids)
        while due and seen >= due[-1][0]:
            due.pop()[1]()
    return story


def chat(request_id: str, *, tokens: int = 1500, seed: int = 5, **more: Any) -> GenerateRequest:
    """A sampled generation: its tokens depend on the seed and on every token before."""
    return GenerateRequest(
        request_id,
        Prompt("def fibonacci(n):"),
        max_tokens=tokens,
        sampling=SamplingParams(temperature=1.0, top_p=0.95, repetition_penalty=1.1, seed=seed),
        **more,
    )


@contextmanager
def running(redis_url: str, folder: Path) -> Iterator[Workers]:
    workers = Workers(redis_url, folder)
    try:
        yield workers
    finally:
        workers.end()
