"""Paths in settings that no tool may read and no client may see: all but those marked `OPEN_TO_TOOLS`.

So the path of a new setting is private by default.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from runner.settings.values import OPEN_TO_TOOLS

__all__ = ["is_open", "private_paths_of"]


def private_paths_of(settings: BaseModel) -> Iterator[tuple[str, Path]]:
    """Yield each private path with the dotted name of its setting, such as `auth.tokens_file`."""
    for name, field in type(settings).model_fields.items():
        if not is_open(field):
            yield from _paths_in(name, getattr(settings, name))


def is_open(field: FieldInfo) -> bool:
    """Return whether tools may read the paths of a setting."""
    return OPEN_TO_TOOLS in field.metadata or _is_marked(field.annotation)


def _is_marked(annotation: object) -> bool:
    marks = getattr(annotation, "__metadata__", ())
    return OPEN_TO_TOOLS in marks or any(map(_is_marked, get_args(annotation)))


def _paths_in(name: str, value: object) -> Iterator[tuple[str, Path]]:
    if isinstance(value, Path):
        yield name, value
    elif isinstance(value, BaseModel):
        yield from ((f"{name}.{own}", path) for own, path in private_paths_of(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _paths_in(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths_in(name, item)
