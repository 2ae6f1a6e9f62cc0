"""Lets pages of other sites read the API: it sends no cookie along, so they see what strangers see."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

READS = ("GET", "HEAD", "OPTIONS")
PREFIX = "/api/"


class ReadableFromAnywhere(MiddlewareMixin):
    """CORS for reads. A push has a token and comes from no browser."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        if request.method != "OPTIONS" or not request.path.startswith(PREFIX):
            return None
        allowed = {"Access-Control-Allow-Methods": "GET, HEAD", "Access-Control-Allow-Headers": "Accept"}
        return HttpResponse(status=HTTPStatus.NO_CONTENT, headers={"Allow": "GET, HEAD", **allowed})

    def process_response(self, request: HttpRequest, response: Any) -> Any:
        if request.method in READS and request.path.startswith(PREFIX):
            response["Access-Control-Allow-Origin"] = "*"
        return response
