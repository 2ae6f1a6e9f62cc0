"""Prompts that the operator pins: read once when a model is opened, and kept for everybody's prompts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.backends.base import Job
from engine.backends.prefix_cache import PINNED
from engine.backends.running import complete
from engine.errors import ConfigError, RequestError
from engine.models.prompt import ChatMessage, Prompt
from engine.serving.engines import Engine
from engine.serving.wire import read_strictly

log = logging.getLogger(__name__)
_MESSAGES = msgspec.json.Decoder(tuple[ChatMessage, ...])


def pinned_prompt(path: Path) -> Prompt:
    """What a file pins: its text, or, of a .json file, the chat messages in it. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return Prompt(text)
        return Prompt(messages=read_strictly(text, _MESSAGES))
    except (OSError, ValueError, RequestError) as error:
        raise ConfigError(
            f"{path} cannot be pinned ({error}); it must be a text, or a .json file with a list of chat"
            ' messages such as {"role": "system", "content": "..."}'
        ) from error


def pin(engine: Engine, prompts: Sequence[Prompt]) -> None:
    """Reads `prompts`, so that they are kept; one for which the model or its memory has no place is not."""
    for number, prompt in enumerate(prompts, 1):
        before = engine.backend.prefix_cache.sequences
        try:
            if engine.model.tokenizer is None:
                raise RequestError("the model has no tokenizer")
            tokens = tuple(engine.model.tokenizer.encode_prompt(prompt))
            complete(engine.backend, Job(tokens, max_tokens=1, cache_salt=PINNED))
        except RequestError as error:
            log.warning("prompt %d is not pinned: %s", number, error)
            continue
        if engine.backend.prefix_cache.sequences > before:
            log.info("pinned prompt %d, %d tokens", number, len(tokens))
        else:
            why = "another one begins with it, or there is no room: raise prefix_cache_mib"
            log.warning("prompt %d of %d tokens is not pinned: %s", number, len(tokens), why)
