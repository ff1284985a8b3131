"""Modules beside a tool file whose names are taken: by the standard library, a library, or packages of ours.

A `json.py` or a `runner.py` beside a tool file is what the author's code means by `import json` and `import
runner`, and nobody else: libraries, and our own code, go on to get what they had. Python knows one module for
each name, so the author's take that place while code of the author imports one, and give it back at once.

Nothing here protects: by the time that an author's module can be imported, the layers are in place.
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
"""These names mean the framework to a tool file, whatever lies beside it, as they do with `fastmcp run`."""

_INSTALLED = tuple({f"{prefix}{os.sep}" for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix)} - {"/"})


class OwnModules:
    """The author's modules of names that are taken.

    Args:
        folders: Where the author's code lies.
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
        """Return those in the folders: a built-in or frozen module cannot be hidden by any file.

        Args:
            folders: Where the author's code lies.
            but: Further names that mean what they meant: that of the tool file itself.
        """
        never = {*sys.builtin_module_names, *_FRAMEWORK, *but}
        taken = {name for name in sys.modules if "." not in name and name not in never}
        names = {
            name for name in taken if any(_has(folder, name) for folder in folders) and not _is_frozen(name)
        }
        return cls(folders, {name for name in names if not _lies_in(sys.modules[name], folders)})

    def install(self) -> None:
        """Let the author's code have them from now on."""
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
        """Import as `__import__` does."""
        top = name.partition(".")[0]
        if level or not (top in self._names or self._turned):
            return self._import(name, globals, locals, fromlist, level)
        with self._lock, self._seen_by(self._is_authors(globals), top):
            return self._import(name, globals, locals, fromlist, level)

    def _is_authors(self, importer: Mapping[str, Any] | None) -> bool:
        file = (importer or {}).get("__file__")
        # An environment may lie in the author's folder, and what is installed in it is not the author's.
        return isinstance(file, str) and file.startswith(self._folders) and not file.startswith(_INSTALLED)

    @contextlib.contextmanager
    def _seen_by(self, author: bool, top: str) -> Iterator[None]:  # noqa: FBT001 - who imports
        """Put in place what the importer is to find: for the author one name, for others all as they were."""
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
        """Exchange the modules of a name for the others of that name."""
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
