"""Common parts of responses of the files API: safe headers, and refusals.

A response may hold bytes from anybody, so no browser may run, sniff or cache it.

Source: RFC 9110 section 15; the design's notes on shown content; requirements S0-52, S0-53.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from runner.contract.own_paths import OwnPaths
from runner.contract.unexpected_errors import unexpected
from runner.errors import CallError, Code
from runner.http.whole import note_left

__all__ = ["SAFE_HEADERS", "Refusal", "fails", "left", "of_call_error", "refused", "refuses"]

Refuses = Callable[[Request, Exception], Coroutine[Any, Any, JSONResponse]]

SAFE_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_STATUS = {
    Code.E_FILE_TOO_LARGE: 413,
    Code.E_QUOTA: 507,
    Code.E_FILE_NOT_FOUND: 404,
    Code.E_BUSY: 429,
    Code.E_STORE: 503,
}
_RETRY_S = {429: "1", 503: "5"}


class Refusal(Exception):
    """A refused request.

    Attributes:
        status: Status of the answer.
        sentence: What is wrong, and what to do.
        headers: Further headers of the answer.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = dict(headers or {})


def refused(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return a refusal with its reason."""
    later = {"Retry-After": _RETRY_S[status]} if status in _RETRY_S else {}
    return JSONResponse(
        {"error": sentence}, status_code=status, headers={**SAFE_HEADERS, **later, **(headers or {})}
    )


def of_call_error(error: CallError) -> Refusal:
    """Return the refusal for an error of the store."""
    later = error.details.get("retry_after_seconds")
    # Only a number, which is ours: details from a tool could hold any text.
    headers = {"Retry-After": str(later)} if type(later) in (int, float) else {}
    return Refusal(_STATUS.get(error.code, 400), error.message, headers)


def refuses(own_paths: OwnPaths) -> Refuses:
    """Return an exception handler for refused requests.

    Args:
        own_paths: Paths of the server to redact.
    """
    return partial(_refuse, own_paths)


async def _refuse(own_paths: OwnPaths, _: Request, error: Exception) -> JSONResponse:
    refusal = of_call_error(error) if isinstance(error, CallError) else error
    if not isinstance(refusal, Refusal):
        raise error
    return refused(refusal.status, str(own_paths.redact(refusal.sentence)), refusal.headers)


async def fails(_: Request, error: Exception) -> JSONResponse:
    """Answer a request that failed through a fault of ours. A Starlette exception handler."""
    failure = unexpected(error)
    return refused(500, f"{failure.message}. {failure.details['suggestion']}", {})


async def left(request: Request, _error: Exception) -> Response:
    """Return an empty response: the client disconnected before its request was complete."""
    note_left(request.scope)
    return Response(status_code=400)
