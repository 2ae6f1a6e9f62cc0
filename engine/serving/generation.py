"""One generation on one engine, from wherever an earlier worker left it to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import TypeVar

from engine import replies
from engine.backends.base import Job, Launch, OnStep, Outcome, Token
from engine.backends.running import follow
from engine.errors import EngineError, NoRoom, RequestError
from engine.models.text_stream import TextStream
from engine.models.tokenizer import Tokenizer
from engine.progress import Progress
from engine.replies import Reply
from engine.serving.continuation import Published
from engine.serving.engines import Engine
from engine.serving.messages import Done, GenerateRequest, Scored, Started
from engine.serving.publisher import Output
from engine.serving.scoring import check_room, scores
from engine.serving.timing import Clock
from engine.timings import FinishReason

POLL_S = 0.02
"""How soon a cancellation is obeyed when no token comes."""
PROGRESS_S = 0.25
SCORING_S = 1.0
"""What is probably left while an answer is scored."""
Begun = TypeVar("Begun")


class Refused(EngineError):
    """A request that this worker cannot serve."""

    def __init__(self, reply: Reply, message: str) -> None:
        super().__init__(message)
        self.reply = reply


class _Leaving(Exception):
    """The request is given up: another worker goes on with it, or its client wants no more."""


@dataclass(frozen=True, slots=True)
class Host:
    """What a generation asks and tells the worker that has it in hand."""

    must_leave: Callable[[float], bool]
    """Asked after every poll with the seconds that are probably left, infinite if unknown: yes ends it."""
    on_begin: Callable[[], None]
    """Called when there is something after the first tokens, or the prompt takes longer than POLL_S."""
    wanting_room: Callable[[], AbstractContextManager[None]]
    """Held while the request does not fit beside others."""
    may_end: Callable[[], bool]
    """Whether the end may be sent without waiting."""
    before_end: Callable[[], None]
    """Called before the end is sent; may wait for seconds."""


class Generation:
    """Feeds one request's tokens to its Output."""

    def __init__(
        self, engine: Engine, request: GenerateRequest, output: Output, worker: str, queue_ms: float
    ) -> None:
        """Raises Refused or RequestError for a request that this engine cannot serve."""
        self._tokenizer = _tokenizer_of(engine)
        self._engine = engine
        self._request = request
        self._output = output
        self._worker = worker
        published = Published.of(output.history)
        self._clock = Clock(published, queue_ms, output.ttft_ms)
        with self._clock.time_tokenizer():
            self._prompt = tuple(self._tokenizer.encode_prompt(request.prompt, request.cache_salt))
        self._limit = _limit(engine, len(self._prompt), request.max_tokens)
        if request.logprobs is not None:
            check_room(engine.backend, len(self._prompt), self._limit)
        self._stream = TextStream(self._tokenizer.speller(request.prompt), request.stop)
        replayed = "".join(self._stream.push(token) for token in published.ids)
        self._unsent = replayed[len(published.text) :]
        self._ids = list(published.ids)
        self._text_bytes = len(published.text.encode())
        self._progress_at = time.monotonic()

    def run(self, host: Host) -> Done | None:
        """Generates until the end, which is sent and returned.

        None if it had to leave, or another worker has the request. Raises BackendFailure, maybe once the end
        has been sent: that is done before what the launch held is freed, or else whatever becomes of that.
        """
        done = self._generate(host)
        alternatives = self._request.logprobs
        if done is not None and alternatives is not None:  # the scores come before the end
            if done.finish_reason != "cancelled":
                try:
                    self._score(alternatives, self._text_bytes + len(done.text.encode()), host)
                except _Leaving:
                    if not self._output.cancelled.is_set():
                        return None
            self._output.end(done)
        return done

    def _generate(self, host: Host) -> Done | None:
        engine = self._engine
        started = Started(
            self._worker, engine.name, engine.backend.name, len(self._prompt), self._clock.queue_ms
        )
        if self._stream.stopped or len(self._ids) >= self._limit:
            self._output.frame(started)
            return self._end("stop" if self._stream.stopped else "length", host)
        launch = self._launch(host)
        if launch is None:
            return self._end("cancelled", host) if self._output.cancelled.is_set() else None
        late: FinishReason | None = None
        done: Done | None = None
        try:
            self._output.frame(started)  # not before: the publisher's thread takes turns with this one
            outcome = self._follow(launch, host)
            if outcome is None:
                return None
            self._clock.note_outcome(outcome)
            reason = "stop" if self._stream.stopped else outcome.finish_reason
            if host.may_end():
                return self._end(reason, host)
            late = reason
        finally:
            try:
                launch.close()
            finally:
                if late is not None:  # others have the row while this waits
                    done = self._end(late, host)
        return done

    def _launch(self, host: Host) -> Launch | None:
        """Begins as soon as there is room beside the requests in flight; None if it is not to begin."""
        job = self._job()

        def on_wait(error: NoRoom) -> None:
            self._output.frame(Progress(0, len(job.tokens), "prompt tokens", str(error)))

        return self._once_there_is_room(partial(self._engine.backend.launch, job), host, on_wait)

    def _once_there_is_room(
        self, begin: Callable[[], Begun], host: Host, on_wait: Callable[[NoRoom], None]
    ) -> Begun | None:
        """What `begin` returns as soon as it does not raise NoRoom; None if it is not to begin.

        `on_wait` is told of the first one.
        """
        try:
            return begin()
        except NoRoom as error:
            on_wait(error)
        with host.wanting_room():
            while not self._is_unwanted(host, float("inf")):
                time.sleep(POLL_S)
                with suppress(NoRoom):
                    return begin()
        return None

    def _job(self) -> Job:
        return Job(
            (*self._prompt, *self._ids),
            self._limit - len(self._ids),
            self._request.sampling,
            sampled=len(self._ids),
            stop_ids=self._stop_ids(),
            cache_salt=self._request.cache_salt,
        )

    def _follow(self, launch: Launch, host: Host) -> Outcome | None:
        """How it ended; None if it had to leave."""
        has_begun = False

        def on_tokens(fresh: Sequence[Token]) -> None:
            nonlocal has_begun
            has_first = self._clock.started
            if fresh and not self._stream.stopped:
                self._push(fresh)
            # not beside the first tokens, which the publisher has in hand, nor where it may just have ended
            if not has_begun and bool(fresh) == has_first:
                has_begun = True
                host.on_begin()
            if self._stream.stopped or self._output.cancelled.is_set():
                launch.stop()
            elif self._output.lost.is_set() or host.must_leave(self._seconds_left()):
                raise _Leaving
            elif not self._clock.started:
                self._report_prefill(launch)

        try:
            return follow(launch, POLL_S, on_tokens)
        except _Leaving:
            return None

    def _seconds_left(self) -> float:
        return self._clock.seconds_for(self._limit - len(self._ids))

    def _push(self, tokens: Sequence[Token]) -> None:
        """Sends tokens on, up to the one that completes a stop string."""
        self._clock.note_arrival(tokens[0])
        text, sent = self._unsent, 0
        self._unsent = ""
        for token in tokens:
            text += self._stream.push(token.id)
            sent += 1
            if self._stream.stopped:
                break
        self._clock.count(tokens[:sent])
        ids = [token.id for token in tokens[:sent]]
        self._ids += ids
        self._text_bytes += len(text.encode())
        self._output.tokens(ids, text, self._clock.decode_us, self._clock.ttft_ms)

    def _score(self, alternatives: int, text_bytes: int, host: Host) -> None:
        """Sends the log-probabilities of the tokens that the text shows: none of a stop string's own.

        Raises _Leaving, and has sent none of them, if nobody wants them from this worker any more.
        """
        scored = sum(len(frame.chosen) for frame in self._output.history if isinstance(frame, Scored))
        answer = self._ids
        if self._stream.stopped:
            spell = self._tokenizer.speller(self._request.prompt).token_bytes
            ends = accumulate(len(spell(token)) for token in answer)
            answer = [
                token for token, end in zip(answer, chain((0,), ends), strict=False) if end < text_bytes
            ]
        on_step = partial(self._require_wanted, host)
        frames = self._once_there_is_room(
            partial(self._scores, answer, alternatives, scored, on_step), host, lambda _error: None
        )
        if frames is None:
            raise _Leaving
        for frame in frames:
            self._output.frame(frame)

    def _scores(self, answer: Sequence[int], alternatives: int, first: int, on_step: OnStep) -> list[Scored]:
        backend, tokenizer = self._engine.backend, self._tokenizer
        return list(scores(backend, tokenizer, self._prompt, answer, alternatives, first, on_step))

    def _require_wanted(self, host: Host) -> None:
        """Raises _Leaving if nobody wants this worker's scores any more."""
        if self._is_unwanted(host, SCORING_S):
            raise _Leaving

    def _is_unwanted(self, host: Host, seconds_left: float) -> bool:
        output = self._output
        return output.cancelled.is_set() or output.lost.is_set() or host.must_leave(seconds_left)

    def _report_prefill(self, launch: Launch) -> None:
        now = time.monotonic()
        if now - self._progress_at >= PROGRESS_S:
            self._progress_at = now
            total = len(self._prompt) + len(self._ids)
            self._output.frame(Progress(launch.prefilled, total, "prompt tokens"))

    def _stop_ids(self) -> frozenset[int]:
        if self._request.ignore_eos:
            return frozenset()
        return self._tokenizer.eos_ids | frozenset(self._engine.model.config.eos_ids)

    def _end(self, reason: FinishReason, host: Host) -> Done:
        host.before_end()
        timings = self._clock.timings(len(self._prompt), len(self._ids), self._output.publish_ms)
        done = Done(reason, self._unsent + self._stream.finish(), timings)
        if self._request.logprobs is None:
            self._output.end(done)
        return done


def _tokenizer_of(engine: Engine) -> Tokenizer:
    """Raises RequestError if the model has no tokenizer."""
    if engine.model.tokenizer is None:
        raise RequestError(f"the model {engine.name} has no tokenizer; it can be benchmarked, not prompted")
    return engine.model.tokenizer


def _limit(engine: Engine, prompt: int, max_tokens: int) -> int:
    """How many tokens the answer may have. Raises Refused if the prompt leaves no room for one."""
    context = engine.backend.config.context
    if prompt >= context:
        raise Refused(
            replies.TOO_LONG,
            f"the prompt is too long: it has {prompt:,} tokens, and {engine.name} takes at most"
            f" {context - 1:,}; shorten it",
        )
    if max_tokens < 1:
        raise RequestError(f"max_tokens is {max_tokens}; it must be at least 1")
    return min(max_tokens, context - prompt)
