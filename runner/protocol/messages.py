"""One MCP message out of its JSON, whoever wrote it; and of what cannot be read, whom it concerns.

A message that cannot be read must still end something: who asked waits for an answer, and would wait until
the time limit. So the id is looked for in the text itself, without reading the rest.

Source: JSON-RPC 2.0, "Response object"; MCP specification 2025-11-25, "Base protocol".
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCMessage,
    jsonrpc_message_adapter,
)

__all__ = ["DEPTH_MAX", "Unreadable", "check_meta", "read_message"]

DEPTH_MAX = 200
"""How deep a message may nest; the JSON reader of pydantic goes no deeper."""

_TOO_DEEP = "recursion limit"

# Escapes as they follow each other, so that half of a surrogate pair is told from one in its pair, and
# from text behind a backslash that is itself escaped.
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|\\."
)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}:,]|[^\s\[\]{}:,"]+')
# Members come before what is long and deep, or after it: nobody's time is spent on what is between.
_MOST_TOKENS = 100_000
_TAIL_CHARS = 1000
_LAST_ID = re.compile(
    r'[,}\]]\s*"id"\s*:\s*(?P<id>-?\d{1,18}|"(?:[^"\\]|\\.){0,200}+")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$'
)


class Unreadable(ValueError):
    """What came is no message.

    Attributes:
        id: The id that it names; None if it names none that can be found.
        is_request: Whether it asks for something, so that whoever sent it waits for an answer.
        error: What to answer, or to take for the answer.
    """

    def __init__(self, problem: str, *, code: int, number: str | int | None, is_request: bool) -> None:
        super().__init__(problem)
        self.id = number
        self.is_request = is_request
        self.error = ErrorData(code=code, message=problem)


def read_message(text: str) -> JSONRPCMessage:
    """Return the message that a text is; half of a surrogate pair in it becomes a question mark.

    Raises:
        Unreadable: It is none.
    """
    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError as error:
        # Half of a surrogate pair, which Python writes where a string was cut, spoils no message:
        # who sent it would wait for an answer for ever.
        mended = _ESCAPE.sub(_without_half, text)
        if mended != text:
            return read_message(mended)
        raise _unreadable(text, str(error)) from error


def check_meta(params: Mapping[str, Any] | None) -> None:
    """Refuse the params of a request whose `_meta` is no object; the SDK passes on what it is not asked for.

    Raises:
        MCPError: It is none.
    """
    meta = None if params is None else params.get("_meta")
    if not (meta is None or isinstance(meta, Mapping)):
        raise MCPError(
            code=INVALID_PARAMS, message=f"params._meta must be an object, not {type(meta).__name__}"
        )


def _unreadable(text: str, problem: str) -> Unreadable:
    known = _members(text)
    is_request = "method" in known
    what = "request" if is_request else "answer"
    number = _id(known.get("id"))
    if _TOO_DEEP in problem:
        words = f"the {what} nests deeper than {DEPTH_MAX} levels, which is as deep as JSON is read here"
        return Unreadable(words, code=INVALID_REQUEST, number=number, is_request=is_request)
    words = f"the {what} is no JSON-RPC message"
    return Unreadable(words, code=PARSE_ERROR, number=number, is_request=is_request)


def _members(text: str) -> dict[str, str]:
    """Return the members of an object that are no objects or lists themselves, as they are written."""
    found: dict[str, str] = {}
    depth, key, before = 0, None, ""
    for number, match in enumerate(_TOKEN.finditer(text)):
        piece = match[0]
        if piece in "[{":
            depth += 1
        elif piece in "]}":
            depth -= 1
        elif depth == 1 and piece == ":":
            key = before
        elif depth == 1 and key is not None:
            if piece != ",":
                found[_word(key)] = piece
            key = None
        before = piece
        if number > _MOST_TOKENS:
            break
    last = _LAST_ID.search(text[-_TAIL_CHARS:])
    return found if "id" in found or last is None else {**found, "id": last["id"]}


def _id(written: str | None) -> str | int | None:
    if written is None:
        return None
    value = _value(written)
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def _word(written: str) -> str:
    value = _value(written)
    return value if isinstance(value, str) else written


def _value(written: str) -> object:
    try:
        value: object = json.loads(written)
    except ValueError:
        return None
    return value


def _without_half(escape: re.Match[str]) -> str:
    return "?" if escape["half"] else escape[0]
