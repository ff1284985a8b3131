"""The FILE argument: its forms, and the file, object and environment that it names.

A Python file; a `fastmcp.json`, which names one; a package's folder; a module by its dotted name; a folder of
skills. A checked target is an absolute path of the first two forms or the last, so that its meaning does not
depend on the process. Imports neither the framework nor author code: a module is located only by folder
names.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.settings.lendable import within
from runner.system.private_files import open_file, read_file
from sandbox.readable import MOST_ENTRIES

__all__ = [
    "EntryPoint",
    "check_targets",
    "entry_of",
    "module_line",
    "proxy_line",
    "split_target",
    "tool_files",
]

_CONFIG = "fastmcp.json"
_SKILL = "SKILL.md"
_IN_PACKAGE = ("server.py", "__init__.py", "main.py", "app.py", "mcp.py", "__main__.py")
_MADE = re.compile(r"\b(FastMCP|MCPServer|Server)(\[.*\])?\(")
_IMPORTED = re.compile(r"^\s*from\s.*\bimport\b.*\b(mcp|server|app)\b", re.MULTILINE)
_INTERPRETERS = {".js": "node", ".mjs": "node", ".cjs": "node", ".ts": "npx tsx", ".sh": "sh", ".rb": "ruby"}


@dataclass(frozen=True, kw_only=True)
class EntryPoint:
    """Entry point of one FILE argument.

    Attributes:
        file: The Python file with links resolved; its folder is the tool folder. Of a folder of skills, one
            of their SKILL.md.
        named: The path as given, which may be a link to it.
        name: Name of the object in it, if one is given.
        config: The `fastmcp.json` that names the file, if one does.
        arguments: The file's `sys.argv` after its own name.
        variables: Environment variables that the configuration sets.
        deployment: The configuration's `deployment` table.
        skills: The folder of skills with links resolved, if it is one.
    """

    file: Path
    named: Path
    name: str | None = None
    config: Path | None = None
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    deployment: Mapping[str, Any] = field(default_factory=dict)
    skills: Path | None = None

    @property
    def title(self) -> str:
        """Prefix of the names of its tools if several files are served."""
        if self.skills is not None:
            return self.skills.name
        is_package = self.named.name == "__init__.py"
        return self.named.parent.name if is_package else self.named.stem

    @cached_property
    def package(self) -> tuple[Path, str] | None:
        """The folder above the file's package, and the module's name below it; None without a package.

        Being in a package's folder is not enough: `fastmcp run` loads such a file alone, without running
        `__init__.py`. It also needs an import that only works within the package.
        """
        parts: list[str] = [] if self.file.name == "__init__.py" else [self.file.stem]
        folder = self.file.parent
        while (folder / "__init__.py").is_file() and folder.name.isidentifier():
            parts.insert(0, folder.name)
            folder = folder.parent
        if len(parts) < 2 and self.file.name != "__init__.py":
            return None
        is_part = bool(parts) and (self.file.name == "__init__.py" or _imports(self.file, parts[0]))
        return (folder, ".".join(parts)) if is_part else None

    @property
    def folders(self) -> tuple[Path, ...]:
        """Return the folders in which the file finds modules, the nearest first; not those of a link."""
        if self.skills is not None:
            return (self.skills,)
        root = () if self.package is None else (self.package[0],)
        return tuple(dict.fromkeys((self.file.parent, *root)))

    @property
    def beside(self) -> tuple[Path, ...]:
        """Return files whose folders may be read: the file, and the package that it is part of."""
        if self.skills is not None:
            return (self.skills / _SKILL,)
        if self.package is None:
            return (self.file,)
        folder, module = self.package
        return (self.file, folder / module.partition(".")[0] / "__init__.py")


def split_target(target: str) -> tuple[str, str | None]:
    """Split `FILE:NAME` into the file and the name of the object, if one is given."""
    path, colon, name = target.rpartition(":")
    if colon and name.isidentifier() and not target.startswith(("http:", "https:")):
        return path, name
    return target, None


def tool_files(targets: Iterable[str]) -> list[Path]:
    """Return the files that the targets name."""
    return [entry_of(target).file for target in targets]


def check_targets(targets: list[str]) -> list[str]:
    """Return the targets with absolute paths.

    Raises:
        UsageError: A file is missing, is not a regular file, cannot be read, or cannot be served here.
    """
    return [_check(target) for target in targets]


def entry_of(target: str) -> EntryPoint:
    """Return the entry point of a checked target.

    Raises:
        UsageError: Its configuration is gone or wrong, or a link leads to a file other than Python.
    """
    file, name = split_target(target)
    path = _absolute(file)
    return _entry(path, name)


def _entry(path: Path, name: str | None) -> EntryPoint:
    if path.is_dir():
        skill = _first_skill(path)
        if skill is None:
            raise UsageError(
                f"{path} is not a folder of skills: no folder in it has a {_SKILL} that can be read here; "
                "skills may not lie in the home of a user, nor directly in /tmp, nor have more than "
                f"{MOST_ENTRIES:,} files"
            )
        return EntryPoint(file=skill, named=path, skills=path.resolve())
    return _configured(path, name) if path.suffix == ".json" else _python(path, path, name=name)


def _first_skill(folder: Path) -> Path | None:
    """Return a SKILL.md of a folder of skills, without links, if it has one."""
    found = sorted(folder.resolve().glob(f"*/{_SKILL}"))
    return next((skill for skill in found if skill.is_file() and skill.resolve() == skill), None)


def proxy_line(*command: str) -> str:
    """Return the command line that serves an unchanged program behind the proxy."""
    return shlex.join(["runner", "proxy", "--", *command])


def module_line(python: str, folder: Path, module: str, *arguments: str) -> str:
    """Return the command line that serves a module of a folder behind the proxy, with that folder to read."""
    command = ("env", f"PYTHONPATH={folder}", python, "-m", module, *arguments)
    return shlex.join(["runner", "proxy", f"--allow-read={folder}", "--", *command])


def _check(target: str) -> str:
    if target.startswith(("http://", "https://")):
        raise UsageError(
            f"{target} is a server that runs elsewhere: {shlex.join(['runner', 'proxy', target])}"
        )
    file, name = split_target(target)
    path = _found(file)
    if not path.is_dir():
        _readable(path, file)
    entry = _entry(path, name)
    _readable(entry.file, str(entry.file))
    return f"{path}:{name}" if name else str(path)


def _found(file: str) -> Path:
    """Return the Python file or the configuration that an argument means."""
    path = _absolute(file)
    if path.is_dir():
        return _in_package(path, file)
    if not path.exists():
        module = _module(file)
        if module is None:
            raise UsageError(f"there is no file {file}")
        return _in_package(module, file) if module.is_dir() else module
    if not path.is_file():
        raise UsageError(f"{file} is not a file; name a Python file with a FastMCP object in it")
    if path.suffix not in (".py", ".json"):
        raise UsageError(_no_python(path, file))
    return path


def _no_python(path: Path, file: str) -> str:
    sentence = f"{file} is not a Python file: its name must end in .py"
    interpreter = _INTERPRETERS.get(path.suffix)
    if interpreter is None and not os.access(path, os.X_OK):
        return sentence
    command = (*(interpreter or "").split(), str(path))
    return f"{sentence}. A server of another kind is served as it is by: {proxy_line(*command)}"


def _in_package(folder: Path, target: str) -> Path:
    """Return the file of a package's folder that creates a server, judged by its text."""
    if (folder / _CONFIG).is_file():
        return folder / _CONFIG
    for sign in (_MADE, _IMPORTED):
        for name in _IN_PACKAGE:
            if _has(folder / name, sign):
                return folder / name
    if _first_skill(folder) is not None:
        return folder
    whole = folder / "__main__.py"
    line = module_line(sys.executable, folder.parent, folder.name)
    runs = f"; if it serves by itself: {line}" if whole.is_file() else ""
    raise UsageError(
        f"{target} is a folder, and none of {', '.join((_CONFIG, *_IN_PACKAGE))} in it makes a server, "
        f"nor is there a */{_SKILL}; name the Python file that does{runs}"
    )


