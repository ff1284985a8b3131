"""Parser of MCP messages in untrusted JSON, and finder of the request that an unreadable one belongs to.

A message that cannot be parsed must still end its request, or the sender would wait until the time limit. So
its id is searched for in the raw text, without parsing the rest.

The sender of a message determines the cost of parsing it. So its values are counted first, and no code here
reads a character twice.

Source: JSON-RPC 2.0, "Response object"; MCP specification 2025-11-25, "Base protocol".
"""

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

import pydantic_core
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCMessage,
    jsonrpc_message_adapter,
)

from runner.formats.json_walks import least_chars
from sandbox.strict_json import values_above

__all__ = [
    "DEPTH_MAX",
    "HEAD_BYTES",
    "MOST_VALUES",
    "TAIL_BYTES",
    "Unreadable",
    "check_meta",
    "check_name",
    "check_values",
    "read_message",
    "too_long",
]

DEPTH_MAX = 200
"""Deepest nesting of a message; the JSON parser of pydantic has this limit."""

# A byte-order mark, which .NET and PowerShell write before a text.
_BOM = b"\xef\xbb\xbf"
_TOO_DEEP = "recursion limit"
_DEEP = f"nests deeper than {DEPTH_MAX} levels, which is as deep as JSON is read here"
_ODD = "is not a JSON-RPC message"

MOST_VALUES = 1_000_000
"""Most values of a message; a list counts as one besides its items.

Parsing this many numbers takes 0.03 s, this many lists 0.2 s, this many distinct names one second.
"""

_MANY = f"is made of more than {MOST_VALUES:,} values, which is as many as are read of one message"

# A lone surrogate. The branches have a common prefix, so that no other text is examined.
_HALF = re.compile(
    r"\\u[dD](?:"
    r"[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2}"
    r")"
)
# Stand-in for an escaped backslash while escapes are searched; JSON cannot contain it.
_NO_ESCAPE = "\0\0"
# An unterminated string extends to the end, so that no quote in it is examined twice.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}:,]|[^\s\[\]{}:,"]+', re.DOTALL)
# `id` and `method` come before or after long and deep content, so its middle is not scanned.
_MOST_TOKENS = 30_000
HEAD_BYTES = 1 << 20
"""Bytes at the beginning of an unreadable message that are searched for its id and method."""
TAIL_BYTES = 1000
"""Bytes at its end that are searched."""
_NAMED_BY = {
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
    "tools/call": "name",
}
# Most characters of values that are kept or repeated. Each call sends the description of the client to its
# worker, the proxy keeps it with a connection, and each progress report has the token.
_ABOUT_CLIENT = 1 << 18
_MOST_CHARS = {
    "capabilities": _ABOUT_CLIENT,
    "clientInfo": _ABOUT_CLIENT,
    CLIENT_CAPABILITIES_META_KEY: _ABOUT_CLIENT,
    CLIENT_INFO_META_KEY: _ABOUT_CLIENT,
    "progressToken": 1024,
}
_LAST_ID = re.compile(
    r'[,}\]]\s*"id"\s*:\s*(?P<id>-?\d{1,18}|"(?:[^"\\]|\\.){0,200}+")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$'
)


class Unreadable(ValueError):
    """Input that is not a message.

    Attributes:
        id: Its id; None if none can be found.
        is_request: Whether it is a request, so that its sender waits for an answer.
        error: The error to answer a request with, or to use in place of an unreadable answer.
    """

    def __init__(self, problem: str, *, code: int, number: str | int | None, is_request: bool) -> None:
        super().__init__(problem)
        self.id = number
        self.is_request = is_request
        self.error = ErrorData(code=code, message=problem)


def read_message(text: str | bytes) -> JSONRPCMessage:
    """Return the message in a text.

    A lone surrogate becomes a question mark, and invalid UTF-8 becomes U+FFFD. An answer with a small fault
    is repaired, since nothing else would end its request.

    Raises:
        Unreadable: It is not a message, nests too deeply, or has too many values.
    """
    # As bytes: a str with non-Latin letters takes four times the memory, and four times as long to parse.
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    check_values(raw)
    try:
        value = _json(raw.removeprefix(_BOM))
        # Parse first, then validate: in one step, pydantic would build each value once per message type.
        try:
            return jsonrpc_message_adapter.validate_python(value, by_name=False)
        except pydantic_core.ValidationError:
            return jsonrpc_message_adapter.validate_python(_whole_answer(value), by_name=False)
    except ValueError as error:
        # Not the text of a ValidationError: pydantic would format the whole input.
        too_deep = not isinstance(error, pydantic_core.ValidationError) and _TOO_DEEP in str(error)
        problem, code = (_DEEP, INVALID_REQUEST) if too_deep else (_ODD, PARSE_ERROR)
        raise _unreadable(raw, problem, code) from error


