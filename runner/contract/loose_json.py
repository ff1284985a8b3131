"""Parts of JSON values of which nobody has promised that they are what they should be."""

from collections.abc import Mapping
from typing import Any

__all__ = ["list_of", "mapping_of", "without"]


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """Return an array; an empty one for anything else."""
    return value if isinstance(value, list) else []


def without(value: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return an object without some of its keys."""
    return {key: item for key, item in value.items() if key not in keys}
