"""One generation on one engine, from wherever an earlier worker left it to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Literal

from engine.backends.base import FinishReason, Job, Launch, Token
from engine.errors import EngineError, RequestError
from engine.serving.continuation import Published
from engine.serving.engines import Engine
from engine.serving.messages import Done, GenerateRequest, Progress, Scored, Started, Timings
from engine.serving.publisher import Output
from engine.serving.scoring import check_room, scores
from engine.text_stream import TextStream

POLL_S = 0.02
"""How soon a cancellation is obeyed when no token comes."""
PROGRESS_S = 0.25


class Refused(EngineError):
    """A request that this worker cannot serve; `code` is one of messages.ERROR_CODES."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Generation:
    """Feeds one request's tokens to its Output."""

    def __init__(
        self, engine: Engine, request: GenerateRequest, output: Output, worker: str, queue_ms: float
    ) -> None:
        """Raises Refused or RequestError for a request that this engine cannot serve."""
        if not engine.answers_to(request.model):
            raise Refused(
                "wrong_model",
                f"the model {request.model!r} is not served here; {engine.name} is: ask for that",
            )
        if engine.model.tokenizer is None:
            raise RequestError(
                f"the model {engine.name} has no tokenizer; it can be benchmarked, not prompted"
            )
        self._begun = time.monotonic()
        self._engine = engine
        self._tokenizer = engine.model.tokenizer
        self._logprobs = request.logprobs
        self._output = output
        self._worker = worker
        self._published = Published.of(output.history)
        self._queue_ms = queue_ms if self._published.queue_ms is None else self._published.queue_ms
        self._prompt = tuple(self._tokenizer.encode_prompt(request.prompt))
        self._sampling = request.sampling
        ends = self._tokenizer.eos_ids | frozenset(engine.model.config.eos_ids)
        self._stop_ids = frozenset() if request.ignore_eos else ends
        self._limit = _limit(engine, len(self._prompt), request.max_tokens)
        if request.logprobs is not None:
            check_room(engine.backend, self._prompt, self._limit)
        self._stream = TextStream(self._tokenizer, request.stop)
        replayed = "".join(self._stream.push(token) for token in self._published.ids)
        self._unsent = replayed[len(self._published.text) :]
        self._ids = list(self._published.ids)
        self._text_bytes = len(self._published.text.encode())
        self._first: Token | None = None
        self._last: Token | None = None
        self._launched = 0
        self._ttft_ms = output.ttft_ms
        self._prefill_ms = 0.0
        self._progress_at = self._begun

    def run(self, leave: Callable[[float], bool]) -> Done | None:
        """Generates until the end, which is returned; the Output has everything before it.

        `leave` is asked after every poll with the seconds that are probably left (infinite if unknown);
        once it says yes, or another worker has the request, the result is None. Raises BackendFailure.
        """
        done = self._generate(leave)
        if done is not None and done.finish_reason != "cancelled" and self._logprobs is not None:
            self._score(self._logprobs, self._text_bytes + len(done.text.encode()))
        return done

    def _generate(self, leave: Callable[[float], bool]) -> Done | None:
        engine = self._engine
        self._output.frame(
            Started(self._worker, engine.name, engine.backend.name, len(self._prompt), self._queue_ms)
        )
        if self._stream.stopped:
            return self._done("stop")
        if len(self._ids) >= self._limit:
            return self._done("length")
        tokens = self._prompt + self._published.ids
        job = Job(tokens, self._limit - len(self._ids), self._sampling, self._stop_ids)
        launch = engine.backend.launch(job)
        try:
            return self._follow(launch, leave)
        finally:
            launch.close()

    def _follow(self, launch: Launch, leave: Callable[[float], bool]) -> Done | None:
        while True:
            outcome = launch.outcome  # read first: tokens may still wait in `poll` when it appears
            tokens = launch.poll(POLL_S)
            if tokens:
                self._push(tokens)
            if self._stream.stopped:
                return self._done("stop")
            if outcome is not None and not tokens:
                self._prefill_ms = outcome.prefill_ns / 1e6
                return self._done(outcome.finish_reason)
            if self._output.lost.is_set() or leave(self._seconds_left()):
                return None
            if self._output.cancelled.is_set():
                launch.stop()
            if self._first is None:
                self._tell_prefill(launch)

    def _push(self, tokens: Sequence[Token]) -> None:
        """Sends tokens on, up to the one that completes a stop string."""
        if self._first is None:
            self._first = tokens[0]
        if self._ttft_ms is None:
            self._ttft_ms = self._queue_ms + (time.monotonic() - self._begun) * 1e3
        text, ids = self._unsent, []
        self._unsent = ""
        for token in tokens:
            ids.append(token.id)
            text += self._stream.push(token.id)
            self._last = token
            if self._stream.stopped:
                break
        self._ids += ids
        self._launched += len(ids)
        self._text_bytes += len(text.encode())
        self._output.tokens(ids, text, self._decode_us(), self._ttft_ms)

    def _score(self, alternatives: int, text_bytes: int) -> None:
        """Sends the log-probabilities of the tokens that the text shows: none of a stop string's own."""
        scored = sum(len(frame.chosen) for frame in self._output.history if isinstance(frame, Scored))
        answer = self._ids
        if self._stream.stopped:
            ends = accumulate(len(self._tokenizer.token_bytes(token)) for token in answer)
            answer = [
                token for token, end in zip(answer, chain((0,), ends), strict=False) if end < text_bytes
            ]
        for frame in scores(
            self._engine.backend, self._tokenizer, self._prompt, answer, alternatives, scored
        ):
            self._output.frame(frame)

    def _tell_prefill(self, launch: Launch) -> None:
        now = time.monotonic()
        if now - self._progress_at >= PROGRESS_S:
            self._progress_at = now
            total = len(self._prompt) + len(self._published.ids)
            self._output.frame(Progress(launch.prefilled, total, "prompt tokens"))

    def _decode_us(self) -> int:
        """From the first to the last token of this launch."""
        if self._first is None or self._last is None:
            return 0
        return (self._last.t_ns - self._first.t_ns) // 1000

    def _seconds_left(self) -> float:
        if self._launched < 2:
            return float("inf")
        return (self._limit - len(self._ids)) * self._decode_us() / 1e6 / (self._launched - 1)

    def _done(self, reason: FinishReason) -> Done:
        finish: Literal["stop", "length", "cancelled"] = reason
        decode_us = self._published.decode_us + self._decode_us()
        gaps = self._published.gaps + max(0, self._launched - 1)
        timings = Timings(
            queue_ms=round(self._queue_ms, 3),
            prefill_ms=round(self._prefill_ms, 3),
            ttft_ms=round(self._ttft_ms or 0.0, 3),
            decode_ms=decode_us / 1e3,
            decode_tok_s=round(gaps * 1e6 / decode_us, 2) if decode_us else 0.0,
            prompt_tokens=len(self._prompt),
            completion_tokens=len(self._ids),
        )
        return Done(finish, self._unsent + self._stream.finish(), timings)


def _limit(engine: Engine, prompt: int, max_tokens: int) -> int:
    """How many tokens the answer may have. Raises Refused if the prompt leaves no room for one."""
    context = engine.model.config.context
    if prompt >= context:
        raise Refused(
            "too_long",
            f"the prompt has {prompt} tokens; {engine.name} takes at most {context - 1} and still answers:"
            " shorten it",
        )
    if max_tokens < 1:
        raise RequestError(f"max_tokens is {max_tokens}; it must be at least 1")
    return min(max_tokens, context - prompt)
