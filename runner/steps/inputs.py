"""Arguments of a call for its tool: identity set, helpers dropped, files staged or linked.

Source: requirements S0-49 to S0-57, S0-59, S1-22 and S1-28 to S1-37; contradictions C1, C2, C4; rules A1 to
A5 of the conformance cases.
"""

import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

import pydantic_core

from runner.contract.error_messages import invalid_argument, legible
from runner.files.download_links import without_tokens
from runner.files.my_files import MyFiles
from runner.formats.cut_json import parse_object
from runner.formats.schema_types import types_of_value
from runner.homes.homes import HomeLease
from runner.steps.staging import stage
from runner.store.protocol import Record
from runner.toolset.catalog import FILE_ARGUMENTS, LINK_ARGUMENTS, ToolSpec
from runner.users.identity import User
from sandbox.call_value import call_value

__all__ = ["FileDelivery", "Inputs", "Link", "Rewriting", "check_json", "prepare_inputs", "read_arguments"]

FileDelivery = Literal["auto", "path", "url"]
"""Delivery of files named by `filename` and `filenames`: a path, unless `url`."""

Link = Callable[[Record], str]

_PLACE_CHARS = 200
_STRICT = json.JSONEncoder(allow_nan=False)
_FILE_KEYS = (*FILE_ARGUMENTS, *LINK_ARGUMENTS)
# Extra arguments that clients send to help a tool; dropped unless the tool declares them.
_HELPERS = frozenset(
    {
        "username",
        *_FILE_KEYS,
        "original_filename",
        "original_filenames",
        "original_file_names",
        "file_url",
        "file_urls",
    }
)
# A path or URL is not a name, even if it ends in one: `https://example.com/report.pdf` is another file.
_MOST_NAMES = 1000
# Parsed in a few milliseconds.
_MOST_TEXT_CHARS = 1 << 20
_PLACE = re.compile(r"[/\\]|(?!(?i:artifact):)[A-Za-z][A-Za-z0-9+.-]*:[/\\]|data:")


def check_json(params: Mapping[str, Any]) -> None:
    """Refuse request params with values that JSON lacks.

    Python's JSON readers accept `NaN` and `Infinity`, and turn `1e999` into an infinity. None of these can be
    sent to a worker or another server.

    Raises:
        CallError: `E_INVALID_ARGUMENT`, with the value and its path.
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
        # Only from a program that uses `runner.api`; all other params were read from JSON.
        raise invalid_argument(f"The arguments cannot be written as JSON: {error}") from error


def read_arguments(arguments: object, *, edited: object = None) -> dict[str, Any]:
    """Return the arguments that a client sent, as an object or as JSON text that may be cut off.

    Args:
        arguments: The arguments; None stands for an empty object.
        edited: Changes by a person who approved the call, in the form of `arguments`; they replace
            arguments of equal names.

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


@call_value
class Inputs:
    """Arguments of a tool call.

    Attributes:
        arguments: The arguments, rewritten.
        unknown: Values of file arguments that named no file of the user; passed on unchanged,
            since they may name an output.
        names: The name of the file for each path or link in a file argument.
        files: The user's files among the arguments.
    """

    arguments: dict[str, Any]
    unknown: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Record, ...] = ()

    def shown(self) -> dict[str, Any]:
        """Return the arguments for display: names in place of paths and links, without tokens."""
        return {
            key: without_tokens(_replaced(value, self.names) if key in _FILE_KEYS else value)
            for key, value in self.arguments.items()
        }


