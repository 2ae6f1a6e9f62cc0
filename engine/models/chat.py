"""Chat templates: messages to the text that a model was trained on.

A template comes with a checkpoint, so it is a stranger's program: it runs in a sandbox (`chat_sandbox`) where
it reaches nothing outside, and has its limits of time, of what it writes and of what it holds.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.exceptions

from engine.errors import RequestError, TokenizerError
from engine.models.chat_sandbox import MAX_CHARACTERS, Sandbox, check_size


class ChatTemplate:
    """One compiled template, in the dialect that Hugging Face checkpoints use."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Raises TokenizerError if `source` is not a template."""
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._sandbox = _environment()
        try:
            self._template = self._sandbox.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TokenizerError(f"the model's chat template does not parse: {error}") from error

    def render(self, messages: Sequence[Mapping[str, str]], *, generation_prompt: bool = True) -> str:
        """The text for `messages`, ending where the assistant should start or, after a last message of its
        own, where that message ends: the model goes on with it.

        Raises RequestError if the template refuses the messages (a role it does not know, a wrong
        order) or rewrites the message that shall be continued, TokenizerError if the template itself fails
        or writes too much.
        """
        last = messages[-1]
        if not generation_prompt or last["role"] != "assistant":
            return self._write(messages, generation_prompt)
        if not last["content"]:
            return self._write(messages[:-1], generation_prompt)
        return _up_to(last["content"], self._write(messages, False))

    def _write(self, messages: Sequence[Mapping[str, str]], generation_prompt: bool) -> str:
        parts: list[str] = []
        length = 0
        self._sandbox.begin()
        try:
            for part in self._template.generate(
                messages=[dict(m) for m in messages],
                add_generation_prompt=generation_prompt,
                tools=None,  # defined, as in transformers: templates ask whether they are none
                documents=None,
                **self._tokens,
            ):
                length += len(part)
                if length > MAX_CHARACTERS:
                    raise TokenizerError(f"the chat template wrote over {MAX_CHARACTERS} characters")
                parts.append(part)
        except _Refused as error:
            raise RequestError(f"the model's chat template refuses these messages: {error}") from error
        except (
            jinja2.TemplateError,
            ArithmeticError,
            TypeError,
            ValueError,
            LookupError,
            RecursionError,
            MemoryError,
        ) as error:
            raise TokenizerError(f"the model's chat template failed: {error}") from error
        return "".join(parts)


def _up_to(content: str, text: str) -> str:
    """`text` up to the end of the last `content` in it. Templates may cut blanks off a message's ends."""
    for said in (content, content.strip()):
        at = text.rfind(said)
        if said and at >= 0:
            return text[:at] + said
    raise RequestError("the model's chat template rewrites the last message, so it cannot be continued")


class _Refused(Exception):
    """The template called raise_exception."""


def _environment() -> Sandbox:
    environment = Sandbox()
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML, and models have never seen that."""
    if indent is not None and not 0 <= indent <= 16:
        raise jinja2.exceptions.SecurityError(f"tojson's indent is {indent}; allowed are 0 to 16")
    check_size(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
