"""Pushes hints to open pages. A hint names a row that changed and its version; the page reads it again."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from channels.generic.websocket import AsyncJsonWebsocketConsumer

from dashboard.accounts.access import may_look
from dashboard.live.notifications import Hint, group_of


class HintsConsumer(AsyncJsonWebsocketConsumer):
    """`/ws/dashboard/` hears of new measurements, `/ws/dashboard/?sweep=12` of that sweep run.

    Nothing that the client sends has an effect: pages are readable by everyone who can open them, and
    whatever changes state is a POST.
    """

    async def connect(self) -> None:
        if not may_look(self.scope.get("user")):
            await self.close(code=4403)
            return
        sweep = parse_qs(self.scope["query_string"].decode("ascii", "replace")).get("sweep", [""])[0]
        if sweep and not (sweep.isascii() and sweep.isdecimal() and len(sweep) < 19):
            await self.close(code=4400)
            return
        self.groups_joined = [group_of(int(sweep) if sweep else None)]
        for group in self.groups_joined:
            await self.channel_layer.group_add(group, self.channel_name)
        await self.accept()

    async def disconnect(self, code: int) -> None:  # noqa: ARG002
        for group in getattr(self, "groups_joined", ()):
            await self.channel_layer.group_discard(group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: Any) -> None:
        """Drops what the client sends."""

    async def dashboard_hint(self, event: dict[str, Any]) -> None:
        hint: Hint = event["hint"]
        await self.send_json(hint)
