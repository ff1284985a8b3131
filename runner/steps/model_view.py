"""View of a result for a model: no bytes, keys or tokens, and no oversized facts.

Source: requirements S0-4, S0-19, S0-23, S2-2, S2-7, S2-9, S2-11 and S2-36 to S2-39.
"""

import json
from collections.abc import Mapping
from typing import Any

from runner.contract.jsonable import list_of, mapping_of, without
from runner.contract.models import FILE_LISTS
from runner.contract.normalise import parsed
from runner.output_guard.schema_fit import satisfies
from runner.steps.short_meta_data import brief, fitting

__all__ = ["CARRIED", "briefed", "compact_json", "legible", "model_view", "own_structured"]

CARRIED = ("b64", "s3_ref", "path")
"""The keys by which an entry of a file carries its bytes, or says where they are."""

# The two spellings of a page beside the chat.
_PAGES = ("canvas", "display")
_WITHHELD = "withheld"
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
    return _tokenless(brief(value))


def own_structured(own: Any, schema: Mapping[str, Any] | None) -> Any:
    """Return a tool's own structured content as a model may read it; None if nothing such fits its schema."""
    known = schema or {}
    is_wrapped = bool(known.get("x-fastmcp-wrap-result")) and mapping_of(own).keys() == {"result"}
    inner = own["result"] if is_wrapped else own
    if not _is_envelope(inner):
        return own

    def outside(value: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"result": value} if is_wrapped else value

    short = fitting(_masked(inner), lambda value: satisfies(outside(value), known, was=own))
    return None if short is None else outside(short)


def legible(text: str, *, own: bool) -> str:
    """Return a tool's text as a model may read it, where it is a contract value.

    Args:
        text: The text, with references in place of the files that were accepted.
        own: Whether it stands for the result. Files of any other text were not accepted: their bytes go.
    """
    value = parsed(text)
    if not _is_envelope(value):
        return text
    view = briefed(value) if own else without(model_view(value), "returned_file_contents")
    return text if view == value else compact_json(view)


def _is_envelope(value: object) -> bool:
    return isinstance(value, dict) and ("results" in value or "artifacts" in value)


def _masked(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's own value with a word in place of a token, so that it still fits the tool's schema."""
    pages = {key: page for key, page in _pages(own).items() if isinstance(page.get("token"), str)}
    return {**own} | {key: {**page, "token": _WITHHELD} for key, page in pages.items()}


def _tokenless(value: dict[str, Any]) -> dict[str, Any]:
    return value | {key: without(page, "token") for key, page in _pages(value).items()}


def _pages(value: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {key: value[key] for key in _PAGES if isinstance(value.get(key), Mapping)}
