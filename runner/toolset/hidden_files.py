"""Hidden files that a tool file names: no tier shows them to it unless they are granted.

A program that does not find `.env` continues silently, and no denial is recorded: in its mount namespace the
file is absent. So its text is searched for the names of hidden files beside it. This is advice, not
protection.

Source: `docs/isolation.md`, "Files beside the tool file"; python-dotenv, `find_dotenv`.
"""

import ast
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.settings.execution import ExecutionSettings
from runner.settings.lendable import within
from runner.toolset.grants import opened
from sandbox.readable import is_hidden_name, parsed_module, sibling_modules

__all__ = ["HiddenFile", "hidden_files"]

_DOTENV = ".env"
# Functions and classes of python-dotenv, environs, python-decouple and starlette that read `.env` by default.
_READERS = frozenset({"load_dotenv", "dotenv_values", "find_dotenv", "read_env", "AutoConfig"})
_VARIABLE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=", re.MULTILINE)
_MOST_NAME_CHARS = 500
_MOST_DOTENV_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenFile:
    """A hidden file or folder that a tool file, or a module beside it, names.

    Attributes:
        path: Its path.
        file: Name of the file that names it.
        line: Line of the name in that file.
        variables: Names of the variables in a `.env`.
    """

    path: Path
    file: str
    line: int
    variables: frozenset[str] = frozenset()

    @property
    def flag(self) -> str:
        """Return the option that grants it."""
        return f"--allow-read={self.path}"


def hidden_files(files: Sequence[Path], settings: ExecutionSettings) -> list[HiddenFile]:
    """Return the hidden files beside tool files that these name, unless granted, each once.

    Args:
        files: The tool files.
        settings: The effective settings, after `lend`.
    """
    lent = (*settings.allow_read, *settings.allow_write)
    found: dict[Path, HiddenFile] = {}
    for file in (Path(os.path.realpath(each)) for each in files):
        for module in (file, *(each for each in sibling_modules(file) if each.suffix == ".py")):
            for path, line in _named(module):
                is_lent = any(within(path, top) for top in lent)
                # Files that are never granted, such as keys, need no advice.
                if path not in found and not is_lent and opened(path, settings) is None:
                    found[path] = HiddenFile(
                        path=path, file=module.name, line=line, variables=frozenset(_variables(path))
                    )
    return list(found.values())


def _named(module: Path) -> Iterator[tuple[Path, int]]:
    tree = parsed_module(module)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            path = _hidden_beside(module.parent, node.value)
            if path is not None:
                yield path, node.lineno
        elif isinstance(node, ast.Call) and _called(node) in _READERS and not (node.args or node.keywords):
            # Like `find_dotenv`: the nearest one above.
            above = (folder / _DOTENV for folder in (module.parent, *module.parent.parents))
            path = next((path for path in above if os.path.isfile(path)), None)
            if path is not None:
                yield path, node.lineno


def _hidden_beside(folder: Path, text: str) -> Path | None:
    """Return the hidden file or folder that a text names, if there is one below a folder."""
    if not text or len(text) > _MOST_NAME_CHARS or "\0" in text:
        return None
    path = Path(os.path.normpath(folder / text))
    if not within(path, folder):
        return None
    at = folder
    for part in path.relative_to(folder).parts:
        at /= part
        if is_hidden_name(part):
            return at if os.path.lexists(at) else None
    return None


def _called(call: ast.Call) -> str:
    """Return the last part of the name of the called function."""
    called = call.func
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _variables(path: Path) -> list[str]:
    if not path.name.startswith(_DOTENV):
        return []
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            is_plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
            text = file.read(_MOST_DOTENV_BYTES) if is_plain else b""
    except OSError:
        return []
    return _VARIABLE.findall(text.decode(errors="replace"))
