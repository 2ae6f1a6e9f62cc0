"""`manage.py api_key make|list|revoke`: who may use the API."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from playground.keys import make_key, revoke_keys
from playground.models import ApiKey


class Command(BaseCommand):
    help = "Makes, lists and revokes keys to /v1."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        make = verbs.add_parser("make", help="make a key and print it, once")
        make.add_argument("name", help="whose it is, or what for")
        make.add_argument("--requests", type=int, help="requests a minute (default: LIMIT_KEY)")
        make.add_argument("--tokens", type=int, help="generated tokens a minute (default: LIMIT_KEY)")
        verbs.add_parser("list", help="show every key's beginning, name, last use and limits")
        revoke = verbs.add_parser("revoke", help="end keys for good")
        revoke.add_argument("prefixes", nargs="+", metavar="PREFIX", help="how a key begins, as `list` shows")

    def handle(self, *_: Any, **options: Any) -> None:
        match options["verb"]:
            case "make":
                self._make(options["name"], options["requests"], options["tokens"])
            case "list":
                self._list()
            case "revoke":
                self._revoke(options["prefixes"])

    def _make(self, name: str, requests: int | None, tokens: int | None) -> None:
        try:
            _, key = make_key(name=name, requests_per_minute=requests, tokens_per_minute=tokens)
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        self.stderr.write(f"The key for {name}; it is not kept, so copy it now:")
        self.stdout.write(key)

    def _list(self) -> None:
        for row in ApiKey.objects.all():
            rate = row.rate
            used = f"used {row.last_used:%Y-%m-%d %H:%M}" if row.last_used else "never used"
            limits = f"{rate.requests:,} requests and {rate.tokens:,} tokens a minute" if rate else "no limit"
            state = f"revoked {row.revoked:%Y-%m-%d %H:%M}" if row.revoked else limits
            self.stdout.write(f"{row.prefix}  {row.name}  {used}  {state}")

    def _revoke(self, prefixes: list[str]) -> None:
        changed = revoke_keys(prefixes=prefixes)
        for prefix in changed:
            self.stdout.write(f"revoked {prefix}")
        missing = sorted(set(prefixes) - set(changed))
        if missing:
            raise CommandError(
                f"no valid key begins with {', '.join(missing)}; `api_key list` shows them all"
            )
