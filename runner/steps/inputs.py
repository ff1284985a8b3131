"""Arguments of a call for its tool: files are staged or linked, then `runner.steps.rewriting` applies.

Source: requirements S1-35 to S1-37; rules A2 and A4 of the conformance cases.
"""

import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.contract.error_messages import invalid_argument, legible
from runner.files.my_files import MyFiles
from runner.formats.cut_json import parse_object
from runner.homes.homes import HomeLease
from runner.steps.rewriting import FileDelivery, Inputs, Rewriting
from runner.steps.staging import stage
from runner.store.protocol import Record
from runner.toolset.catalog import ToolSpec
from runner.users.identity import User

__all__ = ["Link", "check_json", "prepare_inputs", "read_arguments"]

Link = Callable[[Record], str]

_PLACE_CHARS = 200
_STRICT = json.JSONEncoder(allow_nan=False)


def check_json(params: Mapping[str, Any]) -> None:
    """Refuse request params with values that JSON lacks.

    Python's readers of JSON take `NaN` and `Infinity`, and make an infinity of `1e999`; no worker and no
    other server could be told of one.

    Raises:
        CallError: `E_INVALID_ARGUMENT`; it says what and where.
    """
    try:
        _STRICT.encode(params)
    except (ValueError, RecursionError) as error:
        found = _not_finite(params)
        if found is not None:
            where, number = found
            word = "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
            message = f"{where} is {word}, which is not a JSON value; send a finite number, null or text"
            raise invalid_argument(message, argument=where) from error
        raise invalid_argument(f"The arguments cannot be written as JSON: {error}") from error
    except TypeError as error:
        # Of a program that calls `runner.api`; what comes from elsewhere was read from JSON.
        raise invalid_argument(f"The arguments cannot be written as JSON: {error}") from error


def read_arguments(arguments: object, *, edited: object = None) -> dict[str, Any]:
    """Return the arguments that a client sent, as an object or as JSON text that may be cut off.

    Args:
        arguments: The arguments; none is an empty object.
        edited: What a person changed before agreeing to the call, in the same form; replaces arguments
            of the same name.

    Raises:
        CallError: `E_INVALID_ARGUMENT`: they are not a JSON object.
    """
    if isinstance(arguments, str):
        try:
            arguments = parse_object(arguments)
        except ValueError as error:
            raise invalid_argument(f"The arguments are not a JSON object: {error}") from error
    if arguments is not None and not isinstance(arguments, Mapping):
        raise invalid_argument(f"The arguments must be a JSON object, not {type(arguments).__name__}")
    own = dict(arguments or {})
    return own if edited is None else own | read_arguments(edited)


def prepare_inputs(
    arguments: Mapping[str, Any],
    *,
    spec: ToolSpec,
    user: User,
    home: HomeLease | None,
    files: MyFiles,
    claims: Path,
    link: Link,
    file_delivery: FileDelivery = "path",
) -> AbstractAsyncContextManager[Inputs]:
    """Rewrite the arguments of one call; the staged copies are removed when the block ends.

    Args:
        arguments: As the client sent them.
        spec: The tool.
        user: Who calls; overwrites whatever `username` the client sent.
        home: Home to stage into, if the tool has one.
        files: The user's files.
        claims: Folder of the locks that say which call owns a staged name.
        link: Makes the download link of a file.
        file_delivery: How files named by `filename` and `filenames` are handed over.

    Raises:
        CallError: A file cannot be staged.
    """
    rewriting = Rewriting.of(arguments, spec=spec, username=user.name, file_delivery=file_delivery)
    if rewriting.by_path or rewriting.by_link:
        return _with_files(rewriting, home=home, files=files, claims=claims, link=link)
    return nullcontext(rewriting.finish(paths={}, links={}, names={}))


@asynccontextmanager
async def _with_files(
    rewriting: Rewriting, *, home: HomeLease | None, files: MyFiles, claims: Path, link: Link
) -> AsyncIterator[Inputs]:
    """Stage or link the files that arguments may name, until the block ends."""
    candidates = {name: await files.referenced(name) for name in (*rewriting.by_path, *rewriting.by_link)}
    found = {name: file for name, file in candidates.items() if file is not None}
    async with AsyncExitStack() as stack:
        paths: dict[str, str] = {}
        left = {name: found[name] for name in rewriting.by_path if name in found}
        while left and home is not None:
            # What was taken out of results may have the name of another file: that is staged beside it.
            wanted: dict[str, Record] = {}
            for file in left.values():
                wanted.setdefault(file.shown, file)
            staging = stage(home, files, list(wanted.values()), claims=claims)
            staged = await stack.enter_async_context(staging)
            done = [name for name, file in left.items() if wanted[file.shown].id == file.id]
            paths |= {name: str(staged[left.pop(name).shown]) for name in done}
        inputs = rewriting.finish(
            paths=paths,
            links={name: link(found[name]) for name in rewriting.by_link if name in found},
            names={name: file.shown for name, file in found.items()},
        )
        yield replace(inputs, files=tuple(found.values()))


def _not_finite(params: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the first number in params that JSON lacks, and its path."""
    # No recursion, and a place is written only once it is found: what is looked at may be as deep, as wide
    # and as full of long names as a client likes.
    path: list[str] = []
    left: list[Iterator[tuple[str, object]]] = [_members(params)]
    while left:
        del path[len(left) - 1 :]
        found = next(left[-1], None)
        if found is None:
            left.pop()
            continue
        step, value = found
        path.append(step)
        if isinstance(value, float) and not math.isfinite(value):
            return legible("".join(path).removeprefix(".arguments").removeprefix("."), _PLACE_CHARS), value
        if isinstance(value, Mapping | list):
            left.append(_members(value))
    return None


def _members(value: Mapping[str, object] | list[object]) -> Iterator[tuple[str, object]]:
    if isinstance(value, list):
        return ((f"[{number}]", item) for number, item in enumerate(value))
    return ((f".{key}", item) for key, item in value.items())
