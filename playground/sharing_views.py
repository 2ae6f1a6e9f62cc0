"""The pages that show a shared generation or race, and what their owner does with them.

They are for those who have their address: no search engine lists them, no cache keeps them for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from config.addresses import address_of
from config.disk import DiskFull
from engine.serving.errors import QueueUnavailable
from playground import services, sharing
from playground.access import members_only
from playground.card import generation_card, race_card
from playground.exhibit import (
    Exhibit,
    exhibits,
    finishing_order,
    first_generation,
    prompt_for_page,
    prompt_parts,
    prompt_text,
    settings_of,
)
from playground.keeping import TooMuch, admit_page
from playground.models import Share
from playground.ownership import ensure_owner, owner_of
from playground.pace_drawing import pace_path
from playground.quota import wait

_CARD_AGE_S = 300
"""How long caches on the way may keep a picture; so much longer it may be seen after it was revoked."""
_SUMMARY_CHARS = 180


@require_http_methods(["GET", "HEAD", "POST"])
@members_only
async def shared_pages(request: HttpRequest) -> HttpResponseBase:
    """The pages that this session has shared; a POST with `lane` (once or more) shares another."""
    owner = await ensure_owner(request)
    if request.method == "POST":
        return await _share(request, owner)
    pages = await sync_to_async(sharing.pages_of)(owner)
    listed = [{"share": page, "title": _title(page), "lanes": exhibits(page)} for page in pages]
    context = {"pages": listed, "days": settings.SHARE_DAYS, "kept_days": settings.GENERATION_DAYS}
    return _hide_from_search(render(request, "playground/shares.html", context))


async def _share(request: HttpRequest, owner: str) -> HttpResponseBase:
    try:
        contestants = sharing.parse_contestants(request.POST.getlist("lane"))
        await admit_page(address_of(request))
        made = await sync_to_async(sharing.share)(contestants=contestants, owner=owner)
    except sharing.Unshareable as error:
        return _refusal(request, str(error), 400)
    except (sharing.TooManyPages, TooMuch) as error:
        refusal = _refusal(request, str(error), 429)
        refusal["Retry-After"] = str(wait(error.retry_s))
        return refusal
    except (DiskFull, QueueUnavailable) as error:
        return _refusal(request, str(error), 503)
    path = reverse("playground:shared", args=[made.id])
    if _wants_json(request):
        return JsonResponse({"url": request.build_absolute_uri(path)}, status=201)
    return redirect(path)


@require_POST
@members_only
async def erase(request: HttpRequest) -> HttpResponse:
    """Deletes what this session has run and shared."""
    count = await sync_to_async(services.erase)(owner=await owner_of(request.session))
    message = f"Deleted: {count:,} generation{'' if count == 1 else 's'} and every page that showed them."
    messages.success(request, message)
    return redirect("playground:shared_pages")


@require_safe
@members_only
async def shared(request: HttpRequest, share: str) -> HttpResponse:
    """One shared generation or race."""
    page = await _page(share)
    lanes = exhibits(page)
    row = first_generation(page)
    context = {
        "share": page,
        "mine": page.owner == await owner_of(request.session),
        "title": _title(page),
        "summary": _summary(page, lanes),
        "lanes": _draw_contestants(lanes),
        "prompt": prompt_parts(row.request["prompt"]),
        "opening": prompt_for_page(row.request["prompt"]),
        "settings": settings_of(row.request),
        "asked": row.created,
        "days": settings.SHARE_DAYS,
        "address": request.build_absolute_uri(reverse("playground:shared", args=[page.id])),
        "picture": request.build_absolute_uri(reverse("playground:card", args=[page.id])),
    }
    template = "playground/shared_race.html" if page.race else "playground/shared.html"
    return _hide_from_search(render(request, template, context))


@require_POST
@members_only
async def revoke(request: HttpRequest, share: str) -> HttpResponse:
    """Takes a page of this session down for good."""
    owner = await owner_of(request.session)
    if not await sync_to_async(sharing.revoke)(share=share, owner=owner):
        raise Http404(_GONE)
    return redirect("playground:shared_pages")


@require_safe
@members_only
async def card(request: HttpRequest, share: str) -> HttpResponse:  # noqa: ARG001
    """The picture for link previews; drawn once and kept with the page."""
    page = await _page(share)
    kept = await Share.objects.filter(id=page.id).values_list("card", flat=True).aget()
    if kept is None:
        kept = await asyncio.to_thread(_draw, page)
        await Share.objects.filter(id=page.id).aupdate(card=kept)
    response = HttpResponse(bytes(kept), content_type="image/png")
    response["Cache-Control"] = f"public, max-age={_CARD_AGE_S}"
    response["X-Robots-Tag"] = "noindex"
    return response


@require_safe
@members_only
async def output(request: HttpRequest, share: str, place: int) -> HttpResponse:  # noqa: ARG001
    """The text of one lane, as a file."""
    lanes = exhibits(await _page(share))
    if place >= len(lanes) or lanes[place].pacer:
        raise Http404(_GONE)
    response = HttpResponse(lanes[place].text, content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="monolane-{share[:6]}-{place + 1}.txt"'
    return _hide_from_search(response)


_GONE = "there is no such page: it was revoked, it has had its time, or the address is not quite right"


async def _page(share: str) -> Share:
    found = await sync_to_async(sharing.shared_page)(share)
    if found is None:
        raise Http404(_GONE)
    return found


def _draw(page: Share) -> bytes:
    lanes, prompt = exhibits(page), prompt_text(first_generation(page).request["prompt"])
    return race_card(prompt, lanes) if page.race else generation_card(prompt, lanes[0])


def _draw_contestants(lanes: Sequence[Exhibit]) -> list[dict[str, Any]]:
    """The lanes by their places; bars of time and of speed each have one scale for all of them."""
    longest = max(lane.figures.total_ms for lane in lanes) or 1.0
    peak = max((rate for lane in lanes for rate in lane.pace), default=0.0)
    span_ms = max(len(lane.pace) * lane.stretch_ms for lane in lanes)
    drawn: list[dict[str, Any]] = [
        {
            "lane": lane,
            "number": number,
            "place": place,
            "road": round(100 * lane.figures.total_ms / longest, 2),
            "pace": pace_path(lane.pace, lane.stretch_ms, peak, span_ms),
            "peak": max(lane.pace, default=0.0),
        }
        for number, (lane, place) in enumerate(zip(lanes, finishing_order(lanes), strict=True))
    ]
    return sorted(drawn, key=lambda one: one["place"])


def _title(page: Share) -> str:
    """The first line of the prompt that says something."""
    text = prompt_text(first_generation(page).request["prompt"]).strip()
    line = text.splitlines()[0] if text else "An empty prompt"
    return line if len(line) <= 72 else line[:71] + "…"


def _summary(page: Share, lanes: Sequence[Exhibit]) -> str:
    speeds = [f"{lane.name}: {lane.figures.tok_s:,.0f} tok/s" for lane in lanes]
    kind = "A race" if page.race else f"{lanes[0].figures.tokens:,} tokens"
    return f"{kind}. {'; '.join(speeds)}."[:_SUMMARY_CHARS]


def _refusal(request: HttpRequest, message: str, status: int) -> HttpResponse:
    if _wants_json(request):
        return JsonResponse({"error": message}, status=status)
    return render(request, "playground/unshared.html", {"message": message}, status=status)


def _wants_json(request: HttpRequest) -> bool:
    return request.headers.get("Accept", "") == "application/json"


def _hide_from_search(response: HttpResponse) -> HttpResponse:
    response["X-Robots-Tag"] = "noindex, nofollow"
    response["Cache-Control"] = "private, no-store"
    return response
