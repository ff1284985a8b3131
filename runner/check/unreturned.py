"""A rule on outputs: files that a tool writes by a name in the text, and that its result does not name.

Source: requirements S1-24, S1-27, S1-109; `docs/files.md`, "What a call leaves in its home".
"""

import ast
import posixpath
from collections.abc import Iterator

from runner.check.disk import DiskAccess, DiskCalls
from runner.check.home import strays
from runner.check.offers import Offer
from runner.check.rules import Finding
from runner.check.source import Function, SourceFile, own_nodes
from runner.check.templates import HOLE, USERNAME
from runner.homes.outputs import is_output

__all__ = ["unreturned"]

_FILES = frozenset(
    {"artifacts", "deferred_artifacts", "returned_file_names", "returned_file_contents", "path"}
)
# Calls that return a file in another way, or keep it at once.
_RETURNERS = ("runner.author", "fastmcp.utilities.types", "fastmcp.tools", "base64", "pybase64")
# What changes a folder or a file, and makes no output.
_NO_OUTPUT = frozenset(
    {
        "mkdir", "makedirs", "unlink", "remove", "rmdir", "removedirs", "rmtree", "chmod", "chown", "utime",
        "touch", "connect", "mkfifo", "mknod", "basicConfig", "extractall", "extract", "symlink_to",
        "hardlink_to", "link", "symlink", "truncate", "FileHandler", "RotatingFileHandler",
        "TimedRotatingFileHandler", "NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "mkstemp",
        "mkdtemp", "unpack_archive",
    }
)  # fmt: skip


def unreturned(
    source: SourceFile, disk: DiskCalls, reached: list[tuple[Offer, list[Function]]]
) -> Iterator[Finding]:
    """Yield, for each tool with a home, the first file that it writes and never returns."""
    # A file that is read again is kept for a later call, not for people.
    read = {
        access.target.text
        for access in map(disk.read, source.nodes)
        if access is not None and access.target is not None
    }
    # What a tool without a home runs too is told of by another rule.
    told: set[ast.AST] = {
        node
        for offer, functions in reached
        if not offer.has_home
        for function in functions
        for node in own_nodes(function)
    }
    for offer, functions in reached:
        if not offer.has_home:
            continue
        nodes = [node for function in functions for node in own_nodes(function)]
        left = [
            access
            for access in filter(None, map(disk.write, nodes))
            if _makes_output(access, read) and not _may_return(source, nodes, access)
        ]
        left.sort(key=lambda access: access.node.lineno)
        if left and left[0].node not in told:
            told.add(left[0].node)
            yield _finding(offer, left)


def _finding(offer: Offer, left: list[DiskAccess]) -> Finding:
    names = ", ".join(dict.fromkeys(repr(_name(access)) for access in left))
    message = (
        f"the tool {offer.name!r} writes {names} and does not return it: after the call it is in My Files, "
        "and nothing in the result shows it"
    )
    cure = 'name it in the result: `"artifacts": [{"name": …, "path": …}]`; or say `generated` in its meta'
    return Finding.at(left[0].node, "unreturned-file", message, cure)


def _name(access: DiskAccess) -> str:
    return posixpath.basename(access.target.text) if access.target is not None else ""


def _makes_output(access: DiskAccess, read: set[str]) -> bool:
    func = access.node.func
    called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if called in _NO_OUTPUT or access.target is None or access.target.text in read or strays(access):
        return False
    name = _name(access)
    # What people open has an ending.
    is_named = "." in name.strip(".") and HOLE not in name and USERNAME not in name
    below = access.target.text.replace(USERNAME, "user").replace(HOLE, "any").removeprefix("/tmp/user/")  # noqa: S108
    return is_named and is_output(below.lstrip("/")) and not _appends(access.node)


def _appends(call: ast.Call) -> bool:
    """Say whether a file is added to: a log, which no single call has made."""
    modes = [*call.args[:2], *(word.value for word in call.keywords if word.arg == "mode")]
    return any(isinstance(mode, ast.Constant) and mode.value in ("a", "ab", "at", "a+") for mode in modes)


def _may_return(source: SourceFile, nodes: list[ast.AST], access: DiskAccess) -> bool:
    """Say whether the result may name a file, as far as that can be told."""
    if any((source.dotted(node) or "").startswith(_RETURNERS) for node in nodes if _is_name(node)):
        return True
    if not any(_names_files(node) for node in nodes):
        return False
    # The tool returns some files. This one too, unless its name stands in the text once.
    name = _name(access)
    written = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    inline = any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.endswith(name)
        for part in ast.walk(access.node)
    )
    return not inline or sum(text.endswith(name) for text in written) > 1


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute | ast.Name)


def _names_files(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in _FILES
    return isinstance(node, ast.Constant) and node.value in _FILES
