"""Who may use the playground: everybody, or, with PLAYGROUND_PUBLIC off, whoever is signed in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import resolve_url

P = ParamSpec("P")
R = TypeVar("R", bound=HttpResponseBase)
View = Callable[Concatenate[HttpRequest, P], Coroutine[Any, Any, R]]


def members_only(view: View[P, R]) -> View[P, R | HttpResponseBase]:
    """Sends strangers to the sign-in where the playground is not public."""

    @functools.wraps(view)
    async def answer(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> R | HttpResponseBase:
        if settings.PLAYGROUND_PUBLIC or may_use(await request.auser()):
            return await view(request, *args, **kwargs)
        return redirect_to_login(request.get_full_path(), resolve_url(settings.LOGIN_URL))

    return answer  # type: ignore[return-value]  # functools.wraps gives `request` a name


def may_use(user: Any) -> bool:
    """`user` as a request or a websocket's scope has it; None is nobody."""
    return settings.PLAYGROUND_PUBLIC or bool(user is not None and user.is_authenticated)
