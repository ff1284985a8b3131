"""Modules beside a tool file whose names are taken: by the standard library, a library, or packages of ours.

With `json.py` or `runner.py` beside a tool file, `import json` or `import runner` in the author's code gets
that file; libraries and our own code still get the original. Python has one module per name, so the author's
modules are in `sys.modules` only while the author's code imports one.

This is not protection: before an author's module can be imported, the layers are in place.
"""

import builtins
import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Self

__all__ = ["OwnModules"]

_FRAMEWORK = ("fastmcp", "mcp", "mcp_types")
"""Names that always mean the framework, even with such a file beside a tool file, as in `fastmcp run`."""

_INSTALLED = tuple({f"{prefix}{os.sep}" for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix)} - {"/"})


class OwnModules:
    """The author's modules whose names are taken.

    Args:
        folders: Folders of the author's code.
        names: The names, each of a module in one of them.
    """

    def __init__(self, folders: Sequence[Path], names: Iterable[str]) -> None:
        self._folders = tuple(f"{folder}{os.sep}" for folder in folders)
        self._names = frozenset(names)
        self._others: dict[str, dict[str, ModuleType]] = {name: {} for name in self._names}
        self._turned: list[str] = []
        self._lock = threading.RLock()
        self._import = builtins.__import__

    @classmethod
    def of(cls, folders: Sequence[Path], *, but: Iterable[str] = ()) -> Self:
        """Return those in the folders, except names of built-in or frozen modules, which no file can hide.

        Args:
            folders: Folders of the author's code.
            but: Further names to leave alone, such as that of the tool file itself.
        """
        never = {*sys.builtin_module_names, *_FRAMEWORK, *but}
        taken = {name for name in sys.modules if "." not in name and name not in never}
        names = {
            name for name in taken if any(_has(folder, name) for folder in folders) and not _is_frozen(name)
        }
        return cls(folders, {name for name in names if not _lies_in(sys.modules[name], folders)})

    def install(self) -> None:
        """Provide them to the author's code from now on."""
        if self._names:
            vars(builtins)["__import__"] = self

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - as `__import__` calls it
        locals: Mapping[str, Any] | None = None,  # noqa: A002 - the same
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        """Import like `__import__`."""
        top = name.partition(".")[0]
        if level or not (top in self._names or self._turned):
            return self._import(name, globals, locals, fromlist, level)
        with self._lock, self._seen_by(self._is_authors(globals), top):
            return self._import(name, globals, locals, fromlist, level)

    def _is_authors(self, importer: Mapping[str, Any] | None) -> bool:
        file = (importer or {}).get("__file__")
        # A virtual environment may be in the author's folder; packages in it are not the author's code.
        return isinstance(file, str) and file.startswith(self._folders) and not file.startswith(_INSTALLED)

    @contextlib.contextmanager
    def _seen_by(self, author: bool, top: str) -> Iterator[None]:  # noqa: FBT001 - who imports
        """Set `sys.modules` for the importer: for the author with one own module, else with all originals."""
        wanted = [top] if author and top in self._names else []
        change = [name for name in (*wanted, *self._turned) if (name in self._turned) != (name in wanted)]
        for name in change:
            self._turn(name)
        try:
            yield
        finally:
            for name in change:
                self._turn(name)

    def _turn(self, name: str) -> None:
        """Swap the modules of a name with the other set of that name."""
        prefix = f"{name}."
        there = {
            key: sys.modules.pop(key) for key in list(sys.modules) if key == name or key.startswith(prefix)
        }
        sys.modules.update(self._others[name])
        self._others[name] = there
        if name in self._turned:
            self._turned.remove(name)
        else:
            self._turned.append(name)


def _has(folder: Path, name: str) -> bool:
    return os.path.isfile(f"{folder}/{name}.py") or os.path.isfile(f"{folder}/{name}/__init__.py")


def _is_frozen(name: str) -> bool:
    return getattr(getattr(sys.modules[name], "__spec__", None), "origin", None) == "frozen"


def _lies_in(module: ModuleType, folders: Sequence[Path]) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.startswith(tuple(f"{folder}{os.sep}" for folder in folders))
