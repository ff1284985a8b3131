"""Rules on the text of a tool file, before it runs: pure and syntactic, without inference of values.

Source: document 002, "Common mistakes"; requirements S1-57, S1-110, S1-114 to S1-121 and S2-31.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from textwrap import shorten
from typing import Any

from runner.check.source import Finding, Function, Offer, SourceFile, own_nodes
from runner.formats.nearest import likeness

__all__ = ["check_text", "needs"]

_NEEDS = {
    "network": (
        "requests.", "httpx.", "aiohttp.", "urllib.request.", "urllib3.", "http.client.", "socket.",
        "smtplib.", "ftplib.", "boto3.", "websockets.", "openai.", "anthropic.", "asyncpg.", "psycopg",
    ),
    "programs": (
        "subprocess.", "os.system", "os.popen", "os.spawn", "os.exec", "os.posix_spawn", "asyncio.create_sub",
    ),
}  # fmt: skip
# Variables set by the runner itself: the home, the user, and the search path of programs.
_GIVEN = ("HOME", "USER", "LOGNAME", "TMPDIR", "PATH", "LANG", "TZ", "TERM", "SHELL")

_Reached = list[tuple[Offer, list[Function]]]

_ENVELOPE = (
    "results", "meta_data", "meta-data", "display", "artifacts", "deferred_artifacts", "returned_file_names",
    "returned_file_contents",
)  # fmt: skip
# Least similarity, ignoring case and punctuation, of a mistyped key.
_LEAST_LIKE = 0.8
_STDOUT = ("sys.stdout", "sys.__stdout__")
_PRINTERS = frozenset({"print", "pprint.pprint", "rich.print", "click.echo", "typer.echo"})
_SLEEPS = re.compile(r"(time|asyncio|anyio|trio)\.sleep")
_WAITS = re.compile(
    r"(requests|httpx)\.(get|post|put|patch|delete|head|request)|urllib\.request\.url(open|retrieve)|os\.system"
    r"|subprocess\.(run|call|check_call|check_output|getoutput)|socket\.create_connection"
)
_LOOPS = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_REPORTS = frozenset({"report_progress", "increment", "set_message", "set_total"})
_MESSAGES = frozenset({"info", "debug", "warning", "error", "log", "notice", "send_notification"})
_CHANGES = (
    "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "pop", "popleft",
    "popitem", "remove", "discard", "clear",
)  # fmt: skip
_OPENERS = ("open", "io.open", "codecs.open", "aiofiles.open", "anyio.open_file")
_PACKERS = ("gzip.open", "bz2.open", "lzma.open", "zipfile.ZipFile", "tarfile.open", "PIL.Image.open")
_WRITERS = re.compile(
    r"os\.(mkdir|makedirs|remove|unlink|renames?|replace|rmdir|removedirs|link|symlink|truncate|chmod|chown|utime"
    r"|mkfifo|mknod)|shutil\.(copy|copy2|copyfile|copytree|move|rmtree|make_archive|unpack_archive)"
    r"|tempfile\.(NamedTemporaryFile|TemporaryFile|TemporaryDirectory|mkstemp|mkdtemp)"
    r"|logging\.(FileHandler|handlers\.(Timed)?RotatingFileHandler)|urllib\.request\.urlretrieve|shelve\.open"
)
_PATH_METHODS = ("write_text", "write_bytes", "mkdir", "touch", "unlink", "symlink_to", "hardlink_to")
_EXPORT = re.compile(r"(to|write|sink)_[a-z]+|save\w*|imsave|imwrite|tofile|extractall|connect")


def check_text(source: SourceFile) -> Iterator[Finding]:
    """Yield each line of a tool file that would surprise its author."""
    reached = [(offer, source.reached(offer.function)) for offer in source.offers]
    return chain(
        _misspelled_keys(reached),
        _homeless_writes(source, reached),
        _writes_at_import(source),
        _prints(source),
        _silent_loops(source, reached),
        _stores_in_memory(source, reached),
    )


def needs(source: SourceFile) -> list[dict[str, str | int]]:
    """Return each need of a policy: its `kind`, the function or variable, and the line of the first."""
    first: dict[tuple[str, str], int] = {}
    for node in sorted(_running(source), key=lambda node: getattr(node, "lineno", 0)):
        dotted = source.dotted(getattr(node, "func", getattr(node, "value", None)))
        name: ast.expr | None = None
        if isinstance(node, ast.Subscript) and dotted == "os.environ":
            name = node.slice
        elif isinstance(node, ast.Call) and dotted in ("os.getenv", "os.environ.get") and node.args:
            name = node.args[0]
        elif isinstance(node, ast.Call) and dotted != "socket.gethostname":
            for kind in (kind for kind, starts in _NEEDS.items() if dotted.startswith(starts)):
                first.setdefault((kind, dotted), node.lineno)
        if isinstance(name, ast.Constant) and name.value not in _GIVEN:
            first.setdefault(("environment", str(name.value)), name.lineno)
    return [{"kind": kind, "what": what, "line": line} for (kind, what), line in first.items()]


def _running(source: SourceFile) -> list[ast.AST]:
    """Return the nodes that run at import or in a call of one of the file's components."""
    functions = source.reached(*(offer.function for offer in source.offers))
    return list(dict.fromkeys([*source.at_import, *chain.from_iterable(map(ast.walk, functions))]))


