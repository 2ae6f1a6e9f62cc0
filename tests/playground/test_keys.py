"""API keys: kept as digests, seen once, revoked for good; in the admin and on the command line."""

from __future__ import annotations

import re
from datetime import timedelta
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.utils import timezone

from config.rates import Rate
from playground.keys import digest_of, find_key, make_key, revoke_keys
from playground.models import ApiKey

pytestmark = pytest.mark.django_db
KEY = re.compile(r"ml-[0-9a-f]{8}-[\w-]{43}")


def test_the_key_itself_is_kept_nowhere():
    row, key = make_key(name="a laptop")
    assert KEY.fullmatch(key)
    assert key.startswith(row.prefix)
    kept = [str(value) for value in ApiKey.objects.values().get().values()]
    assert not any(key in value or key[12:] in value for value in kept)
    assert row.digest == digest_of(key)


def test_two_keys_are_unlike():
    first, second = make_key(name="x")[1], make_key(name="x")[1]
    assert first != second


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ValidationError):
        make_key(name="x", requests_per_minute=0)


@pytest.mark.parametrize(
    ("usual", "own", "rate"),
    [
        (Rate(10, 1000), {}, Rate(10, 1000)),
        (Rate(10, 1000), {"tokens_per_minute": 5}, Rate(10, 5)),
        (None, {}, None),
        (None, {"requests_per_minute": 7}, Rate(7, 10**9)),
    ],
)
def test_a_key_has_its_own_limits_where_it_says_so(settings, usual, own, rate):
    settings.LIMIT_KEY = usual
    assert make_key(name="x", **own)[0].rate == rate


@pytest.mark.django_db(transaction=True)
async def test_a_key_is_found_until_it_is_revoked():
    row, key = await _made()
    assert (await find_key(key)).id == row.id
    assert await find_key(key[:-1] + "?") is None
    await ApiKey.objects.filter(id=row.id).aupdate(revoked=timezone.now())
    assert await find_key(key) is None


@pytest.mark.django_db(transaction=True)
async def test_the_last_use_is_noted_to_the_minute():
    row, key = await _made()
    await find_key(key)
    first = (await ApiKey.objects.aget(id=row.id)).last_used
    assert first is not None
    await find_key(key)
    assert (await ApiKey.objects.aget(id=row.id)).last_used == first
    await ApiKey.objects.filter(id=row.id).aupdate(last_used=first - timedelta(minutes=2))
    await find_key(key)
    assert (await ApiKey.objects.aget(id=row.id)).last_used >= first


async def _made() -> tuple[ApiKey, str]:
    from asgiref.sync import sync_to_async

    return await sync_to_async(make_key)(name="x")


def test_the_admin_shows_a_new_key_once(admin_client):
    response = admin_client.post("/admin/playground/apikey/add/", {"name": "a laptop"})
    page = response.content.decode()
    [key] = KEY.findall(page)
    assert "no-store" in response["Cache-Control"]
    row = ApiKey.objects.get()
    assert row.digest == digest_of(key)
    for path in ("/admin/playground/apikey/", f"/admin/playground/apikey/{row.id}/change/"):
        shown = admin_client.get(path).content.decode()
        assert row.prefix in shown
        assert key not in shown
        assert row.digest not in shown


def test_changing_a_keys_limits_leaves_the_key_as_it_is(admin_client):
    row, key = make_key(name="x")
    url = f"/admin/playground/apikey/{row.id}/change/"
    admin_client.post(url, {"name": "y", "tokens_per_minute": "50"})
    row.refresh_from_db()
    assert (row.name, row.tokens_per_minute, row.digest) == ("y", 50, digest_of(key))


def test_the_admin_revokes_and_never_deletes(admin_client):
    row, _ = make_key(name="x")
    data = {"action": "revoke", "_selected_action": [row.id]}
    admin_client.post("/admin/playground/apikey/", data)
    row.refresh_from_db()
    assert row.revoked is not None
    assert admin_client.post(f"/admin/playground/apikey/{row.id}/delete/").status_code == 403


def test_whoever_may_not_change_keys_sees_no_page_of_them(client):
    assert client.get("/admin/playground/apikey/").status_code == 302


def test_revoking_says_which_keys_it_ended():
    first, second = make_key(name="a")[0], make_key(name="b")[0]
    assert revoke_keys(prefixes=[first.prefix, "ml-none"]) == [first.prefix]
    assert revoke_keys(prefixes=[first.prefix]) == []
    second.refresh_from_db()
    assert second.revoked is None


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("api_key", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def test_the_command_makes_lists_and_revokes():
    key = command("make", "a laptop", "--requests", "5").strip()
    row = ApiKey.objects.get()
    assert row.digest == digest_of(key)
    listed = command("list")
    assert row.prefix in listed
    assert "a laptop  never used  5 requests and" in listed
    assert key not in listed
    assert command("revoke", row.prefix) == f"revoked {row.prefix}\n"
    assert "revoked 20" in command("list")


def test_the_command_says_what_it_does_not_know():
    with pytest.raises(CommandError, match="no valid key begins with ml-none"):
        command("revoke", "ml-none")
    with pytest.raises(CommandError, match="greater than or equal to 1"):
        command("make", "x", "--tokens", "0")
