"""API keys: made once, kept as a digest, found by it, revoked for good.

A key is 256 random bits, so one round of SHA-256 hides it as well as a slow hash would hide a password.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from playground.models import ApiKey

MARK = "ml-"
"""How a key begins. What does not is some other server's, or a client's placeholder for none."""
_USED_EVERY = timedelta(minutes=1)
"""How exact `last_used` is: a write for every request would cost more than it tells."""


def make_key(
    *, name: str, requests_per_minute: int | None = None, tokens_per_minute: int | None = None
) -> tuple[ApiKey, str]:
    """A new key's row, and the key itself, which nobody can read again."""
    row = ApiKey(name=name, requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute)
    key = give_secret(row)
    row.full_clean()
    row.save()
    return row, key


def give_secret(row: ApiKey) -> str:
    """Fills in what a new row keeps of its key, and returns the key. The row is not saved."""
    row.prefix = MARK + secrets.token_hex(4)
    key = f"{row.prefix}-{secrets.token_urlsafe(32)}"
    row.digest = digest_of(key)
    return key


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


async def find_key(key: str) -> ApiKey | None:
    """The row of a key that is valid now; says that it was used."""
    row = await ApiKey.objects.filter(digest=digest_of(key), revoked=None).afirst()
    if row is not None:
        now = timezone.now()
        stale = Q(last_used=None) | Q(last_used__lt=now - _USED_EVERY)
        if row.last_used is None or row.last_used < now - _USED_EVERY:
            await ApiKey.objects.filter(stale, id=row.id).aupdate(last_used=now)
    return row


def revoke_keys(*, prefixes: list[str]) -> list[str]:
    """Ends the keys of those prefixes; returns those that this changed."""
    rows = ApiKey.objects.filter(prefix__in=prefixes, revoked=None)
    changed = list(rows.values_list("prefix", flat=True))
    rows.update(revoked=timezone.now())
    return changed
