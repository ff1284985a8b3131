"""Paths to fields: dots, indices, wildcards, and what of JSONPath selects by name.

`content`, `result.pdf_data`, `files[*].b64`, `files[0]`, `$..blob`, `$['a.b']`. A name applied to a list is
applied to each of its items. Filters, slices and scripts are refused.

Source: document 004, section 3.4; requirement S4-28; rule X3 of the conformance cases; RFC 9535.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Selector", "ValueSlot", "find", "parse"]

_TOKEN = re.compile(
    r"""
    (?P<deep>\.\.)
    | \.?(?P<wild>\*|\[\s*\*\s*\])
    | \[\s*(?P<index>-?\d+)\s*\]
    | \[\s*(?P<quote>['"])(?P<quoted>.+?)(?P=quote)\s*\]
    | \.?(?P<name>[^.\[\]*\s'"]+)
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Step:
    """One step: a name, an index, or anything (None); `deep`: at any depth below."""

    key: str | int | None
    deep: bool = False


Selector = tuple[_Step, ...]


@dataclass(frozen=True, slots=True)
class ValueSlot:
    """Position of a value: an item of a list or of an object."""

    container: Any
    key: Any

    @property
    def value(self) -> Any:
        """Return the value that stands there now."""
        return self.container[self.key]

    def put(self, value: Any) -> None:
        """Put another value there."""
        self.container[self.key] = value


def parse(text: str) -> Selector:
    """Return the steps of a path.

    Raises:
        ValueError: It is no path; the message says what is allowed.
    """
    body = text.strip().removeprefix("$")
    steps: list[_Step] = []
    position, deep = 0, False
    while position < len(body):
        token = _TOKEN.match(body, position)
        if token is None or (token["deep"] and deep):
            raise ValueError(_refusal(text))
        position = token.end()
        if token["deep"]:
            deep = True
            continue
        steps.append(_Step(_key(token), deep=deep))
        deep = False
    if deep or not steps:
        raise ValueError(_refusal(text))
    return tuple(steps)


def find(root: Any, path: Sequence[_Step]) -> Iterator[ValueSlot]:
    """Yield every place in `root` to which `path` leads. The caller may put other values there."""
    head, rest = path[0], path[1:]
    for place in list(_places(root, head)):
        if not rest:
            yield place
        else:
            yield from find(place.value, rest)


def _refusal(text: str) -> str:
    return f"{text!r} is no field path; write names with dots, [0], [*] or $..name, such as files[*].content"


def _key(token: re.Match[str]) -> str | int | None:
    if token["wild"]:
        return None
    if token["index"] is not None:
        return int(token["index"])
    return token["quoted"] or token["name"]


def _places(root: Any, step: _Step) -> Iterator[ValueSlot]:
    yield from _here(root, step.key)
    if step.deep:
        for child in _children(root):
            yield from _places(child.value, step)


def _here(root: Any, key: str | int | None) -> Iterator[ValueSlot]:
    if key is None:
        yield from _children(root)
    elif isinstance(root, dict):
        if key in root:
            yield ValueSlot(root, key)
    elif isinstance(root, list):
        yield from _in_list(root, key)


def _in_list(items: list[Any], key: str | int) -> Iterator[ValueSlot]:
    index = _index(key)
    if index is None:
        for item in items:
            if isinstance(item, dict):
                yield from _here(item, key)
    elif -len(items) <= index < len(items):
        yield ValueSlot(items, index)


def _index(key: str | int) -> int | None:
    if isinstance(key, int):
        return key
    return int(key) if key.isdecimal() else None


def _children(root: Any) -> Iterator[ValueSlot]:
    if isinstance(root, dict):
        yield from (ValueSlot(root, key) for key in root)
    elif isinstance(root, list):
        yield from (ValueSlot(root, index) for index in range(len(root)))
