"""`/tokenize`: what a prompt is in tokens, in the shape of vLLM's endpoint of that name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine import replies
from engine.errors import RequestError
from engine.models.prompt import Prompt
from engine.serving.tokenizer_service import tokenize
from playground.admission import Caller
from playground.api.access import count
from playground.api.admission import check_capable, live_workers, workers_with
from playground.api.errors import ApiError, api_error, refusals
from playground.api.parameters import chat_prompt, flag_of, model_of, text_prompt
from playground.validation import Invalid, check_prompt_size, shown
from playground.workers import engine_redis

_KNOWN = {"model", "prompt", "suffix", "messages", "return_token_strs"}


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    model: str
    prompt: Prompt
    labels: bool


def parse_tokenize(data: Mapping[str, Any]) -> TokenizeRequest:
    """Raises ApiError."""
    try:
        unknown = next((name for name in data if name not in _KNOWN), None)
        if unknown is not None:
            message = f"Unrecognized request argument supplied: {shown(unknown)}"
            raise Invalid(message, unknown, replies.UNKNOWN_PARAMETER)
        if ("prompt" in data) == ("messages" in data):
            raise Invalid("give either prompt or messages", "prompt")
        prompt = chat_prompt(data) if "messages" in data else text_prompt(data["prompt"], data)
        check_prompt_size(prompt.text, prompt.suffix)
        return TokenizeRequest(model_of(data), prompt, flag_of(data, "return_token_strs"))
    except Invalid as error:
        raise api_error(error) from error


async def tokenize_reply(request: TokenizeRequest, caller: Caller) -> tuple[dict[str, Any], dict[str, str]]:
    """The answer, and what is left to the caller, as headers. Raises ApiError."""
    able = workers_with(request.model, await live_workers())
    check_capable(request.prompt, request.model, able)
    headers = await count(caller)
    try:
        with refusals():
            found = await tokenize(engine_redis(), request.model, request.prompt, labels=request.labels)
    except RequestError as error:
        raise ApiError(error.reply, str(error), param="prompt") from error
    answer = {
        "model": request.model,
        "count": len(found.ids),
        "max_model_len": found.context,
        "tokens": found.ids,
        "token_strs": found.labels,
    }
    return answer, headers
