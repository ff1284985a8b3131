"""Rules on files: who may write, where, and which paths cannot be meant.

Source: requirements S1-23, S1-47, S1-48, S1-57, S1-108, S1-110 and S1-111.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from runner.check.disk import DiskAccess, DiskCalls
from runner.check.offers import Offer
from runner.check.rules import Finding
from runner.check.source import Function, SourceFile, own_nodes
from runner.check.templates import HOLE, USERNAME, Template

__all__ = ["HomeRules", "strays"]

_WINDOWS = re.compile(r"[A-Za-z]:[\\/]")
_TMP = "/tmp/"  # noqa: S108 - where homes are, in every tool's eyes
_UNREADABLE = ("/home/", "/root/", "/run/", "/mnt/", "/media/", "/srv/", "/Users/")
_SYSTEM = (
    "/usr/", "/etc/", "/lib/", "/lib64/", "/bin/", "/sbin/", "/opt/", "/dev/", "/proc/", "/sys/", _TMP,
    "/var/lib/", "/var/cache/",
)  # fmt: skip
_LOST = "it is refused, or lands where no call may write"
_BRING_ALONG = "take it as the parameter `filename`, or keep it beside the tool file"


class HomeRules:
    """Finds what a file does with files that it may not, or that means another place than it seems."""

    def __init__(
        self, source: SourceFile, disk: DiskCalls, reached: list[tuple[Offer, list[Function]]]
    ) -> None:
        self._source = source
        self._reached = reached
        self._disk = disk
        self._writes = [access for access in map(disk.write, source.nodes) if access is not None]

    def homeless_writes(self) -> Iterator[Finding]:
        """Yield the first write of every tool, resource or prompt that has no home."""
        told: dict[tuple[Offer, ...], list[DiskAccess]] = {}
        for access in self._writes:
            homeless = tuple(offer for offer in self._running(access.node) if not offer.has_home)
            if homeless:
                told.setdefault(homeless, []).append(access)
        for offers, accesses in told.items():
            yield _homeless(offers, sorted(accesses, key=lambda access: access.node.lineno))

    def strayed_writes(self) -> Iterator[Finding]:
        """Yield writes of tools with a home that go elsewhere."""
        for access in self._strayed():
            assert access.target is not None  # noqa: S101 - it has strayed by its text
            shown = _path_shown(access.target.text, self._source.identity)
            home = f"/tmp/{{{self._source.identity}}}/"  # noqa: S108 - as authors write it
            message = f"{shown!r} is outside the home `{home}`, where alone a tool may write"
            if "{" in access.target.text:
                message = f"{shown!r} is no f-string, so its braces stay as they are"
            yield Finding.at(
                access.target.node, "write-outside-home", message, f'write below the home: `f"{home}…"`'
            )

    def writes_at_import(self, called: list[Function]) -> Iterator[Finding]:
        """Yield writes that happen while the file is imported, directly or in a function called there."""
        nodes = [*self._source.at_import(), *(node for function in called for node in own_nodes(function))]
        for access in filter(None, map(self._disk.write, nodes)):
            message = f"`{_shown(access.node)}` writes while the file is imported: {_LOST}"
            yield Finding.at(
                access.node,
                "write-at-import",
                message,
                f"move it into a tool that takes `{self._source.identity}`",
            )

    def inputs_without_home(self) -> Iterator[Finding]:
        """Yield tools that are given files and have no home beside them."""
        writing = {offer for access in self._writes for offer in self._running(access.node)}
        for offer, _ in self._reached:
            # Where it writes, that is reported, and has the same cure.
            if offer.kind != "tool" or offer.has_home or offer in writing:
                continue
            for parameter in offer.parameters:
                if parameter.arg in ("filename", "filenames"):
                    message = (
                        f"the tool {offer.name!r} takes `{parameter.arg}` but no `{offer.identity}`: "
                        "it can read its files and write nothing"
                    )
                    cure = f"add the parameter `{offer.identity}: str`"
                    yield Finding.at(parameter, "filename-without-username", message, cure)

    def fixed_paths(self, folder: Path) -> Iterator[Finding]:
        """Yield reads of paths that no tool can read, or that are there on one machine only."""
        written = {access.target.text for access in self._writes if access.target is not None}
        for node in self._source.nodes:
            access = self._disk.read(node)
            if access is None or access.target is None or access.target.text in written:
                continue
            if self._running(node):
                yield from _fixed(access.target, str(folder), self._source.identity)

    def _strayed(self) -> Iterator[DiskAccess]:
        for access in self._writes:
            running = self._running(access.node)
            if running and all(offer.has_home for offer in running) and strays(access):
                yield access

    def _running(self, node: ast.AST) -> list[Offer]:
        """Return what clients can reach that may run a node."""
        around = []
        function = self._source.function_around(node)
        while function is not None:
            around.append(function)
            function = self._source.function_around(function)
        return [
            offer for offer, functions in self._reached if any(function in functions for function in around)
        ]


def _homeless(offers: tuple[Offer, ...], accesses: list[DiskAccess]) -> Finding:
    (first, *more), identity = accesses, offers[0].identity
    names = ", ".join(repr(offer.name) for offer in offers)
    lines = sorted({access.node.lineno for access in more} - {first.node.lineno})
    also = f" (so do lines {', '.join(map(str, lines))})" if lines else ""
    if all(offer.kind == "tool" for offer in offers):
        who = f"the tool {names} has" if len(offers) == 1 else f"the tools {names} have"
        why = f"{who} no parameter `{identity}` and so may write nothing"
        cure = (
            f"add the parameter `{offers[0].identity}: str` and write below `/tmp/{{{offers[0].identity}}}/`"
        )
    else:
        why = f"{names} is no tool: resources and prompts may write nothing"
        cure = f"write in a tool that takes `{identity}`"
    message = f"`{_shown(first.node)}` writes{also}, but {why}"
    return Finding.at(first.node, "write-without-username", message, cure)


def _fixed(target: Template, folder: str, identity: str) -> Iterator[Finding]:
    path, shown = target.text, _path_shown(target.text, identity)
    if path.startswith(f"{folder}/") or path == _TMP + HOLE:
        return
    if path.startswith(_UNREADABLE) or _WINDOWS.match(path) or (path.startswith(_TMP) and _is_stray(path)):
        message = f"no tool can read {shown!r}: readable are system folders and what the call was given"
        yield Finding.at(target.node, "unreadable-path", message, _BRING_ALONG)
    elif path.startswith("/") and not f"{path}/".startswith(_SYSTEM):
        message = f"the path {shown!r} may be there on this machine only"
        yield Finding.at(target.node, "fixed-path", message, _BRING_ALONG)


def strays(access: DiskAccess) -> bool:
    """Say whether a write surely goes elsewhere than into the home."""
    if access.target is None:
        return False
    makes_folder = getattr(access.node.func, "attr", "") in ("mkdir", "makedirs")
    if makes_folder and access.target.text.rstrip("/") == _TMP + HOLE:
        # Most likely the home itself, by a name made of the user's.
        return False
    return _is_stray(access.target.text)


def _is_stray(path: str) -> bool:
    """Say whether a path is surely not in the home: elsewhere, directly in /tmp, or of a fixed user."""
    if _WINDOWS.match(path) or ".." in path.split("/"):
        return True
    if not path.startswith("/"):
        # Relative paths start in the home, and what begins with a hole is not known.
        return False
    _, top, *below = path.split("/")
    if top != "tmp" or not below:
        return True
    whole_folder = len(below) > 1 or below[0] == USERNAME
    return not (below[0] in (HOLE, USERNAME) and whole_folder)


def _shown(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _path_shown(path: str, identity: str) -> str:
    return path.replace(USERNAME, f"{{{identity}}}").replace(HOLE, "{…}")
