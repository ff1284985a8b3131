"""Parts of oversized `meta_data` for a model: the failure and missing files only.

`_meta` has all of it. If a tool's output schema requires `meta_data`, the structured content has a minimal
one that satisfies the schema.

Source: requirement S0-4; contradiction C12; MCP specification 2025-11-25, tools, "Output Schema".
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from runner.contract.normalise import is_small_meta_data
from runner.output_guard.schema_fit import shortened

__all__ = ["brief", "fitting", "little"]

# What of an error's facts a model reads even where the whole of them is too large for it.
_ALWAYS_READ = ("is_error", "reason", "error_code", "retryable")
# The contract's spelling, and that of its version 1.
_SPELLINGS = ("meta_data", "meta-data")
_FLAG = "meta_data_truncated"


def little(meta_data: object) -> dict[str, Any]:
    """Return the parts of oversized facts that a model needs, or nothing if these are too large too."""
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


def brief(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a contract value with little in place of facts too large for a model, and a flag."""
    view = {**value}
    for key in _large(value):
        facts = little(view.pop(key))
        view |= ({"meta_data": facts} if facts else {}) | {_FLAG: True}
    return view


def fitting(value: Mapping[str, Any], fits: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any] | None:
    """Return a contract value with short facts that satisfies its tool's schema, or None if there is none.

    Args:
        value: The value, as the tool wrote it.
        fits: Says whether a value satisfies the schema.
    """
    large = _large(value)
    if not large:
        return {**value}
    flagged = brief(value)
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
        few = {**made, name: shortened(facts[name], [], text_chars=40, items_chars=100)}
        none = {**made, name: shortened(facts[name], [], text_chars=40, items_chars=0)}
        made = next((each for each in (without, few, none) if fits({**value, key: each})), made)
    return {**value, key: made}
