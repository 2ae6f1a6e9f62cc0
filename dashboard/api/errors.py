"""Refusals as JSON: {"error": {"message": …, "field": …}}."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Concatenate, ParamSpec

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


class ApiError(Exception):
    """`field` is the parameter that it is about, if it is about one."""

    def __init__(self, status: HTTPStatus, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field

    def response(self) -> JsonResponse:
        return JsonResponse({"error": {"message": str(self), "field": self.field}}, status=self.status)


def not_found(what: str, key: object) -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, f"There is no {what} {key}.")


def first_problem(form: forms.Form) -> ApiError:
    """The first of a form's errors."""
    field, errors = next(iter(form.errors.items()))
    message = str(errors[0])
    named = None if field == "__all__" else field
    return ApiError(HTTPStatus.BAD_REQUEST, f"{named}: {message}" if named else message, named)


def read_only(view: View[P]) -> View[P]:
    """GET and HEAD only; an ApiError becomes its response."""

    @wraps(view)
    def answer(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        try:
            return view(request, *args, **kwargs)
        except ApiError as error:
            return error.response()

    return answer
