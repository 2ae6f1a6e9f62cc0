"""Generations, to be looked at: what was run is never edited."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from playground.models import Generation


@admin.register(Generation)
class GenerationAdmin(admin.ModelAdmin[Generation]):
    list_display = ("id", "state", "model", "backend", "decode_tok_s", "created")
    list_filter = ("state", "model", "backend", "created")
    ordering = ("-created",)
    exclude = ("owner",)

    @admin.display(description="decode tok/s")
    def decode_tok_s(self, generation: Generation) -> str:
        speed = generation.timings.get("decode_tok_s")
        return f"{speed:,.0f}" if speed else "–"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Generation | None = None) -> bool:
        return False
