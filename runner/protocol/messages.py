"""One MCP message parsed from untrusted JSON; and, for unreadable ones, the request they belong to.

A message that cannot be parsed must still end its request, or the sender would wait until the time limit. So
its id is searched in the text itself, without parsing the rest.

The sender of a message determines the cost of parsing it. So its values are counted first, and no code here
reads a character twice.

Source: JSON-RPC 2.0, "Response object"; MCP specification 2025-11-25, "Base protocol".
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import pydantic_core
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCMessage,
    jsonrpc_message_adapter,
)

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
"""Deepest nesting of a message; the JSON reader of pydantic has this limit."""

# A byte-order mark, which .NET and PowerShell write before a text.
_BOM = b"\xef\xbb\xbf"
_TOO_DEEP = "recursion limit"
_DEEP = f"nests deeper than {DEPTH_MAX} levels, which is as deep as JSON is read here"
_ODD = "is not a JSON-RPC message"

MOST_VALUES = 1_000_000
"""Of how many values a message may be made; a list counts for itself too.

So many numbers take 0.03 s to read, so many lists 0.2 s, so many different names a second.
"""

_MANY = f"is made of more than {MOST_VALUES:,} values, which is as many as are read of one message"

# Half of a surrogate pair. Each branch begins alike, so that only what may be one is looked at.
_HALF = re.compile(
    r"\\u[dD](?:"
    r"[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2}"
    r")"
)
# What no JSON holds stands for a backslash that is itself escaped, while escapes are looked for.
_NO_ESCAPE = "\0\0"
# A string that is never closed goes on to the end: a quote within it costs no second look.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}:,]|[^\s\[\]{}:,"]+', re.DOTALL)
# Members come before what is long and deep, or after it: no time is spent on what is between.
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
_LAST_ID = re.compile(
    r'[,}\]]\s*"id"\s*:\s*(?P<id>-?\d{1,18}|"(?:[^"\\]|\\.){0,200}+")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$'
)


class Unreadable(ValueError):
    """Input that is not a message.

    Attributes:
        id: The id that it names; None if it names none that can be found.
        is_request: Whether it is a request, so that its sender waits for an answer.
        error: What to answer, or to take for the answer.
    """

    def __init__(self, problem: str, *, code: int, number: str | int | None, is_request: bool) -> None:
        super().__init__(problem)
        self.id = number
        self.is_request = is_request
        self.error = ErrorData(code=code, message=problem)


def read_message(text: str | bytes) -> JSONRPCMessage:
    """Return the message that a text is.

    Half of a surrogate pair in it becomes a question mark, and invalid UTF-8 becomes U+FFFD. An answer with a
    small fault is repaired, since nothing else would end its request.

    Raises:
        Unreadable: It is not a message, nests too deeply, or has too many values.
    """
    # As it came: a text of other letters takes four times the memory, and four times as long to read.
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    check_values(raw)
    try:
        value = _json(raw.removeprefix(_BOM))
        # Read first and judged then: at once, each value is made as often as there are kinds of messages.
        try:
            return jsonrpc_message_adapter.validate_python(value, by_name=False)
        except pydantic_core.ValidationError:
            return jsonrpc_message_adapter.validate_python(_whole_answer(value), by_name=False)
    except ValueError as error:
        # What an error of pydantic says is not asked for: it writes out all that it is about.
        too_deep = not isinstance(error, pydantic_core.ValidationError) and _TOO_DEEP in str(error)
        problem, code = (_DEEP, INVALID_REQUEST) if too_deep else (_ODD, PARSE_ERROR)
        raise _unreadable(raw, problem, code) from error


def _whole_answer(value: object) -> object:
    """Return an answer with the members that a server left out or wrote otherwise; else the value itself."""
    # A batch of JSON-RPC, of revision 2025-03-26, may be one answer.
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
    """Refuse a message that is made of too many values, before it is read.

    Raises:
        Unreadable: It is.
    """
    if values_above(text, MOST_VALUES):
        raise _unreadable(text, _MANY, INVALID_REQUEST)


def too_long(head: bytes, tail: bytes, most_bytes: int) -> Unreadable:
    """Return the error text for an overlong message.

    Args:
        head: Its first `HEAD_BYTES`.
        tail: Its last `TAIL_BYTES`.
        most_bytes: How long one may be.
    """
    words = f"has more than {most_bytes:,} bytes, which is as long as it may be"
    return _unreadable(head + tail, f"{words}; ask for less, or raise max_payload_bytes", INVALID_REQUEST)


def check_meta(params: Mapping[str, Any] | None) -> None:
    """Refuse the params of a request whose `_meta` is not an object; the SDK does not check it.

    Raises:
        MCPError: It is not an object.
    """
    meta = None if params is None else params.get("_meta")
    if not (meta is None or isinstance(meta, Mapping)):
        raise MCPError(
            code=INVALID_PARAMS, message=f"params._meta must be an object, not {type(meta).__name__}"
        )


def check_name(method: str, params: Mapping[str, Any] | None) -> None:
    """Refuse the params of a request for a tool, prompt or resource that is not named by a string.

    Raises:
        MCPError: It is not.
    """
    member = _NAMED_BY.get(method)
    named = "" if params is None or member is None else params.get(member, "")
    if not isinstance(named, str):
        # The text of a list may be as long as a message.
        message = f"params.{member} must be a string, not {type(named).__name__}"
        raise MCPError(code=INVALID_PARAMS, message=message)


def _json(raw: bytes) -> object:
    try:
        return pydantic_core.from_json(raw)
    except ValueError:
        # Half of a surrogate pair, which Python writes where a string was cut, spoils no message, and neither
        # does invalid UTF-8: its sender would wait for an answer for ever.
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
    known = _members(head, tail)
    is_request = "method" in known
    words = f"the {'request' if is_request else 'answer'} {problem}"
    return Unreadable(words, code=code, number=_id(known.get("id")), is_request=is_request)


def _members(head: str, tail: str) -> dict[str, str]:
    """Return the scalar members of an object, as they are written.

    Args:
        head: How its text begins.
        tail: How it ends; of this, only the id is looked for.
    """
    found: dict[str, str] = {}
    depth, key, before = 0, None, ""
    for number, match in enumerate(_TOKEN.finditer(head)):
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
    last = _LAST_ID.search(tail)
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
