"""The arguments of a call as its tool gets them: identity injected, input files staged.

Source: requirements S1-28 to S1-37, S0-55 to S0-57; contradictions C1, C2, C4.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.catalog import FILE_ARGUMENTS, ToolSpec
from runner.homes import HomeLease
from runner.identity import User
from runner.staging import stage
from runner.store.local import LocalStore, StoredFile

__all__ = ["Inputs", "prepare_inputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a tool is called with.

    Attributes:
        arguments: The arguments, rewritten.
        unknown: Values of file arguments that named no file of the user; passed on unchanged,
            since they may name an output.
    """

    arguments: dict[str, Any]
    unknown: tuple[str, ...]


@contextmanager
def prepare_inputs(
    arguments: Mapping[str, Any],
    *,
    spec: ToolSpec | None,
    user: User,
    home: HomeLease | None,
    store: LocalStore,
    claims: Path,
) -> Iterator[Inputs]:
    """Rewrite the arguments of one call; the staged copies are removed when the block ends.

    Args:
        arguments: As the client sent them.
        spec: The tool, if it is known.
        user: Who calls; overwrites whatever `username` the client sent.
        home: Home to stage into, if the tool has one.
        store: The user's files.
        claims: Folder of the locks that say which call owns a staged name.

    Raises:
        CallError: A file cannot be staged.
    """
    prepared = {key: value for key, value in arguments.items() if key != "username"}
    if spec is None:
        yield Inputs(arguments=prepared, unknown=())
        return
    if spec.takes_username:
        prepared["username"] = user.name
    declared = [name for name in FILE_ARGUMENTS if spec.declares(name) and name in prepared]
    wanted = [name for argument in declared for name in _names(prepared[argument])]
    found = _find(store, user, wanted)
    with ExitStack() as stack:
        staged: Mapping[str, Path] = {}
        if found and home is not None:
            files = list({file.name: file for file in found.values()}.values())
            staged = stack.enter_context(stage(home, store, files, claims=claims))
        paths = {name: str(staged[file.name]) for name, file in found.items() if file.name in staged}
        for argument in declared:
            prepared[argument] = _replaced(prepared[argument], paths)
        yield Inputs(arguments=prepared, unknown=tuple(name for name in wanted if name not in paths))


def _names(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _find(store: LocalStore, user: User, names: list[str]) -> dict[str, StoredFile]:
    files = {name: store.find(user.name, name) for name in dict.fromkeys(names)}
    return {name: file for name, file in files.items() if file is not None}


def _replaced(value: Any, paths: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_replaced(item, paths) for item in value]
    return paths.get(value, value) if isinstance(value, str) else value
