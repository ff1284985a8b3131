"""Immortal objects, which forked processes share without copying their pages.

Python keeps the reference count of an object inside it. So a forked process writes to every object that it
reads, and the kernel copies the page. From Python 3.12 on, the count of immortal objects such as None never
changes. This module makes objects immortal that a forkserver has imported and no descendant could free: a
call then copies half as many pages. It is only an optimization.

Objects of a tool file are left alone: an immortal object is never finalised.

Source: PEP 683; CPython 3.12 and 3.13, Include/object.h.
"""

import ctypes
import gc
import sys
from collections.abc import Iterator
from itertools import chain
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, FunctionType, GeneratorType

__all__ = ["make_immortal"]

# Result of sys.getrefcount for an immortal object, and lower half of the count in its header.
_COUNT = 0xFFFFFFFF
# A reference count and a type; a free-threaded build has more fields.
_HEADER_BYTES = 16
# Types of objects that exist only while they run.
_RUNNING = frozenset({AsyncGeneratorType, CoroutineType, FrameType, GeneratorType})


def make_immortal() -> int:
    """Make all objects tracked by the collector immortal, and the parts of functions' code.

    Returns:
        Their number; 0 if Python has no immortal objects, or an unknown kind of them.
    """
    if not _are_known():
        return 0
    known = [thing for thing in gc.get_objects() if type(thing) not in _RUNNING]
    parts = (part for thing in known if type(thing) is FunctionType for part in _parts(thing.__code__))
    lasting = {id(thing): thing for thing in chain(known, parts)}
    count_at = ctypes.c_uint32.from_address
    for address in lasting:
        count_at(address).value = _COUNT
    return len(lasting)


def _are_known() -> bool:
    return (
        sys.implementation.name == "cpython"
        and sys.byteorder == "little"
        and object.__basicsize__ == _HEADER_BYTES
        # A debug build counts the total of all references.
        and not hasattr(sys, "gettotalrefcount")
        and sys.getrefcount(None) == _COUNT
    )


def _parts(code: CodeType) -> Iterator[object]:
    """Yield code, its constants and its nested code, none of which the collector tracks."""
    yield from (code, code.co_consts, code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        else:
            yield constant
