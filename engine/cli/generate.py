"""`generate`: one prompt, its continuation as it comes, and how fast it came."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from engine.backends.base import Backend, Job, Outcome, Token
from engine.backends.running import FirstTokenTimer, follow
from engine.cli.options import (
    Commands,
    UsageError,
    add_model_flags,
    add_sampling_flags,
    backend_of,
    command,
    model_of,
    read_text,
    sampling,
    stop_ids,
)
from engine.cli.terminal import print_json
from engine.models.catalogue import Model
from engine.models.prompt import ChatMessage, Prompt
from engine.models.text_stream import TextStream
from engine.sampling import SamplingParams
from engine.timings import Timings, decode_speed

_POLL_S = 0.1


def add(commands: Commands) -> None:
    parser = command(
        commands, "generate", "continue a prompt; the text goes to stdout, the speed to stderr", run
    )
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", metavar="TEXT", help="the prompt")
    given.add_argument("--prompt-file", metavar="FILE", help="the prompt from a file; - is standard input")
    given.add_argument(
        "--prompt-ids", metavar="IDS", help="token ids, such as '1 5 9': for models that have no tokenizer"
    )
    parser.add_argument("--suffix", metavar="TEXT", help="what comes after the gap: fill in the middle")
    parser.add_argument(
        "--chat", action="store_true", help="the prompt is a user's message: use the chat template"
    )
    parser.add_argument("--system", metavar="TEXT", help="with --chat: the system message")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on after an end-of-text token")
    parser.add_argument("--echo", action="store_true", help="print the prompt before its continuation")
    add_sampling_flags(parser)
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    model = model_of(args)
    prompt = _prompt(args, model)
    tokens = model.tokenizer.encode_prompt(prompt) if model.tokenizer and not prompt.tokens else prompt.tokens
    params = sampling(args)
    stops: frozenset[int] = frozenset() if args.ignore_eos else stop_ids(model)
    job = Job(tuple(tokens), args.max_tokens, params, stop_ids=stops)
    with backend_of(args, model) as backend:
        if args.echo and not args.json and args.prompt_ids is None:
            sys.stdout.write(_text(args))
        answer = _Answer(model, prompt, args.stop, None if args.json else _write)
        reason, timings = _generate(backend, job, answer)
        if args.json:
            print_json(
                {
                    "model": model.config.name,
                    "backend": backend.name,
                    "text": answer.text,
                    "tokens": answer.ids,
                    "finish_reason": reason,
                    "sampling": asdict(params),
                    "timings": asdict(timings),
                }
            )
        else:
            print()
            print(_summary(backend, params, reason, timings), file=sys.stderr)
    return 0


def _text(args: argparse.Namespace) -> str:
    return args.prompt if args.prompt is not None else read_text(args.prompt_file)


def _prompt(args: argparse.Namespace, model: Model) -> Prompt:
    if args.prompt_ids is not None:
        try:
            return Prompt(tokens=tuple(map(int, args.prompt_ids.replace(",", " ").split())))
        except ValueError as error:
            raise UsageError(
                f"--prompt-ids is {args.prompt_ids!r}; it takes numbers, such as '1 5 9'"
            ) from error
    if model.tokenizer is None:
        raise UsageError(f"{args.model} has no tokenizer: give token ids with --prompt-ids '1 5 9'")
    if args.chat:
        if args.suffix is not None:
            raise UsageError("--suffix fills a gap in a text; it does not go with --chat")
        system = (ChatMessage("system", args.system),) if args.system else ()
        return Prompt(messages=(*system, ChatMessage("user", _text(args))))
    if args.system:
        raise UsageError("--system is a chat message; it goes with --chat")
    return Prompt(text=_text(args), suffix=args.suffix)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class _Answer:
    """The tokens so far, as text where there is a tokenizer; without one only ids are written."""

    def __init__(
        self, model: Model, prompt: Prompt, stop: list[str], write: Callable[[str], None] | None
    ) -> None:
        if model.tokenizer is None and stop:
            raise UsageError("--stop compares text, and this model has no tokenizer")
        self.ids: list[int] = []
        self._parts: list[str] = []
        tokenizer = model.tokenizer
        self._stream = None if tokenizer is None else TextStream(tokenizer.speller(prompt), tuple(stop))
        self._write = write or (lambda _text: None)

    @property
    def stopped(self) -> bool:
        return self._stream is not None and self._stream.stopped

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def push(self, token: int) -> None:
        self.ids.append(token)
        if self._stream is None:
            self._write(f"{token} ")
        else:
            self._show(self._stream.push(token))

    def finish(self) -> None:
        if self._stream is not None:
            self._show(self._stream.finish())

    def _show(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._write(text)


def _generate(backend: Backend, job: Job, answer: _Answer) -> tuple[str, Timings]:
    """Runs the job to its end or to a stop string; what follows that is neither shown nor counted."""
    first = FirstTokenTimer()
    launch = backend.launch(job)
    tokens: list[Token] = []

    def on_tokens(fresh: Sequence[Token]) -> None:
        first.record(fresh)
        for token in fresh:
            if not answer.stopped:
                tokens.append(token)
                answer.push(token.id)
        if answer.stopped:
            launch.stop()

    try:
        outcome = follow(launch, _POLL_S, on_tokens)
    finally:
        launch.close()
    reason = "stop" if answer.stopped else outcome.finish_reason
    answer.finish()
    return reason, _timings(job, tokens, first.ns, outcome)


def _timings(job: Job, tokens: Sequence[Token], ttft_ns: int, outcome: Outcome) -> Timings:
    decode_ns = tokens[-1].t_ns - tokens[0].t_ns if tokens else 0
    return Timings(
        queue_ms=0.0,
        prefill_ms=outcome.prefill_ns / 1e6,
        ttft_ms=ttft_ns / 1e6,
        decode_ms=decode_ns / 1e6,
        decode_tok_s=decode_speed(len(tokens) - 1, decode_ns),
        prompt_tokens=len(job.tokens),
        completion_tokens=len(tokens),
    )


def _summary(backend: Backend, params: SamplingParams, reason: str, t: Timings) -> str:
    prefill = t.prompt_tokens * 1e3 / t.prefill_ms if t.prefill_ms > 0 else 0.0
    seed = f", seed {params.seed}" if params.temperature > 0 else ""
    names = [device.name for device in backend.topology.devices]
    where = names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"
    return (
        f"{t.decode_tok_s:,.1f} tok/s, {t.completion_tokens} tokens ({reason}{seed}),"
        f" first after {t.ttft_ms:,.0f} ms ({t.prompt_tokens} prompt tokens at {prefill:,.0f} tok/s),"
        f" {backend.name} on {where}"
    )
