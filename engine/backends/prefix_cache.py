"""Sequences whose keys and values stay after their launch, and which of them a new prompt may go on from.

A backend calls `reserve` before a request begins, or `reuse` if requests do not share the budget, and
`give_back` and `keep` after it. The keys and values themselves are the backend's: this module knows their
tokens, their size and whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from engine.errors import BackendUnavailable, NoRoom
from engine.whole_numbers import is_whole

OPTION = "prefix_cache_mib"
"""The option of every backend that keeps sequences: MiB for those that are kept and those of the requests in
flight, which a request alone may exceed until it ends. 0 keeps none, and takes one request at a time."""
MAX_MIB = 1 << 24
_LOOK = 64
"""Items that are compared at first."""
PINNED = "pinned"
"""The owner of what the operator pins (Job.cache_salt): every owner goes on from it, and it never goes."""

T = TypeVar("T")


class PrefixCacheUse(NamedTuple):
    """What a backend may keep and keeps now."""

    budget_bytes: int = 0
    used_bytes: int = 0
    sequences: int = 0


class KeptSequence(NamedTuple):
    """Whose sequence is kept (Job.cache_salt), and its tokens."""

    salt: str
    tokens: tuple[int, ...]


class Match(NamedTuple, Generic[T]):
    """A kept sequence that begins as the prompt does, for `length` tokens."""

    value: T
    length: int
    copies: bool
    """True if the sequence stays kept: copy `length` positions of it. False if `value` is the caller's."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kept(Generic[T]):
    salt: str
    tokens: tuple[int, ...]
    value: T
    size: int


class PrefixCache(Generic[T]):
    """Kept sequences, and those in flight, within a budget of bytes. For one thread at a time.

    The least recently used of the kept ones go first.

    Sequences are found by their owner's salt (Job.cache_salt) alone: how fast a prompt is read must not
    tell one owner what another has asked. An empty salt neither finds nor keeps anything. What belongs to
    PINNED is found by every owner, copied, and makes room for nobody.
    """

    def __init__(self, budget_bytes: int, release: Callable[[T], None] = lambda _value: None) -> None:
        """`release` frees the keys and values of a sequence that is dropped."""
        self._budget = budget_bytes
        self._release = release
        self._reserved: list[int] = []
        self._kept: list[_Kept[T]] = []
        """The least recently used first."""

    @property
    def use(self) -> PrefixCacheUse:
        return PrefixCacheUse(self._budget, sum(kept.size for kept in self._kept), len(self._kept))

    @property
    def in_flight(self) -> int:
        """Requests that `reserve` has taken memory for."""
        return len(self._reserved)

    @property
    def sequences(self) -> list[KeptSequence]:
        """The least recently used first."""
        return [KeptSequence(kept.salt, kept.tokens) for kept in self._kept]

    def reuse(self, salt: str, tokens: Sequence[int]) -> Match[T] | None:
        """The kept sequence with the longest common prefix, at most all but the last of `tokens`.

        The last token is always computed: its logits choose the first new one. A sequence that would lose
        more than the prompt gains from it stays kept and is to be copied.
        """
        best, length = None, 0
        known = tokens[: len(tokens) - 1]
        for owner in (salt, PINNED) if salt else ():
            for kept in reversed(self._kept):
                if kept.salt == owner:
                    common = common_prefix(kept.tokens, known)
                    if common > length:
                        best, length = kept, common
        if best is None:
            return None
        self._kept.remove(best)
        copies = best.salt == PINNED or len(best.tokens) - length > length
        if copies:
            self._kept.append(best)
        return Match(best.value, length, copies)

    def reserve(self, salt: str, tokens: Sequence[int], prompt: int, most: int) -> Match[T] | None:
        """Takes `most` bytes for a request until `give_back`; what it may go on from, as `reuse` finds it.

        Kept sequences make room, the one that is gone on from last: where it cannot stay, it is handed over.
        Beside others in flight a request is counted with `most`, all that it may fill. Alone it is counted
        with the bytes of its `prompt`, and with what it has filled when that is kept: most requests end long
        before they may.

        Raises NoRoom if it has to wait for a request in flight to end. One that is alone is never refused.
        """
        self.require_room(most)
        match = self.reuse(salt, tokens)
        source = self._kept[-1] if match and match.copies else None
        self._make_room(most if self._reserved else prompt, source)
        self._reserved.append(most)
        if match and source and source not in self._kept:
            return match._replace(copies=False)
        return match

    def require_room(self, most: int) -> None:
        """Raises NoRoom if `reserve` would."""
        if self._reserved and self._unmovable + most > self._budget:
            raise NoRoom(
                f"the memory for keys and values is full: this request may need {_mib(most)} MiB, and"
                f" {_mib(self._unmovable)} of {_mib(self._budget)} are in use; it begins once another one has"
                " ended"
            )

    def give_back(self, size: int) -> None:
        """What `reserve` took."""
        self._reserved.remove(size)

    def keep(self, salt: str, tokens: Sequence[int], value: T, size: int) -> None:
        """Keeps a sequence of `size` bytes, or releases it if it has no owner or no room in the budget."""
        if not salt or not tokens or size > self._budget:
            self._release(value)
            return
        whole = tuple(tokens)
        for kept in [kept for kept in self._kept if kept.salt == salt and _begins(whole, kept.tokens)]:
            self._drop(kept)  # the new one serves whatever this one would
        if self._make_room(size):
            self._kept.append(_Kept(salt, whole, value, size))
        else:
            self._release(value)

    def clear(self) -> None:
        """Releases all but what is pinned."""
        for kept in [kept for kept in self._kept if kept.salt != PINNED]:
            self._drop(kept)

    @property
    def _unmovable(self) -> int:
        return sum(kept.size for kept in self._kept if kept.salt == PINNED) + sum(self._reserved)

    def _make_room(self, size: int, source: _Kept[T] | None = None) -> bool:
        """Whether there is room for so much now. What cannot fit anyway makes nobody go.

        `source` goes unreleased: its value is the caller's then.
        """
        if self._unmovable + size > self._budget:
            return False
        while self.use.used_bytes + sum(self._reserved) + size > self._budget:
            loose = next(kept for kept in self._kept if kept.salt != PINNED)
            if loose is source:
                self._kept.remove(loose)
            else:
                self._drop(loose)
        return True

    def _drop(self, kept: _Kept[T]) -> None:
        self._kept.remove(kept)
        self._release(kept.value)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f}"


def _begins(tokens: tuple[int, ...], with_these: tuple[int, ...]) -> bool:
    return common_prefix(tokens, with_these) == len(with_these)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many items two sequences begin with in common."""
    most = min(len(one), len(other))
    low, high = 0, min(most, _LOOK)
    while low < most and one[low:high] == other[low:high]:  # most sequences differ soon: longer looks later
        low, high = high, min(most, 3 * high)
    while low < high:  # slices are compared much faster than items one by one
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def budget_of(options: Mapping[str, Any], default_mib: int) -> int:
    """Bytes that the options allow to kept sequences. Raises BackendUnavailable for a value out of range."""
    value = options.get(OPTION, default_mib)
    if not is_whole(value, 0, MAX_MIB):
        raise BackendUnavailable(
            f"{OPTION} is {value!r}; it must be a whole number from 0 (keep nothing) to {MAX_MIB}"
        )
    return value << 20
