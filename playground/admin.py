"""Generations, to be looked at: what was run is never edited. Shared pages: taken down. API keys: made, seen
once, revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html

from playground.exhibit import prompt_text
from playground.keys import give_secret, revoke_keys
from playground.models import ApiKey, Generation, Lane, Share

if TYPE_CHECKING:
    GenerationBase = admin.ModelAdmin[Generation]
    ApiKeyBase = admin.ModelAdmin[ApiKey]
    ShareBase = admin.ModelAdmin[Share]
    LaneBase = admin.TabularInline[Lane, Share]
else:  # Django's classes take type parameters only in the stubs
    GenerationBase = ApiKeyBase = ShareBase = admin.ModelAdmin
    LaneBase = admin.TabularInline

SHOWN = 2000
"""Characters of a prompt or an answer that a list shows."""


class GenerationList(ChangeList):
    """A list of a hundred shows nothing of what is long in them."""

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Generation]:
        rows = super().get_queryset(request, exclude_parameters)
        return rows.defer("request", "text", "environment", "pace")


@admin.register(Generation)
class GenerationAdmin(GenerationBase):
    list_display = ("id", "state", "model", "backend", "decode_tok_s", "created")
    list_filter = ("state", "model", "backend", "created")
    ordering = ("-created",)
    exclude = ("owner",)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:  # noqa: ARG002
        return GenerationList

    @admin.display(description="decode tok/s")
    def decode_tok_s(self, generation: Generation) -> str:
        speed = generation.timings.get("decode_tok_s")
        return f"{speed:,.0f}" if speed else "–"

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False


class LaneInline(LaneBase):
    """What a page shows: the prompt and the answer, to be judged without opening it."""

    model = Lane
    fields = readonly_fields = ("generation", "pacer_tok_s", "prompt", "answer")
    can_delete = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Lane]:
        rows = super().get_queryset(request).select_related("generation")
        return rows.defer("generation__environment", "generation__pace")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    @admin.display
    def prompt(self, lane: Lane) -> str:
        return prompt_text(lane.generation.request.get("prompt", {}))[:SHOWN] if lane.generation else "–"

    @admin.display
    def answer(self, lane: Lane) -> str:
        return lane.generation.text[:SHOWN] if lane.generation else "–"


@admin.register(Share)
class ShareAdmin(ShareBase):
    """Pages that visitors have put up. Deleting one takes it down at once, its picture too."""

    list_display = ("id", "kind", "created", "page")
    list_filter = ("race", "created")
    search_fields = ("id", "lanes__generation__text", "lanes__generation__id")
    ordering = ("-created",)
    exclude = ("owner", "card")
    inlines = (LaneInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Share]:
        return super().get_queryset(request).defer("card")

    @admin.display
    def kind(self, share: Share) -> str:
        return "race" if share.race else "run"

    @admin.display
    def page(self, share: Share) -> str:
        return format_html('<a href="{}">open</a>', reverse("playground:shared", args=[share.id]))

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False


@admin.register(ApiKey)
class ApiKeyAdmin(ApiKeyBase):
    list_display = ("prefix", "name", "last_used", "revoked", "created")
    list_filter = ("revoked", "created")
    search_fields = ("name", "prefix")
    fields = ("name", "prefix", "requests_per_minute", "tokens_per_minute", "created", "last_used", "revoked")
    readonly_fields = ("prefix", "created", "last_used", "revoked")
    actions = ("revoke",)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        """A new key stays with this request: a message about it would lie in a cookie."""
        if not change:
            request._made_key = give_secret(obj)  # type: ignore[attr-defined]
        super().save_model(request, obj, form, change)

    def response_add(
        self,
        request: HttpRequest,
        obj: ApiKey,
        post_url_continue: str | None = None,  # noqa: ARG002
    ) -> HttpResponse:
        key: str = request._made_key  # type: ignore[attr-defined]
        context = {**self.admin_site.each_context(request), "row": obj, "key": key}
        return TemplateResponse(request, "admin/playground/apikey/made.html", context)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """A revoked key stays on record."""
        return False

    @admin.action(description="Revoke the selected keys", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        changed = revoke_keys(prefixes=list(queryset.values_list("prefix", flat=True)))
        for row in ApiKey.objects.filter(prefix__in=changed):
            self.log_change(request, row, "Revoked.")
        self.message_user(
            request, f"Revoked: {', '.join(changed) or 'none, they were already'}.", messages.SUCCESS
        )