def _has(file: Path, sign: re.Pattern[str]) -> bool:
    try:
        text = read_file(file).decode(errors="replace")
    except OSError:
        return False
    return sign.search(text) is not None


def _module(dotted: str) -> Path | None:
    """Return the file or folder that Python would find for a module, without importing its packages."""
    parts = dotted.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for top in (os.getcwd(), *sys.path):
        below = Path(top, *parts)
        if below.with_name(f"{parts[-1]}.py").is_file():
            return _absolute(str(below.with_name(f"{parts[-1]}.py")))
        if (below / "__init__.py").is_file():
            return _absolute(str(below))
    return None


def _configured(path: Path, name: str | None) -> EntryPoint:
    """Return the entry point of a `fastmcp.json`, by the rules of FastMCP's configuration, version 1."""
    try:
        config = json.loads(read_file(path).decode())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError:
        raise UsageError(f"{path} cannot be read as JSON: it nests too deep") from None
    except ValueError as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}") from error
    if isinstance(config, dict) and "mcpServers" in config:
        line = shlex.join(["runner", "proxy", str(path)])
        raise UsageError(f"{path} lists servers that run by themselves: {line}")
    source = config.get("source") if isinstance(config, dict) else None
    if not isinstance(source, dict) or not isinstance(source.get("path"), str):
        raise UsageError(
            f'{path} names no file to serve; it needs "source": {{"path": "server.py"}}, as FastMCP reads it'
        )
    source_path, inner = split_target(source["path"])
    entrypoint = name or source.get("entrypoint") or inner
    deployment = config.get("deployment")
    deployment = deployment if isinstance(deployment, dict) else {}
    file = _beside_config(path, source_path)
    if file.suffix != ".py" or not file.is_file():
        raise UsageError(f"{path} names {source_path}, and there is no such Python file beside it or here")
    if not within(file.resolve(), path.resolve().parent):
        raise UsageError(
            f"{path} names {source_path}, which is {file.resolve()}, outside of its own folder; to serve "
            f"that file, name it: {shlex.join(['runner', 'serve', str(file.resolve())])}"
        )
    variables, arguments = deployment.get("env"), deployment.get("args")
    return _python(
        path,
        file,
        name=None if entrypoint is None else str(entrypoint),
        config=path.resolve(),
        arguments=tuple(map(str, arguments)) if isinstance(arguments, list) else (),
        variables={str(k): str(v) for k, v in variables.items()} if isinstance(variables, dict) else {},
        deployment=deployment,
    )