@call_value
class Rewriting:
    """The arguments of one call while they are rewritten for its tool.

    Attributes:
        arguments: The tool's own arguments, with the identity that it declares.
        by_path: Names that may be files to stage, in order.
        by_link: Names that may be files to link, in order.
    """

    arguments: dict[str, Any]
    by_path: tuple[str, ...]
    by_link: tuple[str, ...]
    _path_keys: tuple[str, ...]

    @classmethod
    def of(
        cls, arguments: Mapping[str, Any], *, spec: ToolSpec, username: str, file_delivery: FileDelivery
    ) -> "Rewriting":
        """Begin with the arguments of the caller.

        Args:
            arguments: The arguments.
            spec: The tool.
            username: The caller; replaces any identity in the arguments.
            file_delivery: Delivery of files named by `filename` and `filenames`.

        Raises:
            CallError: They name too many files.
        """
        # A client may send any number of arguments: only known ones are examined.
        own = dict(arguments)
        for key in own.keys() & {*_HELPERS, spec.identity}:
            if not spec.declares(key):
                del own[key]
        properties = spec.parameters.get("properties")
        for key in properties.keys() & own.keys() if isinstance(properties, Mapping) else ():
            own[key] = _from_text(own[key], key, spec)
        if spec.takes_username:
            own[spec.identity] = username
        path_keys = () if file_delivery == "url" else FILE_ARGUMENTS
        link_keys = tuple(key for key in _FILE_KEYS if key not in path_keys)
        return cls(
            arguments=own,
            by_path=() if own.keys().isdisjoint(path_keys) else _names(own, path_keys),
            by_link=() if own.keys().isdisjoint(link_keys) else _names(own, link_keys),
            _path_keys=path_keys,
        )

    def finish(
        self, *, paths: Mapping[str, str], links: Mapping[str, str], names: Mapping[str, str]
    ) -> Inputs:
        """Replace names of files by their paths.

        Args:
            paths: Paths of the staged files, by name of `by_path`.
            links: Links of files, by name of `by_link`.
            names: The files' own names, by name of either.
        """
        arguments, unknown = dict(self.arguments), dict[str, None]()
        for key in _FILE_KEYS:
            if key in arguments:
                places = paths if key in self._path_keys else links
                texts = (item for item in _items(arguments[key]) if isinstance(item, str))
                unknown |= dict.fromkeys(item for item in texts if item not in places)
                arguments[key] = _replaced(arguments[key], places)
        return Inputs(
            arguments=arguments,
            unknown=tuple(unknown),
            names={place: names[name] for known in (paths, links) for name, place in known.items()},
        )


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
        arguments: Arguments from the client.
        spec: The tool.
        user: The caller; replaces any `username` from the client.
        home: Home to stage into, if the tool has one.
        files: The user's files.
        claims: Folder of the locks that record which call owns a staged name.
        link: Makes the download link of a file.
        file_delivery: Delivery of files named by `filename` and `filenames`.

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
    found = await files.referenced((*rewriting.by_path, *rewriting.by_link))
    async with AsyncExitStack() as stack:
        paths: dict[str, str] = {}
        left = {name: found[name] for name in rewriting.by_path if name in found}
        while left and home is not None:
            # A file extracted from a result may have the name of another file: both are staged.
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


def _from_text(value: Any, argument: str, spec: ToolSpec) -> Any:
    """Return the list, object, number or other value that many clients send as JSON text.

    A text stays unchanged if the argument may be a string, or if the parsed value does not fit either.
    """
    if not isinstance(value, str) or len(value) > _MOST_TEXT_CHARS:
        return value
    types = spec.types_of(argument)
    if "string" in types:
        return value
    try:
        parsed = pydantic_core.from_json(value, allow_inf_nan=False)
    except ValueError:
        return value
    return parsed if types & types_of_value(parsed) else value


def _names(arguments: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the distinct names in some arguments."""
    names: dict[str, None] = {}
    for item in (item for key in keys if key in arguments for item in _items(arguments[key])):
        if isinstance(item, str) and not _PLACE.match(item):
            names[item] = None
            if len(names) > _MOST_NAMES:
                words = f"{' and '.join(keys)} name more than {_MOST_NAMES} files"
                raise invalid_argument(f"{words}, which is as many as are looked up", argument=keys[0])
    return tuple(names)


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _replaced(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [places.get(item, item) if isinstance(item, str) else item for item in value]
    return places.get(value, value) if isinstance(value, str) else value


def _not_finite(params: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the first number in params that JSON lacks, and its path."""
    # Without recursion, and the path is formatted only for a finding: a client may send params of any depth
    # and width, with names of any length.
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