def _misspelled_keys(reached: _Reached) -> Iterator[Finding]:
    """Yield keys of returned dicts that are misspelled keys of the contract."""
    for offer, functions in reached:
        for function in functions if offer.kind == "tool" else ():
            returned = [node.value for node in own_nodes(function) if isinstance(node, ast.Return)]
            names = {value.id for value in returned if isinstance(value, ast.Name)}
            returned += [key for name, key in _assigned(function) if name in names]
            for found in (value for value in returned if isinstance(value, ast.Dict)):
                if None in found.keys:
                    # Keys unpacked with `**` are not in the text.
                    continue
                keys = {key.value: key for key in found.keys if isinstance(key, ast.Constant)}
                if set(keys) == {"result"} and function is offer.function:
                    message = "`result` alone is taken for `results`, but plain FastMCP shows one level more"
                    cure = "write `results`, or return the bare value"
                    yield Finding.at(keys["result"], "result-for-results", message, cure)
                else:
                    yield from _misspelled_in(keys)


def _misspelled_in(keys: Mapping[Any, ast.Constant]) -> Iterator[Finding]:
    is_envelope = any(key in keys for key in _ENVELOPE)
    wanted = ("results",) if "results" not in keys else _ENVELOPE
    for key, node in keys.items():
        spelling = re.sub(r"[\W_]", "", str(key).lower())
        alike = (name for name in wanted if likeness(spelling, name.replace("_", "")) > _LEAST_LIKE)
        intended = next((name for name in alike if name not in keys), None)
        if intended is not None and key not in _ENVELOPE and (is_envelope or key != "result"):
            rule = "misspelled-results" if intended == "results" else "misspelled-key"
            message = f"the contract has no key {key!r}: it becomes data, and `{intended}` is missing"
            yield Finding.at(node, rule, message, f"write `{intended}`")


