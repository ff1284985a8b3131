"""Rewriting of a call's arguments for its tool: identity set, helpers dropped, names replaced by paths.

Pure: `runner.steps.inputs` supplies the paths and links, and this module assigns them to arguments.

Source: requirements S0-49 to S0-57, S0-59, S1-22 and S1-28 to S1-37; contradictions C1, C2, C4; rules A1,
A3 and A5 of the conformance cases.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

import pydantic_core

from runner.contract.error_messages import invalid_argument
from runner.files.download_links import without_tokens
from runner.formats.schema_types import types_of_value
from runner.store.protocol import Record
from runner.toolset.catalog import FILE_ARGUMENTS, LINK_ARGUMENTS, ToolSpec
from sandbox.call_value import call_value

__all__ = ["FileDelivery", "Inputs", "Rewriting"]

FileDelivery = Literal["path", "url"]

_FILE_KEYS = (*FILE_ARGUMENTS, *LINK_ARGUMENTS)
# What clients send along to help a tool; one that does not declare it has no use for it.
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
# A place is not a name, even where it ends in one: `https://example.com/report.pdf` is another file.
_MOST_NAMES = 1000
# Read in a few milliseconds.
_MOST_TEXT_CHARS = 1 << 20
_PLACE = re.compile(r"[/\\]|(?!(?i:artifact):)[A-Za-z][A-Za-z0-9+.-]*:[/\\]|data:")


@call_value
class Inputs:
    """Arguments of a tool call.

    Attributes:
        arguments: The arguments, rewritten.
        unknown: Values of file arguments that named no file of the user; passed on unchanged,
            since they may name an output.
        names: For each place that stands in a file argument, the name of its file.
        files: The files of the user that are among them.
    """

    arguments: dict[str, Any]
    unknown: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Record, ...] = ()

    def shown(self) -> dict[str, Any]:
        """Return the arguments as people may see them: names for paths and links, and no token."""
        return {
            key: without_tokens(_replaced(value, self.names) if key in _FILE_KEYS else value)
            for key, value in self.arguments.items()
        }


@call_value
class Rewriting:
    """The arguments of one call on their way to its tool.

    Attributes:
        arguments: The tool's own arguments, with the identity it asks for.
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
        """Begin with the arguments as the caller gave them.

        Args:
            arguments: The arguments.
            spec: The tool.
            username: Who calls; overwrites whatever the caller said.
            file_delivery: How files named by `filename` and `filenames` are handed over.

        Raises:
            CallError: They name too many files.
        """
        # A client may send any number of arguments: none is looked at but those that somebody knows.
        own = dict(arguments)
        for key in own.keys() & {*_HELPERS, spec.identity}:
            if not spec.declares(key):
                del own[key]
        properties = spec.parameters.get("properties")
        for key in properties.keys() & own.keys() if isinstance(properties, Mapping) else ():
            own[key] = _from_text(own[key], key, spec)
        if spec.takes_username:
            own[spec.identity] = username
        path_keys = FILE_ARGUMENTS if file_delivery == "path" else ()
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
            paths: For names of `by_path` that are files: where each is staged.
            links: For names of `by_link` that are files: the link of each.
            names: For both: the file's own name.
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


def _from_text(value: Any, argument: str, spec: ToolSpec) -> Any:
    """Return the list, object, number or other value that many clients send as JSON text.

    A text stays as it is where the argument may be a string, or where the value does not fit either.
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
    """Return the names in some arguments, each once."""
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
