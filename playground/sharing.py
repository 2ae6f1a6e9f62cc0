"""Shared pages: who may make one of what, and taking it down again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Prefetch, QuerySet
from django.utils import timezone

from playground.models import Generation, Lane, Share
from playground.protocol import GENERATION_ID

MOST_LANES = 3
MOST_PAGES = 200
"""Of one session."""
MOST_AN_HOUR = 30
"""Of one session."""
TOGETHER_S = 5.0
"""Contestants of a race are asked for at once; further apart they were no race."""
PACERS = (1.0, 100_000.0)
"""The paces that a pacer may have, in tok/s."""
_ENDED = (Generation.State.DONE, Generation.State.CANCELLED)


class ShareId:
    """The id of a page in a path, for Django's urls."""

    regex = "[A-Za-z0-9_-]{22}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


class Unshareable(Exception):
    """What was asked for cannot be shared; the message says why, in one sentence."""


class TooManyPages(Exception):
    """The session has shared so much lately that it has to wait, or to revoke something."""

    def __init__(self, message: str, retry_s: float) -> None:
        super().__init__(message)
        self.retry_s = retry_s


@dataclass(frozen=True, slots=True)
class Contestant:
    """A lane to be: either the id of a generation, or a pace in tok/s."""

    generation: str = ""
    pacer_tok_s: float = 0.0


def parse_contestants(lanes: Sequence[str]) -> list[Contestant]:
    """One for each of `lanes`: a generation's id, or `pacer:TOK_S`. Raises Unshareable."""
    if not 1 <= len(lanes) <= MOST_LANES:
        raise Unshareable(f"{len(lanes)} lanes were named; a page shows 1 to {MOST_LANES}")
    return [_contestant(lane) for lane in lanes]


def _contestant(lane: str) -> Contestant:
    kind, _, pace = lane.partition(":")
    if kind != "pacer":
        if not GENERATION_ID.fullmatch(lane):
            raise Unshareable(f"{lane[:60]!r} is no generation's id: run the prompt, then share it")
        return Contestant(generation=lane)
    low, high = PACERS
    try:
        tok_s = float(pace)
    except ValueError:
        tok_s = 0.0
    if not low <= tok_s <= high:
        raise Unshareable(f"the pacer's pace is {pace[:20]!r}; allowed are {low:g} to {high:,.0f} tok/s")
    return Contestant(pacer_tok_s=tok_s)


@transaction.atomic
def share(*, contestants: Sequence[Contestant], owner: str) -> Share:
    """A page that shows them. One generation that is shared already keeps the page it has.

    Raises Unshareable or TooManyPages.
    """
    generations = _generations_of(contestants, owner)
    race = len(contestants) > 1
    if race:
        _check_race(generations)
    elif found := Share.objects.filter(owner=owner, race=False, lanes__generation=generations[0]).first():
        return found
    _check_pace(owner)
    made = Share.objects.create(owner=owner, race=race)
    Lane.objects.bulk_create(
        Lane(
            share=made,
            place=place,
            generation_id=one.generation or None,
            pacer_tok_s=one.pacer_tok_s or None,
        )
        for place, one in enumerate(contestants)
    )
    return made


def revoke(*, share: str, owner: str) -> bool:
    """Takes the page down, its picture too. False if `owner` has no such page."""
    _, by_model = Share.objects.filter(id=share, owner=owner).exclude(owner="").delete()
    return bool(by_model.get(Share._meta.label))


def shared_page(share: str) -> Share | None:
    """The page with its lanes and their generations, without its picture. None if nothing is left to show."""
    found = _with_lanes(Share.objects.filter(id=share)).first()
    return found if found is not None and any(lane.generation for lane in found.lanes.all()) else None


def pages_of(owner: str) -> list[Share]:
    """The pages that the session `owner` has shared, the newest first."""
    pages = _with_lanes(Share.objects.filter(owner=owner).exclude(owner=""))
    return [page for page in pages if any(lane.generation for lane in page.lanes.all())]


def _with_lanes(shares: QuerySet[Share]) -> QuerySet[Share]:
    lanes = Lane.objects.select_related("generation")
    return shares.defer("card").prefetch_related(Prefetch("lanes", queryset=lanes))


def _generations_of(contestants: Sequence[Contestant], owner: str) -> list[Generation]:
    names = [one.generation for one in contestants if one.generation]
    if not names:
        raise Unshareable("a page needs at least one generation; a pacer alone shows nothing")
    found = Generation.objects.filter(owner=owner).exclude(owner="").in_bulk(names)
    for name in names:
        if name not in found:
            raise Unshareable(f"there is no generation {name} of this browser session: run the prompt again")
        if found[name].state not in _ENDED:
            raise Unshareable("the generation has not ended, or failed: share it once it has finished")
    if len(found) != len(names):
        raise Unshareable("a generation is named twice; every lane needs one of its own")
    return [found[name] for name in names]


def _check_race(generations: Sequence[Generation]) -> None:
    """Raises Unshareable unless they answer one prompt and were asked for together."""
    first = generations[0]
    if any(one.request["prompt"] != first.request["prompt"] for one in generations):
        raise Unshareable("the contestants answer different prompts; a race is one prompt")
    asked = [one.created for one in generations]
    if (max(asked) - min(asked)).total_seconds() > TOGETHER_S:
        raise Unshareable("the contestants were not started together; a race is one start")


def _check_pace(owner: str) -> None:
    """Raises TooManyPages."""
    mine = Share.objects.filter(owner=owner)
    if mine.count() >= MOST_PAGES:
        raise TooManyPages(f"this session has {MOST_PAGES} pages up, the most it may: revoke some", 3600)
    lately = mine.filter(created__gt=timezone.now() - timedelta(hours=1)).count()
    if lately >= MOST_AN_HOUR:
        raise TooManyPages(f"this session has shared {lately} pages within an hour: wait a little", 600)
