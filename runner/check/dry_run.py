"""A dry run: each tool is called once in the sandbox with example arguments, and its files are reported.

Nothing leaves the sandbox: it has its own user and store, no network, no writable lent folder, no secrets.

Source: requirements S1-23, S1-24, S1-27, S1-47, S1-48, S1-108, S1-109 and S1-111.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.call import execute, own_request, relay
from runner.check.source import Finding, SourceFile
from runner.check.wire_rules import page_faults, seen_at_import, tool_faults
from runner.contract.error_messages import legible
from runner.errors import RunnerError
from runner.settings.execution import SettingsT, ToolSettings
from runner.settings.settings import Settings
from runner.steps.verdict import plain_denial
from runner.store.protocol import Origin
from runner.toolset.catalog import ToolSpec, refused_jobs
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User
from runner.users.tool_secrets import Secrets, secret_fault
from runner.worker.wire import WireError
from sandbox.errors import SandboxError
from sandbox.outcome import Denial
from sandbox.probe.machine import Tier

__all__ = [
    "MALFORMED", "Arguments", "CallEnd", "call_once", "closed", "example", "example_arguments", "in_sandbox",
    "prepared",
]  # fmt: skip

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions of code that reads an author's JSON, which may have any shape."""

_FORKED = "every call is forked from a process that has loaded the file"
_ONE_SHOT = "each call has its own interpreter: a thread or process runs after the import, or by worker_start"
_LONGEST_S = 5.0
_MOST_PAGES = 100
_MOST_TOUCHED = 200
# Bounds of example arguments: a schema of a few lines can demand more than fits into memory.
_MOST_VALUES = 1_000
_MOST_CHARS = 10_000
_FILE = "example.csv"
_CONTENT = b"name,value\nexample,1\nanother,2\n"
_BRING_ALONG = "take it as the parameter `filename`, or keep it beside the tool file"
_RETURN = 'name it in the result: `"artifacts": [{"name": …, "path": …}]`, or set `generated` in its meta'
_OF_OTHERS = ("/home/", "/root/", "/run/", "/mnt/", "/media/", "/srv/", "/data/", "/tmp/")  # noqa: S108
_SYSTEM = ("/usr/", "/lib", "/etc/", "/proc/", "/sys/", "/dev/", sys.prefix, sys.base_prefix)

