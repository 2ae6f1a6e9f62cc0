"""The path converter `<key:pk>`: a row's key, as far as every database can hold one."""

from __future__ import annotations

from django.urls import register_converter
from django.urls.converters import IntConverter


class Key(IntConverter):
    """At most 18 digits, which fit in 64 bits; a longer number is the address of nothing."""

    regex = "[0-9]{1,18}"


register_converter(Key, "key")
