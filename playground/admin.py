"""Generations, to be looked at: what was run is never edited. API keys: made, seen once, revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from playground.keys import give_secret, revoke_keys
from playground.models import ApiKey, Generation

if TYPE_CHECKING:
    GenerationBase = admin.ModelAdmin[Generation]
    ApiKeyBase = admin.ModelAdmin[ApiKey]
else:  # Django's class takes a type parameter only in the stubs
    GenerationBase = ApiKeyBase = admin.ModelAdmin


@admin.register(Generation)
class GenerationAdmin(GenerationBase):
    list_display = ("id", "state", "model", "backend", "decode_tok_s", "created")
    list_filter = ("state", "model", "backend", "created")
    ordering = ("-created",)
    exclude = ("owner",)

    @admin.display(description="decode tok/s")
    def decode_tok_s(self, generation: Generation) -> str:
        speed = generation.timings.get("decode_tok_s")
        return f"{speed:,.0f}" if speed else "–"

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
