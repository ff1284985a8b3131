"""What a page sends beside MCP: one JSON object, of bounded length."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from runner.http.responses import Refusal

__all__ = ["object_of"]


async def object_of(request: Request, *, most: int) -> Mapping[str, Any]:
    """Return the JSON object that a request carries.

    Args:
        request: The request.
        most: Longest body, in bytes.

    Raises:
        Refusal: 413, 415 or 400.
    """
    # A form of another site can be sent without being asked for, but not as this type.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refusal(415, "send JSON, as application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise Refusal(413, f"this may have up to {most} bytes")
    try:
        said = json.loads(bytes(body))
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise Refusal(400, "send one JSON object")
    return said
