"""Load an author's tool file: import it and find its FastMCP object.

Runs in a confined zygote only. Every failure is a `LoadError` whose message is one sentence with
the author's own line; our frames never show.
"""

import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from fastmcp import FastMCP
from fastmcp.server.providers.fastmcp_provider import FastMCPProvider

from runner.internals.worker import inner_provider
from runner.targets import split_target
from runner.tool_transformer import NAME, ToolTransformer
from runner.widgets.serving import MountedPages
from sandbox.errors import LoadError

__all__ = ["ToolFile", "author_frames", "load_tool_files"]


class ToolFile:
    """One FILE argument: a path and, after a colon, the name of the object in it."""

    def __init__(self, target: str) -> None:
        path, self.object_name = split_target(target)
        self.path = Path(path)

    @property
    def prefix(self) -> str:
        """The namespace of its tools where several files are served."""
        return self.path.stem


def load_tool_files(targets: Sequence[str]) -> FastMCP:
    """Import the files and return the server to run: the file's own, or a mount of several.

    Raises:
        LoadError: A file cannot be imported, or holds no FastMCP object, or more than one.
    """
    files = [ToolFile(target) for target in targets]
    servers = [_load(file) for file in files]
    if len(servers) == 1:
        return servers[0]
    whole: FastMCP = FastMCP("runner")
    for file, server in zip(files, servers, strict=True):
        server.add_transform(MountedPages(file.prefix))
        whole.mount(server, namespace=file.prefix)
    return whole


def author_frames(error: BaseException, folder: Path) -> list[dict[str, object]]:
    """Return the author's own frames of a traceback, outermost first: file, line, function, text."""
    prefixes = (sys.prefix, sys.base_prefix, str(Path(__file__).parent))
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


def _load(file: ToolFile) -> FastMCP:
    module = _import(file.path)
    server = _server_of(module, file)
    function = vars(module).get(NAME)
    if callable(function):
        server.middleware.append(ToolTransformer(function))
    return server


def _server_of(module: ModuleType, file: ToolFile) -> FastMCP:
    servers = {name: value for name, value in vars(module).items() if isinstance(value, FastMCP)}
    if file.object_name is not None:
        if file.object_name in servers:
            return servers[file.object_name]
        raise LoadError(
            f"{file.path.name} has no FastMCP object named {file.object_name!r}; "
            f"it has {_names(servers) or 'none at all'}"
        )
    distinct = list({id(server): server for server in servers.values()}.values())
    roots = [server for server in distinct if not any(_mounts(other, server) for other in distinct)]
    if len(roots) == 1:
        return roots[0]
    if not roots:
        raise LoadError(
            f"{file.path.name} has no FastMCP object at its top level; add `mcp = FastMCP('name')` "
            "and decorate the tools with `@mcp.tool`"
        )
    raise LoadError(
        f"{file.path.name} has {len(roots)} FastMCP objects ({_names(servers)}); "
        f"say which one to serve: {file.path.name}:{next(iter(servers))}"
    )


def _names(servers: dict[str, FastMCP]) -> str:
    return ", ".join(sorted(servers))


def _mounts(outer: FastMCP, inner: FastMCP) -> bool:
    providers = (inner_provider(provider) for provider in outer.providers)
    return outer is not inner and any(
        isinstance(provider, FastMCPProvider) and provider.server is inner for provider in providers
    )


def _import(path: Path) -> ModuleType:
    name = (
        path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"tool_file_{path.stem}"
    )
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path.name} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    if not _can_list(path.parent):
        sys.meta_path.append(_SiblingFinder(path.parent))
    sys.argv = [str(path)]
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        raise _explain(path, error) from error
    return module


def _can_list(folder: Path) -> bool:
    try:
        os.listdir(folder)
    except OSError:
        return False
    return True


class _SiblingFinder(MetaPathFinder):
    """Finds modules beside a tool file in a folder that may be read by name but not listed.

    The interpreter's own finder lists a folder to know what is in it. In a folder that also holds
    other people's things, only the file and the modules it imports may be seen.
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


def _explain(path: Path, error: BaseException) -> LoadError:
    """Say in one sentence why the import failed, with the author's own line."""
    frames = author_frames(error, path.parent)
    if isinstance(error, SyntaxError) and (error.filename or "").endswith(".py"):
        text = (error.text or "").strip()
        where = f"{Path(str(error.filename)).name}, line {error.lineno}: `{text}`"
        return LoadError(f"{where} is not Python: {error.msg}", error.lineno)
    if isinstance(error, SyntaxError) and not frames:
        return LoadError(f"{path.name} is not Python: {error.msg}")
    line = int(str(frames[-1]["line"])) if frames else None
    where = f"{frames[-1]['file']}, line {line}: `{frames[-1]['text']}`" if frames else path.name
    if isinstance(error, PermissionError) and error.filename is not None:
        return LoadError(
            f"{where} tried to use {str(error.filename)!r} while the file was being imported; "
            "a tool file may write nothing and read no user's files at import: move it into a tool",
            line,
        )
    if isinstance(error, ModuleNotFoundError):
        return LoadError(f"{where} needs the module {error.name!r}, which is not installed here", line)
    if isinstance(error, SystemExit):
        return LoadError(f"{where} left the interpreter (SystemExit {error.code!r}) at import", line)
    return LoadError(f"{where} raised {type(error).__name__}: {error}", line)
