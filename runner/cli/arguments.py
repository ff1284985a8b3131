"""Parser of arguments from a shell: `name=value`, `name:=json`, `name=@path`. Pure functions.

Source: `docs/cli.md`, `runner call`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.formats.cut_json import parse_object
from runner.formats.schema_types import types_of_schema, types_of_value
from sandbox import strict_json

__all__ = ["ParsedArguments", "coerce", "parse_arguments"]

_NO_NUMBER = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_WORD = re.compile(r"(?P<name>[^=:@]+)(?P<kind>:=|=@|=)(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedArguments:
    """The arguments of one command line, not yet converted by a schema.

    Attributes:
        texts: From `name=value`.
        values: From `--args` and `name:=json`.
        files: From `name=@path`: local files, whose names are passed to the tool.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)


def parse_arguments(words: Sequence[str], args: str | None) -> ParsedArguments:
    """Sort the words of a command line.

    A name repeated with `=@` becomes a list of files; otherwise the last value counts. A truncated end
    of `args` is completed, since it often comes from a model.

    Raises:
        UsageError: A word is not an argument, or some JSON is malformed.
    """
    values: dict[str, Any] = {}
    if args is not None:
        try:
            values = parse_object(args)
        except ValueError as error:
            raise UsageError(f"--args: {args!r} is not a JSON object: {error}") from error
    texts: dict[str, str] = {}
    files: dict[str, tuple[Path, ...]] = {}
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None:
            raise UsageError(f"{word!r} is not an argument; write name=value, name:=json or name=@path")
        name, value = match["name"], match["value"]
        if match["kind"] == ":=":
            try:
                values[name] = strict_json.loads(value)
            except ValueError as error:
                raise UsageError(f"{name}: {value!r} is not JSON: {error}") from error
        elif match["kind"] == "=@":
            files[name] = (*files.get(name, ()), Path(value))
        else:
            texts[name] = value
    return ParsedArguments(texts=texts, values=values, files=files)


def coerce(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Convert a shell word by the JSON Schema of its parameter; a word that does not fit stays text.

    The tool's own validation then reports the fault and the parameter. The exception are words that Python
    parses as numbers but JSON cannot express.

    Args:
        text: The word.
        schema: The schema.
        root: The schema of all arguments, for resolving references.

    Raises:
        UsageError: The word is not JSON but Python would parse it as the expected number.
    """
    types = types_of_schema(schema, root)
    if "string" in types:
        return text
    try:
        value = strict_json.loads(text)
    except ValueError as error:
        if "integer" in types and _NO_NUMBER.fullmatch(text.strip()):
            raise UsageError(f"{text!r} is not a JSON number; give a finite number, or null") from error
        return {"true": True, "false": False}.get(text.lower(), text) if "boolean" in types else text
    return value if types & types_of_value(value) else text
