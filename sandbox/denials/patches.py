"""Replacements for `open` and file functions of `os`: they explain a denial before the kernel's.

`pathlib`, `shutil`, `tempfile` and `logging` access files through these. `audit` checks code that holds an
original function, or uses C. Kernel denials beyond the rules are reported as the error passes through, so
that they are recorded even if the program handles the error.

Source: requirements S1-54 and S1-100.
"""

import builtins
import functools
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Generic, ParamSpec, TypeVar

from sandbox.denials.judge import Judge
from sandbox.denials.paths import Act, act_of_flags, act_of_mode

__all__ = ["Patch", "install"]

P = ParamSpec("P")
R = TypeVar("R")


class Patch(Generic[P, R]):
    """One replacement. Like a built-in function, it does not bind as a method and pickles by name.

    A plain function would bind: `class Reader: opener = open` works with the built-in only.
    """

    __name__: str

    def __init__(self, module: ModuleType, original: Callable[P, R], stand_in: Callable[P, R]) -> None:
        functools.update_wrapper(self, original)
        # Not the original's module: `posix.mkdir` is still the built-in, so pickling by that name would fail.
        self.__module__ = module.__name__
        self._stand_in = stand_in

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Check the arguments, then call the original."""
        return self._stand_in(*args, **kwargs)

    def __reduce__(self) -> str:
        return self.__name__


@dataclass(frozen=True, slots=True)
class _Argument:
    """Path argument of a function, and the descriptor that it may be relative to."""

    act: Act
    position: int
    name: str
    dir_fd: str = "dir_fd"


_FUNCTIONS: dict[str, tuple[_Argument, ...]] = {
    "mkdir": (_Argument(Act.CREATE, 0, "path"),),
    # Has its own rule although it calls `mkdir`: the named path explains more than its first missing parent.
    "makedirs": (_Argument(Act.CREATE, 0, "name"),),
    "mkfifo": (_Argument(Act.CREATE, 0, "path"),),
    "mknod": (_Argument(Act.CREATE, 0, "path"),),
    "symlink": (_Argument(Act.CREATE, 1, "dst"),),
    # Only the target: for a source outside the home Landlock returns EXDEV, on which programs copy.
    "link": (_Argument(Act.CREATE, 1, "dst", "dst_dir_fd"),),
    "rename": (_Argument(Act.REMOVE, 0, "src", "src_dir_fd"), _Argument(Act.REPLACE, 1, "dst", "dst_dir_fd")),
    "replace": (
        _Argument(Act.REMOVE, 0, "src", "src_dir_fd"),
        _Argument(Act.REPLACE, 1, "dst", "dst_dir_fd"),
    ),
    "remove": (_Argument(Act.REMOVE, 0, "path"),),
    "unlink": (_Argument(Act.REMOVE, 0, "path"),),
    "rmdir": (_Argument(Act.REMOVE, 0, "path"),),
    "truncate": (_Argument(Act.UPDATE, 0, "path"),),
    "listdir": (_Argument(Act.READ, 0, "path"),),
    "scandir": (_Argument(Act.READ, 0, "path"),),
}
# Denied everywhere by the kernel, so they are not checked before, only reported afterwards.
_DENIED_EVERYWHERE = ("chown", "lchown", "chroot", "setxattr", "removexattr")


def install(judge: Judge) -> None:
    """Replace the functions in this process, permanently."""
    for name, arguments in _FUNCTIONS.items():
        original = getattr(os, name)
        _replace(os, name, Patch(os, original, _checked(judge, f"os.{name}", original, arguments)))
    for name in _DENIED_EVERYWHERE:
        original = getattr(os, name)
        _replace(os, name, Patch(os, original, _watched(judge, f"os.{name}", original)))
    _replace(os, "open", Patch(os, os.open, _os_open(judge, os.open)))
    # One object for both: `io.open is builtins.open` is documented, and relied upon.
    patched = Patch(io, builtins.open, _open(judge, builtins.open))
    _replace(io, "open", patched)
    _replace(builtins, "open", patched)


def _replace(module: ModuleType, name: str, patch: Patch[P, R]) -> None:
    original = getattr(module, name)
    setattr(module, name, patch)
    # `shutil.rmtree` and others look up a function's capabilities here.
    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in able:
            able.add(patch)


def _checked(
    judge: Judge, operation: str, original: Callable[P, R], arguments: tuple[_Argument, ...]
) -> Callable[P, R]:
    def stand_in(*args: P.args, **kwargs: P.kwargs) -> R:
        paths = []
        for argument in arguments:
            path = _taken(args, kwargs, argument.position, argument.name)
            judge.check(operation, argument.act, path, kwargs.get(argument.dir_fd))
            paths.append(path)
        with judge.passing(*paths):
            try:
                return original(*args, **kwargs)
            except PermissionError as error:
                for argument, path in zip(arguments, paths, strict=True):
                    judge.found(operation, error, path, kwargs.get(argument.dir_fd), act=argument.act)
                raise

    return stand_in


def _watched(judge: Judge, operation: str, original: Callable[P, R]) -> Callable[P, R]:
    def stand_in(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return original(*args, **kwargs)
        except PermissionError as error:
            path = _taken(args, kwargs, 0, "path")
            judge.found(operation, error, path, kwargs.get("dir_fd"), act=None)
            raise

    return stand_in


def _os_open(judge: Judge, original: Callable[P, R]) -> Callable[P, R]:
    def stand_in(*args: P.args, **kwargs: P.kwargs) -> R:
        path = _taken(args, kwargs, 0, "path")
        flags = _taken(args, kwargs, 1, "flags")
        act = act_of_flags(flags) if isinstance(flags, int) else None
        try:
            if act is Act.READ and judge.is_plain_read(path):
                return original(*args, **kwargs)
            if act is not None:
                judge.check("os.open", act, path, kwargs.get("dir_fd"))
            with judge.passing(path):
                return original(*args, **kwargs)
        except PermissionError as error:
            judge.found("os.open", error, path, kwargs.get("dir_fd"), act=act)
            raise

    return stand_in


def _open(judge: Judge, original: Callable[P, R]) -> Callable[P, R]:
    def stand_in(*args: P.args, **kwargs: P.kwargs) -> R:
        path = _taken(args, kwargs, 0, "file")
        mode = _taken(args, kwargs, 1, "mode")
        opener = _taken(args, kwargs, 7, "opener")
        act = act_of_mode(mode) if isinstance(mode, str) else Act.READ
        if opener is not None:
            # An opener may interpret the path freely; the file that it opens is checked then.
            with judge.passing(path):
                return original(*args, **kwargs)
        try:
            if act is Act.READ and judge.is_plain_read(path):
                return original(*args, **kwargs)
            judge.check("open", act, path)
            with judge.passing(path):
                return original(*args, **kwargs)
        except PermissionError as error:
            judge.found("open", error, path, act=act)
            raise

    return stand_in


def _taken(args: tuple[object, ...], kwargs: Mapping[str, object], position: int, name: str) -> object:
    return args[position] if len(args) > position else kwargs.get(name)
