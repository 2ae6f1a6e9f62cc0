"""`/dashboard/sign-in/`, `/sign-out/`, `/password/`, and the answer to an address that guesses passwords.

django-axes counts wrong passwords by address, in the database: every web process and every way in
(this page, the admin) shares the count.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from axes.helpers import get_cool_off
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.forms import AuthenticationForm, SetPasswordForm
from django.contrib.auth.views import LoginView, LogoutView, PasswordChangeView
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse_lazy
from django.utils import timezone

from config.addresses import client_address


class SignInForm(AuthenticationForm):
    def get_invalid_login_error(self) -> ValidationError:
        return ValidationError(
            "No active account has this name and password. Capital letters matter in both.",
            code="invalid_login",
        )


class SignIn(LoginView):
    """Goes back to `next` if that is a page of ours, else to the overview."""

    template_name = "dashboard/sign_in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True
    extra_context: dict[str, Any] = {"section": "sign_in"}


class PasswordChange(PasswordChangeView):
    """One's own password, for accounts that may not use the admin too. Other sessions of the account end."""

    template_name = "dashboard/password.html"
    success_url = reverse_lazy("dashboard:overview")
    extra_context: dict[str, Any] = {"section": "password"}

    def form_valid(self, form: SetPasswordForm[Any]) -> HttpResponse:
        messages.success(self.request, "Your password was changed.")
        return super().form_valid(form)


class SignOut(LogoutView):
    """By POST, as every act is."""

    next_page = "dashboard:overview"


def address_of(request: HttpRequest) -> str | None:
    """The address whose wrong passwords are counted together; None on a Unix socket."""
    peer, forwarded = (request.META.get(name) or "" for name in ("REMOTE_ADDR", "HTTP_X_FORWARDED_FOR"))
    return client_address(peer, forwarded, settings.TRUSTED_PROXIES) or None


def too_many_guesses(request: HttpRequest, *_: Any) -> HttpResponse:
    """The sign-in page with the time from which this address may try again."""
    cool_off = get_cool_off(request)
    newest = AccessAttempt.objects.filter(ip_address=address_of(request)).order_by("-attempt_time").first()
    now = timezone.now()
    until = newest.attempt_time + cool_off if newest and cool_off else now
    wait_s = max(1, round((until - now).total_seconds()))
    context = {"form": SignInForm(request), "section": "sign_in", "until": until, "wait_s": wait_s}
    response = render(request, "dashboard/sign_in.html", context, status=HTTPStatus.TOO_MANY_REQUESTS)
    response["Retry-After"] = str(wait_s)
    return response