def _assigned(root: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in own_nodes(root):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, node.value


def _homeless_writes(source: SourceFile, reached: _Reached) -> Iterator[Finding]:
    """Yield the first write of every tool, resource or prompt that has no home."""
    first: dict[ast.Call, list[Offer]] = {}
    for offer, functions in reached:
        nodes = (node for function in functions for node in ast.walk(function) if not offer.has_home)
        calls = [node for node in nodes if isinstance(node, ast.Call) and _writes(source, node)]
        if calls:
            first.setdefault(min(calls, key=lambda call: call.lineno), []).append(offer)
    for call, offers in first.items():
        names, identity = ", ".join(repr(offer.name) for offer in offers), source.identity
        why = f"without a parameter `{identity}` the {offers[0].kind} {names} may write nothing"
        cure = f"write in a tool that takes `{identity}: str`, below `/tmp/{{{identity}}}/`"
        yield Finding.at(call, "write-without-username", f"`{_shown(call)}` writes, but {why}", cure)


def _writes_at_import(source: SourceFile) -> Iterator[Finding]:
    """Yield writes and waits that happen while the file is imported."""
    for call in (node for node in source.at_import if isinstance(node, ast.Call)):
        if _writes(source, call):
            message = f"`{_shown(call)}` writes while the file is imported: it is refused, or lost"
            cure = f"move it into a tool that takes `{source.identity}`"
            yield Finding.at(call, "write-at-import", message, cure)
        dotted = source.dotted(call.func)
        if _SLEEPS.fullmatch(dotted) or _WAITS.fullmatch(dotted):
            message = f"`{dotted}` waits while the file is imported, and the first call of each user with it"
            cure = "move it into a tool, or into a function with `functools.cache` that a tool calls"
            yield Finding.at(call, "slow-import", message, cure)


def _shown(call: ast.Call) -> str:
    return shorten(ast.unparse(call), 60, placeholder="…")


def _writes(source: SourceFile, call: ast.Call) -> bool:
    """Return whether a call surely writes a file, by its name, its mode and a path in the text."""
    dotted, words = source.dotted(call.func), {word.arg: word.value for word in call.keywords}
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    target = call.args[0] if call.args else next(iter(words.values()), None)
    if isinstance(target, ast.Constant) and str(target.value).startswith("/dev/"):
        return False
    if _WRITERS.fullmatch(dotted) or (dotted == "logging.basicConfig" and "filename" in words):
        return True
    if dotted in (*_OPENERS, *_PACKERS) or method == "open":
        position = 1 if dotted else 0
        mode = words.get("mode", call.args[position] if len(call.args) > position else None)
        modes = [mode.body, mode.orelse] if isinstance(mode, ast.IfExp) else [mode]
        values = [str(one.value) for one in modes if isinstance(one, ast.Constant)]
        writes = any(re.fullmatch(r"[rbt]*[wax+][rwaxbt+]*(:\w*)?", text) for text in values)
        return writes and (dotted not in _PACKERS or _is_path(source, target))
    if method in _PATH_METHODS:
        return not dotted or dotted.startswith("pathlib.")
    return _EXPORT.fullmatch(method) is not None and _is_path(source, target)


def _is_path(source: SourceFile, target: ast.expr | None) -> bool:
    """Return whether an expression is evidently a path: a text with a suffix or folder, or a `Path`."""
    if isinstance(target, ast.BinOp):
        return _is_path(source, target.left) or _is_path(source, target.right)
    if isinstance(target, ast.JoinedStr):
        return any(_is_path(source, part) for part in target.values)
    if isinstance(target, ast.Call):
        return source.dotted(target.func) in ("pathlib.Path", "os.path.join")
    text = str(target.value) if isinstance(target, ast.Constant) else ""
    return re.search(r"[./]", text) is not None and "://" not in text


def _prints(source: SourceFile) -> Iterator[Finding]:
    """Yield prints at import or in a call: with stdio, standard output carries the protocol."""
    for call in (node for node in _running(source) if isinstance(node, ast.Call)):
        dotted = source.dotted(call.func)
        words = {word.arg: source.dotted(word.value) for word in call.keywords}
        if dotted in _PRINTERS:
            prints = all(words[key] in _STDOUT for key in ("file", "stream", "err") if key in words)
        elif dotted in ("logging.basicConfig", "logging.StreamHandler"):
            prints = any(one in _STDOUT for one in (*words.values(), *map(source.dotted, call.args)))
        else:
            prints = dotted.endswith((".write", ".writelines")) and dotted.startswith(_STDOUT)
        if prints:
            message = "this prints to standard output, which no caller reads and plain stdio uses for MCP"
            cure = "return it, send it by `ctx.info(…)`, or `print(…, file=sys.stderr)`"
            yield Finding.at(call, "print-to-stdout", message, cure)


def _silent_loops(source: SourceFile, reached: _Reached) -> Iterator[Finding]:
    """Yield loops that sleep or wait for something outside, in components without progress reports."""
    for offer, functions in reached:
        nodes = [node for function in functions for node in ast.walk(function)]
        uses = [node for node in nodes if isinstance(node, ast.Attribute)]
        # A context may have any name, but a logger's name usually contains "log".
        sends = (use.value for use in uses if use.attr in _MESSAGES)
        if {use.attr for use in uses} & _REPORTS or any("log" not in ast.unparse(to).lower() for to in sends):
            continue
        inner: set[ast.AST] = set()
        for loop in (node for node in nodes if isinstance(node, _LOOPS) and node not in inner):
            listed = isinstance(loop, ast.For) and isinstance(loop.iter, ast.Tuple | ast.List | ast.Set)
            calls = [source.dotted(node.func) for node in ast.walk(loop) if isinstance(node, ast.Call)]
            waits = (_SLEEPS.fullmatch(call) or (not listed and _WAITS.fullmatch(call)) for call in calls)
            found = next((match[0] for match in waits if match), None)
            if found is not None:
                inner |= set(ast.walk(loop))
                subject = f"the {offer.kind} {offer.name!r}"
                message = f"this loop waits in `{found}`, and {subject} never reports: 30 s of silence end it"
                cure = "report in the loop: `await ctx.report_progress(done, total)` with `ctx: Context`"
                yield Finding.at(loop, "silent-loop", message, cure)


def _stores_in_memory(source: SourceFile, reached: _Reached) -> Iterator[Finding]:
    """Yield module-level names that one function changes and another one, of another component, uses."""
    by_function: dict[Function, list[str]] = {}
    for offer, functions in reached:
        for function in functions:
            by_function.setdefault(function, []).append(offer.name)
    parts = {function: list(ast.walk(function)) for function in by_function}
    for name in dict(_assigned(source.tree)):
        users = [
            function
            for function, nodes in parts.items()
            if any(getattr(node, "id", "") == name for node in nodes)
        ]
        users = [function for function in users if not _hides(parts[function], name)]
        changes = [node for function in users for node in parts[function] if _is_change(node, name)]
        offers = dict.fromkeys(offer for function in users for offer in by_function[function])
        if changes and len(users) > 1 and len(offers) > 1:
            shown = " and ".join(f"`{offer}`" for offer in list(offers)[:3])
            message = (
                f"`{name}` is kept in the memory of one process, and {shown} may run in different ones of "
                "one user: two calls at once are two processes, and a process can end between two calls"
            )
            cure = (
                f"keep what must last in a file below `/tmp/{{{source.identity}}}/`, or by "
                "`await ctx.set_state(…)`; or set `max_calls_per_user = 1`, so that a user has one process"
            )
            first = min(changes, key=lambda node: getattr(node, "lineno", 0))
            yield Finding.at(first, "store-in-memory", message, cure)


def _hides(nodes: list[ast.AST], name: str) -> bool:
    """Return whether a function has a parameter or local variable of that name."""
    if any(isinstance(node, ast.Global) and name in node.names for node in nodes):
        return False
    stored = (node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return name in stored or any(isinstance(node, ast.arg) and node.arg == name for node in nodes)


def _is_change(node: ast.AST, name: str) -> bool:
    """Return whether a node assigns a module-level name, or an item or attribute, or changes its content."""
    match node:
        case ast.Name(ctx=ast.Store() | ast.Del()):
            return node.id == name
        case ast.Subscript(value=held, ctx=context) | ast.Attribute(value=held, ctx=context):
            return not isinstance(context, ast.Load) and getattr(held, "id", "") == name
        case ast.Call(func=ast.Attribute(value=held, attr=method)):
            return method in _CHANGES and getattr(held, "id", "") == name
        case _:
            return False
