"""Pieces of what an endpoint says, whatever it says: what is not of the kind that is expected is nothing."""

import json
from collections.abc import Mapping
from typing import Any

from runner.contract.loose_json import mapping_of
from runner.playground.model_turn import Event

__all__ = ["error_text", "json_of", "object_of_json", "objects_of", "text_of", "usage_event"]


def object_of_json(data: str) -> Mapping[str, Any]:
    """Return the JSON object in a text. Raises `ValueError` where there is none."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("no object")  # noqa: TRY004 - what is wrong is the text
    return value


def json_of(value: object) -> str:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)


def objects_of(value: object) -> list[Mapping[str, Any]]:
    """Return the objects of a list, or none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text_of(value: object) -> str:
    """Return a text, or an empty one."""
    return value if isinstance(value, str) else ""


def error_text(said: Mapping[str, Any]) -> str:
    """Return what an error of either API says, or an empty text."""
    error = said.get("error")
    return text_of(error) or text_of(mapping_of(error).get("message")) or text_of(said.get("message"))


def usage_event(read: object, written: object, cached: object = None) -> Event:
    """Return what an endpoint counted, as far as it says it in numbers."""
    numbers = {"input": read, "output": written, "cached": cached}
    return {"type": "usage"} | {name: value for name, value in numbers.items() if isinstance(value, int)}
