"""`/dashboard/sign-in/` and `/dashboard/sign-out/`."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import ValidationError

from dashboard.sign_in.throttle import WAIT_S, must_wait


class SignInForm(AuthenticationForm):
    def get_invalid_login_error(self) -> ValidationError:
        if must_wait(self.request, self.cleaned_data.get("username", "")):
            return ValidationError(
                f"Too many wrong passwords for this name; wait {WAIT_S // 60} minutes and try again.",
                code="must_wait",
            )
        return ValidationError(
            "No active account has this name and password; both tell capitals from small letters.",
            code="invalid_login",
        )


class SignIn(LoginView):
    """Goes back to `next` if that is a page of ours, else to the overview."""

    template_name = "dashboard/sign_in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True
    extra_context: dict[str, Any] = {"section": "sign_in"}


class SignOut(LogoutView):
    """By POST, as every act is."""

    next_page = "dashboard:overview"
