"""One tree's engine in a process of its own, which does what its standard input says, a JSON line each.

It runs in the trees of many commits, so it uses only what they have had for long, and says what is missing.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

WAYS = {
    "open_model": "engine.models.catalogue",
    "open_backend": "engine.backends",
    "Job": "engine.backends.base",
    "complete": "engine.backends.running",
}
"""By name the module in which it is found."""


class Missing(Exception):
    """The tree lacks what it is driven by."""


class Engine:
    """A backend of the tree, and what it is asked for, by name."""

    def __init__(self) -> None:
        self._way = {name: _find(module, name) for name, module in WAYS.items()}
        self._backend: Any = None

    def obey(self, do: str, **what: Any) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self, do)(**what)
        return found

    def open(
        self, model: str, seed: int | None, backend: str, devices: int, options: dict[str, Any]
    ) -> dict[str, Any]:
        seeded = {} if seed is None else {"seed": seed}
        opened = self._way["open_model"](model, **seeded)
        self._backend = self._way["open_backend"](backend, opened, devices=devices, options=options)
        config = self._backend.config
        return {"vocab": config.vocab, "context": config.context, "backend": self._backend.name}

    def decode(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """One launch: its tokens, and tokens a second of decode alone, by the launch's own clock."""
        job = self._way["Job"](tokens=tuple(prompt), max_tokens=tokens)
        made = self._way["complete"](self._backend, job)
        seconds = (made[-1].t_ns - made[0].t_ns) / 1e9
        return {"ids": [token.id for token in made], "tok_s": (len(made) - 1) / seconds}

    def warm_up(self, prompt: list[int], tokens: int, seconds: float) -> dict[str, Any]:
        """Whole launches until so much time has passed, one at the least."""
        end = time.monotonic() + seconds
        self.decode(prompt, tokens)
        while time.monotonic() < end:
            self.decode(prompt, tokens)
        return {}

    def close(self) -> dict[str, Any]:
        if self._backend is not None:
            self._backend.close()
            self._backend = None
        return {}


def _find(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Missing(f"it has no {module}.{name}, which this comparison needs ({error})") from error


def main() -> int:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a tree prints is no reply

    def reply(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=replies, flush=True)

    try:
        engine = Engine()
        reply({})
        for line in sys.stdin:
            reply(engine.obey(**json.loads(line)))
        engine.close()
    except Missing as error:
        reply({"error": str(error)})
        return 1
    except Exception as error:  # an old tree may raise anything; whoever compares is told
        reply({"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