Arguments = Callable[[Toolset, User, ToolSpec], Awaitable[Mapping[str, Any]]]
"""Function that returns the arguments of a tool's call, after putting the named files into My Files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """The end of one call of a tool.

    Attributes:
        error: Its error; None if it passed.
        denials: Its denials.
        missing: Path that its tool did not find, if that ended it.
        unreturned: Names of the files that it wrote but did not return.
        answer: The answer of its worker, which has run the author's code and could send anything.
    """

    error: str | None
    denials: tuple[Denial, ...] = ()
    missing: str = ""
    unreturned: tuple[str, ...] = field(default=(), compare=False)
    answer: Any = field(default=None, compare=False)


def closed(settings: SettingsT, folder: Path) -> SettingsT:
    """Return settings under which calls of tools change nothing outside the sandbox and `folder`."""
    shut = {
        "allow_net": (), "allow_write": (), "allow_sockets": False, "scopes": (),
        "idle_timeout_s": _LONGEST_S, "total_timeout_s": _LONGEST_S,
    }  # fmt: skip
    tools = {"*": ToolSettings(), **settings.tools}
    update = {
        "store": (folder / "store").as_uri(), "secrets": {}, "call_limits": {}, "approvals": {},
        "generated": "report", "audit_dir": None, "metrics_address": None,
        "idle_timeout_s": _LONGEST_S, "total_timeout_s": _LONGEST_S,
        "tools": {name: own.model_copy(update=shut) for name, own in tools.items()},
    }  # fmt: skip
    return settings.model_copy(update=update)


async def in_sandbox(
    settings: Settings, target: str, source: SourceFile, report: dict[str, Any]
) -> list[Finding]:
    """Load the file in the sandbox, call its tools, add to the report, and return findings.

    Raises:
        SandboxError: It cannot be loaded, or its offers are malformed.
    """
    # Few names: each keeps a user id of this machine for ever. Concurrent runs rarely share a home.
    nobody, user = User("nobody"), User(f"runner-check-{os.getpid() % 16}")
    with tempfile.TemporaryDirectory(prefix="runner-check-") as folder:
        shut, program = closed(settings, Path(folder)), "runner.check.program"
        async with Toolset.open(shut, [target], program=program, secrets=Secrets()) as toolset:
            tools, access = toolset.catalog.tools, toolset.key(nobody, access=HomeAccess.NONE)
            async with toolset.user_pool(nobody, access) as user_pool:
                loaded, forks = user_pool.pool.loaded, user_pool.pool.forks
            shown = await _pages(toolset)
            # Without a kernel layer a call would be real, not a dry run.
            tried = () if toolset.tier is Tier.GUARD else tools.values()
            called = [await _called(toolset, user, spec, source) for spec in tried]
    homes = {name: HomeAccess.of(tool, homes_for=settings.homes_for).value for name, tool in tools.items()}
    arguments = {name: list(map(str, tool.parameters.get("properties", ()))) for name, tool in tools.items()}
    known = {offer.name for offer in source.offers}
    rules = [(name, rule) for name, rule in settings.secrets.items() if set(rule.tools) & set(tools)]
    report |= {
        "loads": True,
        "runs": {"forked": forks, "why": _FORKED if forks else _ONE_SHOT},
        "tools": [{"name": name, "arguments": arguments[name], "home": homes[name]} for name in tools],
        "background_refused": refused_jobs(settings, tools),
        "secrets": {name: await asyncio.to_thread(secret_fault, name, rule) for name, rule in rules},
        "dry_run": [run for run, _ in called],
        "not_looked_at": [name for name in tools if name not in known],
    }
    offered: Any = loaded.hello.get("tools", ())
    try:
        findings = [*seen_at_import(loaded.hello, source, threads=loaded.threads)]
        for tool in offered:
            findings += tool_faults(tool, source)
        for page in shown:
            line = next((n for n, text in enumerate(source.lines, 1) if str(page.get("uri")) in text), 1)
            findings += page_faults(page, offered, line)
    except MALFORMED as error:
        raise SandboxError(f"its offers are malformed: {error}") from error
    return [*findings, *(finding for _, found in called for finding in found)]


async def _called(
    toolset: Toolset, user: User, spec: ToolSpec, source: SourceFile
) -> tuple[dict[str, Any], list[Finding]]:
    """Call a tool; return its report, and findings."""
    report: dict[str, Any] = {"tool": spec.name, "arguments": {}, "wrote": [], "read": [], "denied": []}
    arguments = await prepared(example_arguments, toolset, user, spec)
    if isinstance(arguments, str):
        return report | {"error": arguments}, []
    tried = await call_once(toolset, user, spec.name, arguments)
    home, refused = f"{toolset.settings.homes / user.segment}/", {denial.path for denial in tried.denials}
    beside = (*_SYSTEM, *{str(file.parent) for file in toolset.named_files})
    opened: dict[str, list[str]] = {"write": [*tried.unreturned], "read": []}
    line = next((offer.function.lineno for offer in source.offers if offer.name == spec.name), 1)
    is_of_others = tried.missing.startswith(_OF_OTHERS) and not tried.missing.startswith(home)
    missing = legible(tried.missing) if is_of_others and tried.missing not in str(arguments) else ""
    with contextlib.suppress(*MALFORMED):
        for kind, path in tried.answer["touched"][:_MOST_TOUCHED]:
            if path not in refused and not (kind == "read" and path.startswith(beside)):
                opened[kind].append(legible(path.removeprefix(home)))
        frames = tried.answer["raised"]["frames"]
        line = int([frame["line"] for frame in frames if frame["file"] == source.name][-1])
    report |= {
        "arguments": arguments,
        "error": tried.error,
        "wrote": list(dict.fromkeys(opened["write"])),
        "read": [name for name in dict.fromkeys(opened["read"]) if name not in (*opened["write"], missing)],
        "denied": [plain_denial(denial) for denial in tried.denials],
    }
    # Findings on the line that raised, else on that of the tool.
    below, run = f"/tmp/{{{source.identity}}}/", f"in a dry run the tool {spec.name!r}"  # noqa: S108 - as authors write it
    outside = ("write-outside-home", f'write below its home: `f"{below}…"`')
    homeless = ("write-without-username", f"take `{source.identity}: str` and write below `{below}`")
    has_home = HomeAccess.of(spec, homes_for=toolset.settings.homes_for) is HomeAccess.WRITE
    rules = {"write": outside if has_home else homeless, "read": ("unreadable-path", _BRING_ALONG)}
    findings = []
    # A library that handles a denial is not at fault.
    for denial in tried.denials if tried.error is not None else ():
        if denial.wants in rules:
            rule, cure = rules[denial.wants]
            message = f"{run} was denied `{denial.operation}` of {legible(denial.path)}"
            findings.append(Finding(rule, line, message, cure))
    if missing:
        message = f"{run} found no file {missing} in the sandbox"
        findings.append(Finding("unreadable-path", line, message, _BRING_ALONG))
    if tried.unreturned:
        message = f"{run} wrote {', '.join(map(repr, tried.unreturned))} and did not return it"
        findings.append(Finding("unreturned-file", line, message, _RETURN))
    return report, findings


async def _pages(toolset: Toolset) -> list[Mapping[str, Any]]:
    """Return the contents of each `ui://` resource, as a client reads them."""
    user, found = User("nobody"), []
    with contextlib.suppress(WireError, RunnerError, *MALFORMED):
        listed = await relay(toolset, own_request(toolset, user, "resources/list", {}))
        uris = [uri for entry in listed["resources"] if (uri := str(entry["uri"])).startswith("ui://")]
        for uri in uris[:_MOST_PAGES]:
            request = own_request(toolset, user, "resources/read", {"uri": uri})
            found += (await relay(toolset, request))["contents"]
    return found


async def call_once(toolset: Toolset, user: User, tool: str, arguments: Mapping[str, Any]) -> CallEnd:
    """Call a tool once.

    Raises:
        SandboxError: The file cannot be loaded.
    """
    params = {"name": tool, "arguments": dict(arguments)}
    request = own_request(toolset, user, "tools/call", params)
    error: str | None = None
    unreturned: tuple[str, ...] = ()
    try:
        completed = await execute(toolset, request)
    except WireError as raised:
        error = legible(str(raised))
    else:
        processed = completed.processed
        unreturned = tuple(str(entry["file"]) for entry in processed.generated)
        if processed.failure is not None:
            error = legible(processed.failure.message)
        elif completed.interim is not None:
            error = "it asks for input while it runs, and there is no client here to answer"
        elif processed.is_error:
            error = "the tool returned an error"
    outcome, missing = request.steps.outcome, ""
    answer: Any = None if outcome is None else outcome.answer
    with contextlib.suppress(*MALFORMED):
        missing = str(answer["raised"]["filename"]) if answer["raised"]["type"] == "FileNotFoundError" else ""
    denials = () if outcome is None else outcome.denials
    return CallEnd(error=error, denials=denials, missing=missing, unreturned=unreturned, answer=answer)


async def prepared(
    arguments: Arguments, toolset: Toolset, user: User, spec: ToolSpec
) -> Mapping[str, Any] | str:
    """Return the arguments of a call, or a sentence with the reason if there are none."""
    try:
        return await arguments(toolset, user, spec)
    except MALFORMED as fault:
        return f"it was not called, as its schema has no example: {legible(str(fault))}"


async def example_arguments(toolset: Toolset, user: User, spec: ToolSpec) -> Mapping[str, Any]:
    """Return an example of the arguments of a tool; a file among them is in My Files."""
    files, identity = toolset.files(user), toolset.settings.username_parameter
    if spec.takes_files and await files.find(_FILE) is None:
        await files.put(_CONTENT, name=_FILE, origin=Origin.UPLOADED)
    return {key: item for key, item in example(spec.parameters).items() if key != identity}


def example(
    schema: Any, name: str = "", root: Mapping[str, Any] | None = None, left: Iterator[int] | None = None
) -> Any:
    """Return a value that a JSON Schema accepts: an example, a default, or the simplest of its type.

    Raises:
        ValueError: It would be too large.
        MALFORMED: The schema is malformed.
    """
    root = schema if root is None else root
    left = iter(range(_MOST_VALUES)) if left is None else left
    if next(left, None) is None:
        raise ValueError(f"its arguments have more than {_MOST_VALUES} values")
    # True stands for any value.
    schema = {} if schema is True else schema
    if "$ref" in schema:
        # Resolved once: a recursive type would have no end.
        name_of, defs = str(schema["$ref"]).rpartition("/")[2], root.get("$defs", {})
        rest = {key: item for key, item in defs.items() if key != name_of}
        return example(defs.get(name_of, {}), name, {"$defs": rest}, left)
    if name in ("filename", "filenames"):
        return _FILE if name == "filename" else [_FILE]
    for key in ("examples", "enum", "const", "default", "anyOf", "oneOf", "allOf"):
        if schema.get(key):
            first = schema[key] if key in ("const", "default") else schema[key][0]
            return example(first, name, root, left) if key.endswith("Of") else _short(first)
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {
                key: example(properties.get(key, {}), key, root, left) for key in schema.get("required", ())
            }
        case "array":
            items = itertools.repeat(schema.get("items", {}), max(1, int(schema.get("minItems", 1))))
            return [example(each, "", root, left) for each in items]
        case "integer" | "number":
            return max(1, schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return False
        case "null":
            return None
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", _MOST_CHARS))
    return _short("example".ljust(min(least, _MOST_CHARS + 1), "e")[: max(0, most)])


def _short(value: Any) -> Any:
    """Return a value shortened for messages."""
    if len(json.dumps(value)) > _MOST_CHARS:
        raise ValueError(f"an argument has more than {_MOST_CHARS} characters")
    return value
