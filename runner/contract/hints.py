"""Repair what a tool sends beside its content: an unknown word falls back to the default, and never fails.

Source: requirement S0-28; contradiction C8; rules N10 and D3 of the conformance cases.
"""

from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

__all__ = ["repaired"]


def repaired(
    values: dict[str, Any], hints: type[BaseModel], what: str, warnings: list[str]
) -> dict[str, Any]:
    """Return `values` with every hint valid; keys that are not hints stay as they are.

    Args:
        values: The object with hints among its keys; itself returned where nothing is wrong.
        hints: The type that says what is valid, and the default.
        what: What has these hints, for the warning.
        warnings: Gets a sentence for each hint that was replaced or left out.
    """
    known = {key: values[key] for key in _names(hints) if key in values}
    if not known:
        return values
    try:
        hints.model_validate(known)
    except ValidationError as error:
        wrong = {str(fault["loc"][0]) for fault in error.errors(include_url=False, include_input=False)}
    else:
        return values
    result = dict(values)
    for key in sorted(wrong):
        default = hints.model_fields[key].get_default()
        if result.pop(key) is None:
            continue
        if default is None:
            warnings.append(f"{what}: {key} is of the wrong type, left out")
        else:
            result[key] = default
            warnings.append(f"{what}: unknown {key}, taken as {default}")
    return result


@cache
def _names(hints: type[BaseModel]) -> tuple[str, ...]:
    return tuple(hints.model_fields)
