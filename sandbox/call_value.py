"""Dataclasses for the values of each call: immutable for the type checker, but not at run time.

`dataclass(frozen=True)` assigns each field by `object.__setattr__`, which takes three times as long, and a
call creates about twenty such values.

Source: PEP 681.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

__all__ = ["call_value"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def call_value(cls: type[T]) -> type[T]:
    """Return a class as a keyword-only dataclass with slots and a hash of its fields."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
