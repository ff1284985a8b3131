"""View of a result for a model: no bytes, keys or tokens, and no oversized facts.

`_meta` has all facts. If a tool's output schema requires `meta_data`, the structured content has a minimal
one that satisfies the schema.

Source: contradiction C12; MCP specification 2025-11-25, tools, "Output Schema"; requirements S0-4, S0-19,
S0-23, S2-2, S2-7, S2-9, S2-11 and S2-36 to S2-39.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from runner.contract.jsonable import list_of, mapping_of, without
from runner.contract.models import FILE_LISTS
from runner.contract.normalise import is_small_meta_data, parsed
from runner.output_guard.schema_fit import satisfies, shortened

__all__ = ["CARRIED", "briefed", "compact_json", "legible", "little", "model_view", "own_structured"]

CARRIED = ("b64", "s3_ref", "path")
"""The keys of a file's entry that hold its bytes or their location."""

# The two spellings of a page beside the chat.
_PAGES = ("canvas", "display")
_WITHHELD = "withheld"
# Facts of an error that a model reads even if all facts together are too large for it.
_ALWAYS_READ = ("is_error", "reason", "error_code", "retryable")
# The contract's spelling, and that of its version 1.
_SPELLINGS = ("meta_data", "meta-data")
_FLAG = "meta_data_truncated"
# One encoder for all: making it takes longer than writing a small message.
compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Returns a value as JSON in one line, without blanks."""


def model_view(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a contract value for a model: without bytes, keys, tokens and oversized facts."""
    view = briefed(value)
    for key in FILE_LISTS:
        if key in view:
            entries = list_of(view[key])
            view[key] = [without(entry, *CARRIED) for entry in entries if isinstance(entry, Mapping)]
    return view


def briefed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a contract value without tokens and without facts too large for a model."""
    return _tokenless(_brief(value))


def own_structured(own: Any, schema: Mapping[str, Any] | None) -> Any:
    """Return a tool's own structured content for a model; None if no such form fits its schema."""
    known = schema or {}
    is_wrapped = bool(known.get("x-fastmcp-wrap-result")) and mapping_of(own).keys() == {"result"}
    inner = own["result"] if is_wrapped else own
    if not _is_envelope(inner):
        return own

    def outside(value: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"result": value} if is_wrapped else value

    short = _fitting(_masked(inner), lambda value: satisfies(outside(value), known, was=own))
    return None if short is None else outside(short)


def legible(text: str, *, own: bool) -> str:
    """Return a tool's text for a model; a contract value in it is reduced.

    Args:
        text: The text, with references in place of accepted files.
        own: Whether it represents the result. Otherwise its files were not accepted: their bytes are dropped.
    """
    value = parsed(text)
    if not _is_envelope(value):
        return text
    view = briefed(value) if own else without(model_view(value), "returned_file_contents")
    return text if view == value else compact_json(view)


def little(meta_data: object) -> dict[str, Any]:
    """Return the parts of oversized facts that a model needs, or nothing if those are too large as well."""
    if not isinstance(meta_data, Mapping):
        return {}
    facts: dict[str, Any] = {}
    if meta_data.get("is_error") is True:
        facts = {key: meta_data[key] for key in _ALWAYS_READ if isinstance(meta_data.get(key), bool | str)}
    errors = meta_data.get("artifact_errors")
    refused = [
        {key: item.get(key) for key in ("name", "reason")}
        for item in (errors if isinstance(errors, list) else ())
        if isinstance(item, Mapping)
    ]
    facts |= {"artifact_errors": refused} if refused else {}
    return facts if is_small_meta_data(facts) else {}


def _brief(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a contract value with `little` of facts that are too large for a model, and a flag."""
    view = {**value}
    for key in _large(value):
        facts = little(view.pop(key))
        view |= ({"meta_data": facts} if facts else {}) | {_FLAG: True}
    return view


def _fitting(value: Mapping[str, Any], fits: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any] | None:
    """Return a contract value with short facts that satisfies its tool's schema, or None if there is none.

    Args:
        value: The value, as the tool wrote it.
        fits: Returns whether a value satisfies the schema.
    """
    large = _large(value)
    if not large:
        return {**value}
    flagged = _brief(value)
    bare = {key: item for key, item in flagged.items() if key != _FLAG}
    reduced = {**value, **{key: little(value[key]) for key in large}}
    for made in (flagged, bare, reduced):
        if fits(made):
            return made
    made = {**value}
    for key in large:
        made = _pruned(made, key, fits)
    return None if _large(made) else made


def _large(value: Mapping[str, Any]) -> list[str]:
    return [key for key in _SPELLINGS if key in value and not is_small_meta_data(value[key])]


def _pruned(value: Mapping[str, Any], key: str, fits: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    """Return a value with small facts: the largest are left out or shortened, as its schema allows."""
    facts = value[key]
    if not isinstance(facts, Mapping):
        return {**value}
    made = {**facts}
    for name in sorted(facts, key=lambda each: len(json.dumps(facts[each])), reverse=True):
        if is_small_meta_data(made):
            break
        without = {each: item for each, item in made.items() if each != name}
        few = {**made, name: shortened(facts[name], text_chars=40, items_chars=100)}
        none = {**made, name: shortened(facts[name], text_chars=40, items_chars=0)}
        made = next((each for each in (without, few, none) if fits({**value, key: each})), made)
    return {**value, key: made}


def _is_envelope(value: object) -> bool:
    return isinstance(value, dict) and ("results" in value or "artifacts" in value)


def _masked(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's own value with tokens replaced by a word, so that it still fits the tool's schema."""
    pages = {key: page for key, page in _pages(own).items() if isinstance(page.get("token"), str)}
    return {**own} | {key: {**page, "token": _WITHHELD} for key, page in pages.items()}


def _tokenless(value: dict[str, Any]) -> dict[str, Any]:
    return value | {key: without(page, "token") for key, page in _pages(value).items()}


def _pages(value: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {key: value[key] for key in _PAGES if isinstance(value.get(key), Mapping)}
