"""Who may look at the dashboard: everybody, or, with DASHBOARD_PUBLIC off, whoever is signed in.

Starting, cancelling, handling and managing need their own permissions in either case.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import resolve_url
from django.utils.deprecation import MiddlewareMixin

PAGES, API = "dashboard", "dashboard_api"
PUSHED = "api/runs"
OPEN = ("sign_in",)
"""The names of the pages that everybody may see."""


class DashboardAccess(MiddlewareMixin):
    """Stands after the middleware that knows the user, and asks those who must sign in to do so."""

    def process_view(self, request: HttpRequest, *_: Any) -> HttpResponse | None:
        match = request.resolver_match
        if match is None or match.namespace not in (PAGES, API) or match.url_name in OPEN:
            return None
        if may_look(request.user) or (match.route == PUSHED and request.method == "POST"):
            return None  # a push has a token of its own
        if match.namespace == PAGES:
            return redirect_to_login(request.get_full_path(), resolve_url(settings.LOGIN_URL))
        message = "This dashboard is not public; sign in, and send the session's cookie."
        return JsonResponse({"error": {"message": message, "field": None}}, status=HTTPStatus.UNAUTHORIZED)


def may_look(user: Any) -> bool:
    """`user` as a request or a websocket's scope has it; None is nobody."""
    return settings.DASHBOARD_PUBLIC or bool(user is not None and user.is_authenticated)