def _whole_answer(value: object) -> object:
    """Return an answer with its missing or malformed members repaired; any other value unchanged."""
    # A JSON-RPC batch (revision 2025-03-26) may hold a single answer.
    answer = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(answer, dict) or "method" in answer or not ("result" in answer or "error" in answer):
        return value
    made, failure, number = {**answer, "jsonrpc": "2.0"}, answer.get("error"), answer.get("id")
    if isinstance(number, float) and number.is_integer():
        made["id"] = int(number)
    if failure is None:
        made.pop("error", None)
        return made
    made.pop("result", None)
    about = failure if isinstance(failure, dict) else {"message": failure}
    code, message = about.get("code"), about.get("message", about.get("code", "it did not say why"))
    made["error"] = {
        **about,
        "code": code if type(code) is int else INTERNAL_ERROR,
        "message": message if isinstance(message, str) else json.dumps(message),
    }
    return made


def check_values(text: bytes) -> None:
    """Refuse a message with more than `MOST_VALUES` values, before it is parsed.

    Raises:
        Unreadable: It has more.
    """
    if values_above(text, MOST_VALUES):
        raise _unreadable(text, _MANY, INVALID_REQUEST)


def too_long(head: bytes, tail: bytes, most_bytes: int) -> Unreadable:
    """Return the error for an overlong message.

    Args:
        head: Its first `HEAD_BYTES`.
        tail: Its last `TAIL_BYTES`.
        most_bytes: The limit.
    """
    words = f"has more than {most_bytes:,} bytes, which is as long as it may be"
    return _unreadable(head + tail, f"{words}; ask for less, or raise max_payload_bytes", INVALID_REQUEST)


def check_meta(params: Mapping[str, Any] | None) -> None:
    """Refuse params whose `_meta` is not an object or whose description of the client is too long.

    The SDK checks neither.

    Raises:
        MCPError: They are refused.
    """
    meta = None if params is None else params.get("_meta")
    if not (meta is None or isinstance(meta, Mapping)):
        raise MCPError(
            code=INVALID_PARAMS, message=f"params._meta must be an object, not {type(meta).__name__}"
        )
    for about, (key, most) in itertools.product((params or {}, meta or {}), _MOST_CHARS.items()):
        if least_chars(about.get(key), most) > most:
            raise MCPError(code=INVALID_PARAMS, message=f"{key} has more than {most:,} characters")


def check_name(method: str, params: Mapping[str, Any] | None) -> None:
    """Refuse a request for a tool, prompt or resource whose name or URI is not a string.

    Raises:
        MCPError: It is not a string.
    """
    member = _NAMED_BY.get(method)
    named = "" if member is None else (params or {}).get(member)
    if not isinstance(named, str):
        # Only the type: the value may be as long as a message.
        problem = "is missing" if named is None else f"must be a string, not {type(named).__name__}"
        message = f"params.{member} {problem}"
        raise MCPError(code=INVALID_PARAMS, message=message)


def _json(raw: bytes) -> object:
    try:
        return pydantic_core.from_json(raw)
    except ValueError:
        # Repair lone surrogates, which Python writes where a string was cut, and invalid UTF-8: otherwise the
        # sender would wait for an answer for ever.
        repaired = _repaired(raw.decode("utf-8", "replace")).encode()
        if repaired == raw:
            raise
    return pydantic_core.from_json(repaired)


def _repaired(text: str) -> str:
    halves = text.count(r"\ud") + text.count(r"\uD")
    if not halves or halves > MOST_VALUES or "\0" in text:
        return text
    bare = text.replace("\\\\", _NO_ESCAPE)
    return _HALF.sub("?", bare).replace(_NO_ESCAPE, "\\\\")


def _unreadable(raw: bytes, problem: str, code: int) -> Unreadable:
    head, tail = (part.decode("utf-8", "replace") for part in (raw[:HEAD_BYTES], raw[-TAIL_BYTES:]))
    number, is_request = _id_and_kind(head, tail)
    words = f"the {'request' if is_request else 'answer'} {problem}"
    return Unreadable(words, code=code, number=number, is_request=is_request)


def _id_and_kind(head: str, tail: str) -> tuple[str | int | None, bool]:
    """Return the id of an object, and whether it has a method.

    Args:
        head: Beginning of its text.
        tail: End of its text, which is searched for the id only.
    """
    written, is_request, depth, key, before = "", False, 0, "", ""
    for match in itertools.islice(_TOKEN.finditer(head), _MOST_TOKENS):
        piece = match[0]
        if piece in "[{":
            depth += 1
        elif piece in "]}":
            depth -= 1
        elif depth == 1 and piece == ":":
            key = before
        elif depth == 1 and key:
            if key == '"id"' and piece != ",":
                written = piece
            is_request = is_request or key == '"method"'
            key = ""
        before = piece
    last = None if written else _LAST_ID.search(tail)
    try:
        number = json.loads(written if last is None else last["id"])
    except ValueError:
        return None, is_request
    return (number if type(number) in (int, str) else None), is_request
