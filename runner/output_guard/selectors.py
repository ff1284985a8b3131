"""Paths to fields: names with dots, indices, wildcards, and JSONPath selection by name.

`content`, `result.pdf_data`, `files[*].b64`, `files[0]`, `$..blob`, `$['a.b']`. A name applied to a list is
applied to each of its items. Filters, slices and scripts are refused.

Source: document 004, section 3.4; requirement S4-28; rule X3 of the conformance cases; RFC 9535.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Selector", "ValueSlot", "find", "parse"]

_STEP = re.compile(
    r"""
    (?P<deep>\.\.)?
    (?: \.?(?P<wild>\*|\[\s*\*\s*\])
      | \[\s*(?P<index>-?\d+)\s*\]
      | \[\s*(?P<quote>['"])(?P<quoted>.+?)(?P=quote)\s*\]
      | \.?(?P<name>[^.\[\]*\s'"]+)
    )
    """,
    re.VERBOSE,
)


class _Step(NamedTuple):
    """One step: a name, an index, or a wildcard (None); `deep`: at any depth below."""

    key: str | int | None
    deep: bool


Selector = tuple[_Step, ...]


@dataclass(frozen=True, slots=True)
class ValueSlot:
    """An item of a list or of an object."""

    container: Any
    key: Any

    @property
    def value(self) -> Any:
        """Return its current value."""
        return self.container[self.key]

    def put(self, value: Any) -> None:
        """Replace its value."""
        self.container[self.key] = value


def parse(text: str) -> Selector:
    """Return the steps of a path.

    Raises:
        ValueError: It is not a path; the message lists what is allowed.
    """
    body, steps, position = text.strip().removeprefix("$"), list[_Step](), 0
    while (token := _STEP.match(body, position)) is not None:
        key = None if token["wild"] else token["quoted"] or token["name"]
        steps.append(_Step(int(token["index"]) if token["index"] else key, token["deep"] is not None))
        position = token.end()
    if not steps or position < len(body):
        raise ValueError(
            f"{text!r} is not a field path; use names with dots, [0], [*] or $..name, as in files[*].content"
        )
    return tuple(steps)


def find(root: Any, path: Sequence[_Step]) -> Iterator[ValueSlot]:
    """Yield every place in `root` that matches `path`. The caller may put other values there."""
    head, rest = path[0], path[1:]
    for place in list(_places(root, head)):
        if rest:
            yield from find(place.value, rest)
        else:
            yield place


def _places(root: Any, step: _Step) -> Iterator[ValueSlot]:
    is_list, key = isinstance(root, list), step.key
    keys: Iterable[Any] = range(len(root)) if is_list else root if isinstance(root, dict) else ()
    if is_list and isinstance(key, str) and key.isdecimal():
        key = int(key)
    if key is None:
        yield from (ValueSlot(root, each) for each in keys)
    elif is_list and isinstance(key, str):
        # A name applies to each item of a list.
        yield from (ValueSlot(item, key) for item in root if isinstance(item, dict) and key in item)
    elif -len(root) <= key < len(root) if is_list and isinstance(key, int) else key in keys:
        yield ValueSlot(root, key)
    if step.deep:
        for each in keys:
            yield from _places(root[each], step)
