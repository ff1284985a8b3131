"""Load an author's tool file: import it and find its server.

Runs in a confined zygote only. Every failure is a `LoadError` whose message is one sentence with
the author's own line; our frames are never shown.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import linecache
import os
import re
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Sequence
from errno import EACCES, EPERM, EROFS
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.providers import FastMCPProvider
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from pydantic import ValidationError

from runner.contract.missed_network import missed_network
from runner.errors import UsageError
from runner.settings.lendable import OUR_VARIABLES, flag_for, within
from runner.widgets.registration import mounted_pages
from runner.worker.internals.server import inner_provider
from runner.worker.internals.unguarded_run import serving_nothing
from runner.worker.output_transformer import NAME, ToolTransformer
from runner.worker.own_modules import OwnModules
from runner.worker.targets import EntryPoint, entry_of, module_line, proxy_line
from sandbox.denials.recognise import behind
from sandbox.errors import LoadError
from sandbox.readable import is_hidden_name

__all__ = ["AnyServer", "author_frames", "load_tool_files", "missing_variable"]

AnyServer = FastMCP | MCPServer[Any] | Server[Any]
"""Servers that a tool file may hold: FastMCP, or the MCP SDK at either level."""

_KINDS = (FastMCP, MCPServer, Server)
# A worker does not know of homes elsewhere; `runner.toolset.lending` refuses those.
_DENIALS = (EACCES, EPERM, EROFS)
_USUAL_HOMES = Path("/tmp")  # noqa: S108
_UNWRITABLE = re.compile(r"unable to open|readonly database|disk I/O error")
# Names of functions that make a server, for functions without annotation.
_MAKER = re.compile(r"(?:create|make|build|get|new)_(?:\w+_)?(?:server|mcp|app)")
# Environment variables that a file reads.
_ASKED = re.compile(r"""(?:getenv\(|environ\.get\(|environ\[)\s*["']([A-Za-z_][A-Za-z0-9_]*)["']""")
_MOST_NAMED = 5
_FIRST_NAMES = ("mcp", "server", "app")
"""Names that `fastmcp run` tries, in this order, without a given name."""
# Folder of the SDK's first version, in the advice for files that need it.
_OLD_SDK = "mcp1"


def load_tool_files(targets: Sequence[str]) -> AnyServer:
    """Import the files and return the server to run: the file's own, or a mount of several.

    Raises:
        LoadError: A file cannot be imported, or holds no server, or more than one.
    """
    try:
        entries = [entry_of(target) for target in targets]
    except UsageError as error:
        raise LoadError(str(error)) from error
    servers = [_load(entry) for entry in entries]
    if len(servers) == 1:
        return servers[0]
    whole: FastMCP = FastMCP("runner")
    for entry, server in zip(entries, servers, strict=True):
        if not isinstance(server, FastMCP):
            raise LoadError(
                f"{entry.file.name} holds a server of the MCP SDK, which is served alone; "
                "give each such file a `runner serve` of its own"
            )
        server.add_transform(mounted_pages(entry.title))
        whole.mount(server, namespace=entry.title)
    return whole


def author_frames(error: BaseException, folder: Path) -> list[dict[str, object]]:
    """Return the author's own frames of a traceback, outermost first: file, line, function, text."""
    prefixes = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))
    frames: list[dict[str, object]] = []
    for frame in traceback.extract_tb(error.__traceback__):
        mine = frame.filename.startswith(str(folder)) and not frame.filename.startswith(prefixes)
        if mine and frame.lineno is not None:
            frames.append(
                {
                    "file": Path(frame.filename).name,
                    "line": frame.lineno,
                    "function": frame.name,
                    "text": frame.line or "",
                }
            )
    return frames


def missing_variable(error: BaseException, message: str, folder: Path) -> str | None:
    """Return a variable that a message names, the author's file that raised it reads, and nobody has set."""
    files = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
    for file in files:
        source = "".join(linecache.getlines(file)) if file.startswith(str(folder)) else ""
        for name in _ASKED.findall(source):
            if name not in os.environ and re.search(rf"\b{name}\b", message):
                return str(name)
    return None


def _load(entry: EntryPoint) -> AnyServer:
    if entry.skills is not None:
        # Imported only here: no other tool file needs it.
        from runner.worker.tools.skill_scripts import skills_server  # noqa: PLC0415

        return skills_server(entry.skills)
    os.environ.update({name: _filled_in(value) for name, value in entry.variables.items()})
    with serving_nothing():
        module = _import(entry)
        server = _server_of(module, entry)
    function = vars(module).get(NAME)
    if callable(function):
        if not isinstance(server, FastMCP):
            raise LoadError(f"{entry.file.name} has an `{NAME}`, which needs a FastMCP object of `fastmcp`")
        server.middleware.append(ToolTransformer(function))
    return server


def _filled_in(value: str) -> str:
    """Replace `${NAME}` by the variable if tools may see it; otherwise leave it unchanged."""
    return re.sub(r"\$\{([^}]+)\}", lambda found: os.environ.get(found[1], found[0]), value)


def _server_of(module: ModuleType, entry: EntryPoint) -> AnyServer:
    file = entry.file.name
    servers = {name: value for name, value in vars(module).items() if isinstance(value, _KINDS)}
    if entry.name is not None:
        if entry.name in servers:
            return servers[entry.name]
        return _made(module, entry, f"it has {', '.join(sorted(servers)) or 'none at all'}")
    for name in _FIRST_NAMES:
        if name in servers:
            return servers[name]
    distinct = list({id(server): server for server in servers.values()}.values())
    roots = [server for server in distinct if not any(_mounts(other, server) for other in distinct)]
    if len(roots) == 1:
        return roots[0]
    if not roots:
        raise LoadError(f"{file} has no FastMCP object at its top level; {_way_out(module, entry)}")
    raise LoadError(
        f"{file} has {len(roots)} FastMCP objects ({', '.join(sorted(servers))}); "
        f"say which one to serve: {file}:{next(iter(servers))}"
    )


def _made(module: ModuleType, entry: EntryPoint, others: str) -> AnyServer:
    """Return the server that an entry makes if it is a function, as `fastmcp run` does."""
    found = getattr(module, str(entry.name), None)
    if not callable(found):
        raise LoadError(f"{entry.file.name} has no FastMCP object named {entry.name!r}; {others}")
    try:
        made = found()
        made = asyncio.run(_awaited(made)) if inspect.isawaitable(made) else made
    except Exception as error:
        raise _explain(entry, error) from error
    if not isinstance(made, _KINDS):
        raise LoadError(
            f"{entry.name}() of {entry.file.name} returned {type(made).__name__} and no MCP server; {others}"
        )
    return made


async def _awaited(value: Any) -> Any:
    return await value


def _way_out(module: ModuleType, entry: EntryPoint) -> str:
    """Return the advice for a file without a server at its top level."""
    makers = [name for name, value in vars(module).items() if _makes(value, module)]
    if makers:
        return f"name the function that makes it: {entry.file.name}:{makers[0]}"
    return f"add `mcp = FastMCP('name')` and decorate the tools with `@mcp.tool`{_or_by_itself(entry)}"


def _or_by_itself(entry: EntryPoint) -> str:
    """Return the advice to run a file that serves by itself, if it looks like one."""
    text = entry.file.read_text(encoding="utf-8", errors="replace")
    if "__main__" not in text and ".run(" not in text and not (entry.file.parent / "__main__.py").is_file():
        return ""
    return f"; or, if the file serves by itself when it is run: {_run_by_itself(entry)}"


def _run_by_itself(entry: EntryPoint, python: str | None = None) -> str:
    python = python or ("python" if _same(shutil.which("python"), sys.executable) else sys.executable)
    whole = entry.file.parent / "__main__.py"
    if whole.is_file() and (entry.file.parent / "__init__.py").is_file():
        folder, module = entry.file.parent.parent, entry.file.parent.name
    elif entry.package is not None:
        folder, module = entry.package
    else:
        return proxy_line(python, str(entry.file), *entry.arguments)
    return module_line(python, folder, module, *entry.arguments)


def _same(one: str | None, other: str) -> bool:
    return one is not None and os.path.abspath(one) == os.path.abspath(other)


def _makes(value: object, module: ModuleType) -> bool:
    """Return whether a function returns a server and needs no argument.

    Without an annotation its name counts, or a class of servers in its code if it does not run it too.
    """
    if not inspect.isfunction(value) or value.__module__ != module.__name__:
        return False
    try:
        signature = inspect.signature(value, eval_str=True)
    except (NameError, TypeError, ValueError, SyntaxError):
        return False
    needed = [part for part in signature.parameters.values() if part.default is part.empty]
    if signature.return_annotation is signature.empty:
        used = {name.removesuffix("_async") for name in value.__code__.co_names}
        builds = not used.isdisjoint(kind.__name__ for kind in _KINDS) and "run" not in used
        return not needed and (builds or _MAKER.fullmatch(value.__name__) is not None)
    kind = getattr(signature.return_annotation, "__origin__", signature.return_annotation)
    return not needed and isinstance(kind, type) and issubclass(kind, _KINDS)


def _mounts(outer: AnyServer, inner: AnyServer) -> bool:
    if not isinstance(outer, FastMCP) or outer is inner:
        return False
    providers = (inner_provider(provider) for provider in outer.providers)
    return any(isinstance(provider, FastMCPProvider) and provider.server is inner for provider in providers)


def _import(entry: EntryPoint) -> ModuleType:
    path = entry.file
    for folder in reversed(entry.folders):
        if str(folder) not in sys.path[:1]:
            sys.path.insert(0, str(folder))
        if not _can_list(folder):
            sys.meta_path.append(_SiblingFinder(folder))
    OwnModules.of(entry.folders, but=(path.stem,)).install()
    sys.argv = [str(path), *entry.arguments]
    try:
        if entry.package is not None:
            return importlib.import_module(entry.package[1])
        return _alone(path)
    except BaseException as error:
        raise _explain(entry, error) from error


def _alone(path: Path) -> ModuleType:
    """Import a file as a top-level module, even inside a package."""
    is_free = path.stem.isidentifier() and path.stem not in sys.modules
    name = path.stem if is_free else f"tool_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path.name} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _can_list(folder: Path) -> bool:
    try:
        os.listdir(folder)
    except OSError:
        return False
    return True


class _SiblingFinder(MetaPathFinder):
    """Finder of modules beside a tool file in a folder whose files may be read but not listed.

    The interpreter's own finder lists folders. In a folder that also has files of other people, only the
    tool file and the modules it imports are visible.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a top-level module beside the tool file."""
        if path is not None:
            return None
        for candidate in (self._folder / f"{fullname}.py", self._folder / fullname / "__init__.py"):
            if candidate.is_file():
                return importlib.util.spec_from_file_location(fullname, candidate)
        return None


def _explain(entry: EntryPoint, error: BaseException) -> LoadError:
    """Return the reason for a failed import in one sentence, with the author's own line."""
    path = entry.file
    if isinstance(error, LoadError):
        return error
    frames = author_frames(error, path.parent)
    if isinstance(error, SyntaxError) and (error.filename or "").endswith(".py"):
        text = (error.text or "").strip()
        where = f"{Path(str(error.filename)).name}, line {error.lineno}: `{text}`"
        return LoadError(f"{where} is not Python: {error.msg}", error.lineno)
    if isinstance(error, SyntaxError) and not frames:
        return LoadError(f"{path.name} is not Python: {error.msg}")
    line = int(str(frames[-1]["line"])) if frames else None
    where = f"{frames[-1]['file']}, line {line}: `{frames[-1]['text']}`" if frames else path.name
    if isinstance(error, OSError) and error.errno in _DENIALS and error.filename is not None:
        return LoadError(
            f"{where} tried to use {str(error.filename)!r} while the file was being imported; "
            "a tool file may write nothing and read no user's files at import: move it into a tool"
            f"{_lending(error, path.parent)}",
            line,
        )
    if isinstance(error, ModuleNotFoundError):
        return LoadError(f"{where} {_missing(error, entry)}", line)
    if isinstance(error, SystemExit):
        cure = _missing_variables(error, path, where) or _or_by_itself(entry)
        message = f"{where} left the interpreter (SystemExit {error.code!r}) at import{cure}"
        return LoadError(message, line, is_exit=isinstance(error.code, int))
    cure = _allowing(error, path.parent) or _missing_variables(error, path, where)
    return LoadError(f"{where} raised {type(error).__name__}: {error}{cure}", line)


def _allowing(error: BaseException, folder: Path) -> str:
    """Return the option that would allow what failed at import of a file in a folder, if there is one."""
    if isinstance(error, KeyError) and _is_of_environ(error):
        return _lending_variables([str(error.args[0])])
    for one in behind(error):
        # A denied socket has no file name; for denied files, Python sets one.
        is_denied = isinstance(one, PermissionError) and one.filename is None
        if is_denied or missed_network(str(one)):
            return "; without --allow-net=HOST a tool file has no network"
        if isinstance(one, sqlite3.OperationalError) and _UNWRITABLE.search(str(one)):
            return (
                "; a tool file may write nothing at import, and a database of SQLite is written when it is "
                "opened: open it in a tool. For the operator: --allow-write=FOLDER lends the folder that it "
                "lies in, and --allow-read=FOLDER lends it to be read"
            )
        if isinstance(one, FileNotFoundError):
            return _lending(one, folder)
    return ""


def _missing_variables(error: BaseException, path: Path, where: str) -> str:
    """Return the option for variables that a file reads and its error names, or without which it exits."""
    named = _unset_settings(error)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        names = dict.fromkeys(_ASKED.findall(path.read_text()))
        missing = [name for name in names if name not in os.environ]
        message = f"{where} {error}"
        named += [name for name in missing if name in message] or (
            missing if isinstance(error, SystemExit) else []
        )
    return _lending_variables(named)


def _lending_variables(named: list[str]) -> str:
    """Return the options that grant variables, except those that no tool may see."""
    lendable = [name for name in named if not name.startswith(OUR_VARIABLES)]
    if named and not lendable:
        return f"; no tool sees variables that begin with {OUR_VARIABLES}: choose another name"
    options = " ".join(f"--allow-env={name}" for name in lendable[:_MOST_NAMED])
    return options and f"; tools see few variables of the environment, and what it asks for with {options}"


def _unset_settings(error: BaseException) -> list[str]:
    """Return the missing variables that a settings class of `pydantic-settings` requires."""
    if not isinstance(error, ValidationError):
        return []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        kind = frame.f_globals.get(error.title)
        if isinstance(kind, type) and hasattr(kind, "settings_customise_sources"):
            prefix = str(getattr(kind, "model_config", {}).get("env_prefix", ""))
            absent = [fault for fault in error.errors(include_url=False) if fault["type"] == "missing"]
            return [f"{prefix}{fault['loc'][0]}".upper() for fault in absent if fault["loc"]]
    return []


def _lending(error: OSError, folder: Path) -> str:
    """Return the option that would lend a missing file: without it, an existing file may be invisible."""
    named = error.filename
    if isinstance(named, str) and not named.startswith("/"):
        own = Path(os.path.normpath(folder / named))
        hint = "a relative path does not lead from the folder in which the runner was started"
        if within(own, folder):
            return f"; {hint}: write Path(__file__).parent / {named!r}"
        return f"; {hint}: write it as an absolute path, which --allow-read={own.parent} lends to be read"
    if not isinstance(named, str):
        return ""
    if within(Path(named), folder):
        # Beside the tool file, only hidden files have to be lent.
        is_hidden = any(map(is_hidden_name, Path(named).relative_to(folder).parts))
        return f". For the operator: --allow-read={named} lends it to be read" if is_hidden else ""
    flag = flag_for(named, "read", homes=_USUAL_HOMES)
    return "" if flag is None else f". For the operator: {flag} lends it to be read, where it is there"


def _lending_modules() -> str:
    """Return the option that would lend a folder of `sys.path` that seems to have no modules."""
    # A file may put other objects there, too.
    for folder in map(str, sys.path):
        if folder.startswith((sys.prefix, sys.base_prefix)):
            # The archive of the standard library rarely exists.
            continue
        try:
            os.listdir(folder or ".")
        except NotADirectoryError:
            # An archive.
            continue
        except OSError:
            flag = flag_for(f"{folder}/module.py", "read", homes=_USUAL_HOMES)
            if flag is not None:
                return f". For the operator: {flag} lends a folder of sys.path to be read, where it is there"
    return ""


def _is_of_environ(error: KeyError) -> bool:
    """Return whether a key was missing in `os.environ`: then the last frame is in `os`."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return last.filename == os.__file__ or last.filename == "<frozen os>"


def _missing(error: ModuleNotFoundError, entry: EntryPoint) -> str:
    """Return the missing module, with a library's own advice and, for an old SDK, the remedy."""
    if str(error) == f"No module named {error.name!r}":
        hint = "" if entry.config is None else f"; see `environment` in {entry.config.name}"
        return f"needs the module {error.name!r}, which is not installed here{hint}{_lending_modules()}"
    message = f"needs the module {error.name!r}: {error}"
    if (error.name or "").startswith("mcp."):
        made = f"python -m venv {_OLD_SDK} && {_OLD_SDK}/bin/pip install 'mcp<2'"
        line = _run_by_itself(entry, f"{_OLD_SDK}/bin/python")
        message = (
            f"{message.rstrip('.')}. Serve it from an environment with that version, and what else it needs: "
        )
        message += f"{made}, then {line}"
    return message
