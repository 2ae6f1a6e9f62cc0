"""Generations, to be looked at: what was run is never edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from playground.models import Generation

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Generation]
else:  # Django's class takes a type parameter only in the stubs
    ModelAdmin = admin.ModelAdmin


@admin.register(Generation)
class GenerationAdmin(ModelAdmin):
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