def _python(target: Path, named: Path, *, name: str | None, **more: Any) -> EntryPoint:
    """Return the entry point of a Python file, which may be given by a link."""
    file = named.resolve()
    if file.suffix != ".py":
        raise UsageError(f"{target} leads to {file}, which is not a Python file: its name must end in .py")
    return EntryPoint(file=file, named=named, name=name, **more)


def _beside_config(path: Path, source_path: str) -> Path:
    # FastMCP resolves it from the current folder, which its documentation assumes to be the configuration's.
    beside = _absolute(os.path.join(path.parent, os.path.expanduser(source_path)))
    return beside if beside.is_file() else _absolute(source_path)


def _readable(path: Path, target: str) -> None:
    try:
        os.close(open_file(path))
    except OSError as error:
        raise UsageError(f"{target} cannot be read: {error.strerror}") from error


def _absolute(file: str) -> Path:
    """Return a path without `..` and with the links of its folders resolved, but not a link of the file."""
    path = Path(file).expanduser().absolute()
    return path.parent.resolve() / path.name if path.name not in ("", "..") else path.resolve()


def _imports(file: Path, package: str) -> bool:
    """Return whether the text of a file imports its own package, by a leading dot or by name."""
    return _has(file, re.compile(rf"^\s*(from\s+(\.|{package}\b)|import\s+{package}\b)", re.MULTILINE))
