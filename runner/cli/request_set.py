"""Requests that the Playground saved as a file, with what is expected of each, and what was not as expected.

They are read as the page reads them, and so is an answer: what a request passes there it passes here.

Source: `docs/playground.md`, "Work that is kept"; `runner/playground/web/src/model/expectations.ts`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Literal, get_args

import jsonschema
from referencing import Registry

from runner.contract.loose_json import list_of, mapping_of
from runner.errors import UsageError

__all__ = ["Kind", "SavedRequest", "faults_of", "read_requests"]

Kind = Literal["tool", "prompt", "resource"]

_FORMAT = "toolcell-requests"
_STATUSES = ("done", "failed")
_PATTERN = re.compile(r"/(.+)/([imsu]*)", re.DOTALL)
_SEARCHED_CHARS = 100_000
_TOLD_FAULTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRequest:
    """A request, and what is to come of it.

    Attributes:
        name: Its name; with its folder, where it is in one.
        server: The server that it was made for, as the page called it; may be empty.
        kind: What is asked for.
        target: Name of the tool or the prompt, or URI of the resource.
        arguments: The arguments.
        expected: `status`, `text`, `schema`, `artifact`; what is left out is not looked at.
    """

    name: str
    server: str
    kind: Kind
    target: str
    arguments: Mapping[str, Any]
    expected: Mapping[str, Any]


def read_requests(text: str) -> list[SavedRequest]:
    """Read a file of requests.

    Raises:
        UsageError: It is none, or a request in it cannot be one.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the requests cannot be read: they are no JSON: {error}") from None
    if not isinstance(value, Mapping) or value.get("format") != _FORMAT:
        raise UsageError(
            "this is no file of requests: the Playground writes one under Saved, with “Save as file”"
        )
    listed = value.get("requests")
    if not isinstance(listed, list) or not listed:
        raise UsageError("there are no requests in the file")
    return [_request(item, at) for at, item in enumerate(listed, 1)]


def _request(item: object, at: int) -> SavedRequest:
    said = mapping_of(item)
    kind: Any = said.get("kind")
    target = said.get("target")
    arguments, expected = said.get("args", {}), said.get("expect", {})
    if kind not in get_args(Kind) or not isinstance(target, str) or not target:
        raise UsageError(f"request {at} lacks a kind ({', '.join(get_args(Kind))}) or a target")
    if not isinstance(arguments, Mapping) or not isinstance(expected, Mapping):
        raise UsageError(f"request {at} ({target}): args and expect are objects")
    if expected.get("status", "done") not in _STATUSES:
        raise UsageError(f"request {at} ({target}): status is one of {', '.join(_STATUSES)}")
    folder, name = str(said.get("folder") or ""), str(said.get("name") or target)
    return SavedRequest(
        name=f"{folder}/{name}" if folder else name,
        server=str(said.get("server") or ""),
        kind=kind,
        target=target,
        arguments=arguments,
        expected=expected,
    )


def faults_of(request: SavedRequest, result: Mapping[str, Any] | None, problem: str = "") -> list[str]:
    """Return what is not as expected, a sentence each. Where nothing is expected, an end without error is.

    Args:
        request: The request.
        result: The result that the server sent; None where it sent an error, or none.
        problem: That error's message.
    """
    status = "done" if result is not None and not result.get("isError") else "failed"
    text = problem if result is None else _text_of(result)
    expected = request.expected
    found = []
    if status != expected.get("status", "done"):
        why = f": {text.splitlines()[0]}" if status == "failed" and text else ""
        found.append(f"it is {status}, expected {expected.get('status', 'done')}{why}")
    if expected.get("text") and not _contains(text, str(expected["text"])):
        found.append(f"its text lacks “{expected['text']}”")
    if expected.get("artifact"):
        names = list(_file_names(_contract_of(result or {})))
        if not any(re.match(_name_pattern(str(expected["artifact"])), name) for name in names):
            found.append(f"no file {expected['artifact']} among {', '.join(names) or 'none'}")
    if isinstance(expected.get("schema"), Mapping):
        found += _schema_faults(expected["schema"], result)
    return found


def _text_of(result: Mapping[str, Any]) -> str:
    """Return what a model reads of a result; of a resource its texts, of a prompt its messages."""
    parts = [
        str(block.get("text")) if block.get("type") == "text" else json.dumps(block, ensure_ascii=False)
        for block in _mappings(result.get("content"))
    ]
    parts += [str(each.get("text", "")) for each in _mappings(result.get("contents"))]
    if "messages" in result:
        parts.append(json.dumps(result["messages"], ensure_ascii=False, separators=(",", ":")))
    return "\n".join(parts)


def _contains(text: str, wanted: str) -> bool:
    pattern = _PATTERN.fullmatch(wanted)
    if pattern is None:
        return wanted in text
    flags = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "u": re.UNICODE}
    try:
        found = re.compile(pattern[1], sum({flags[each] for each in pattern[2]}))
    except re.error:
        return False
    return found.search(text[:_SEARCHED_CHARS]) is not None


def _name_pattern(wanted: str) -> str:
    # Only the star stands for something.
    return translate(re.sub(r"([\[?])", r"[\1]", wanted))


def _contract_of(result: Mapping[str, Any]) -> Mapping[str, Any]:
    kept = mapping_of(result.get("_meta")).get("toolcell/result")
    return mapping_of(result.get("structuredContent") if kept is None else kept)


def _file_names(contract: Mapping[str, Any]) -> Iterator[str]:
    for key in ("artifacts", "deferred_artifacts"):
        for each in _mappings(contract.get(key)):
            if str(each.get("uri", "")).startswith("artifact://"):
                yield str(each.get("name", each["uri"]))


def _schema_faults(schema: Mapping[str, Any], result: Mapping[str, Any] | None) -> list[str]:
    value: object = result
    if result is not None:
        structured = result.get("structuredContent")
        value = structured if structured is not None else _contract_of(result) or result
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        # Nothing is fetched or read for it: sets are passed around.
        errors = list(jsonschema.Draft202012Validator(schema, registry=Registry()).iter_errors(value))
    except Exception as error:  # noqa: BLE001 - whatever a reference in it leads to, or a pattern of it is
        return [f"the schema cannot be used: {str(error).splitlines()[0]}"]
    return [f"{error.json_path}: {error.message}" for error in errors[:_TOLD_FAULTS]]


def _mappings(value: object) -> Sequence[Mapping[str, Any]]:
    return [each for each in list_of(value) if isinstance(each, Mapping)]
