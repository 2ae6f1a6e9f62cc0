"""The scripts of pages that are modules, with the parts that they need at once."""

from __future__ import annotations

import json
from functools import lru_cache

from django import template
from django.conf import settings
from django.contrib.staticfiles.storage import staticfiles_storage
from django.http import HttpRequest
from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag(takes_context=True)
def page_script(context: template.Context, name: str) -> SafeString:
    """The script `name`, and links by which the browser asks for its parts without reading it first.

    Django hashes the script's name; those of its parts hold the bundler's hash, as the script names them.
    """
    request: HttpRequest = context["request"]
    nonce = request.csp_nonce  # type: ignore[attr-defined]  # of django-csp
    links = format_html_join(
        "", '<link rel="modulepreload" href="{}" nonce="{}">', ((url, nonce) for url in _parts(name))
    )
    script = '<script type="module" src="{}" nonce="{}" id="app"></script>'
    return links + format_html(script, static(name), nonce)


@lru_cache(maxsize=1)
def _chunks() -> dict[str, list[str]]:
    """By script, as static/build.js wrote it down; read once, as a server's collected files do not change."""
    if settings.DEBUG or not staticfiles_storage.exists("modules.json"):
        return {}  # nothing is collected: the browser finds the parts by itself, a little later
    with staticfiles_storage.open("modules.json") as file:
        chunks: dict[str, list[str]] = json.load(file)
    return chunks


def _parts(name: str) -> list[str]:
    """The addresses of what a script imports at once."""
    return [f"{settings.STATIC_URL}{chunk}" for chunk in _chunks().get(name, [])]
