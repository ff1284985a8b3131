"""A rule on time: a loop that waits or reads must say that it is alive, or its call ends after 30 s.

Source: requirements S1-114 to S1-121.
"""

import ast
from collections.abc import Iterator

from runner.check.bindings import Bindings
from runner.check.disk import DiskCalls
from runner.check.offers import Offer, is_context
from runner.check.rules import Finding
from runner.check.source import Function, SourceFile, own_nodes
from runner.check.values import ValueKind

__all__ = ["ProgressRules"]

_LOOPS = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_SLEEPS = frozenset({"time.sleep", "asyncio.sleep", "anyio.sleep", "trio.sleep"})
_WAITS = (
    "requests.", "httpx.", "aiohttp.", "urllib.request.", "urllib3.", "http.client.", "smtplib.", "ftplib.",
    "boto3.", "socket.create_connection", "subprocess.run", "subprocess.check_", "subprocess.call",
    "subprocess.getoutput", "os.system", "shutil.copy", "shutil.move", "pandas.read_", "polars.read_",
    "numpy.load", "PIL.Image.open",
)  # fmt: skip
_WAITING_METHODS = frozenset({"recv", "readline", "iter_content", "iter_lines", "iter_bytes", "getresponse"})
_SESSIONS = frozenset(
    {
        "httpx.Client", "httpx.AsyncClient", "requests.Session", "requests.session", "aiohttp.ClientSession",
        "socket.socket", "ftplib.FTP", "urllib3.PoolManager", "socket.create_connection",
    }
)  # fmt: skip
_MESSAGES = frozenset({"info", "debug", "warning", "error", "log", "notice", "send_notification"})
_STEPS = frozenset({"increment", "set_message", "set_total"})
_PASSED_ON = frozenset(
    {
        "csv.reader", "csv.DictReader", "fileinput.input", "ijson.items", "enumerate", "zip", "iter",
        "reversed", "sorted", "itertools.islice",
    }
)  # fmt: skip
_PIECEWISE = frozenset(
    {
        "iter_content", "iter_lines", "iter_bytes", "iter_batches", "iter_chunked", "aiter_bytes",
        "aiter_lines", "aiter_text", "aiter_raw",
    }
)  # fmt: skip
_CURE = "report in the loop: `await ctx.report_progress(done, total)` with `ctx: Context`"


class ProgressRules:
    """Finds loops that may be silent for long."""

    def __init__(self, source: SourceFile, disk: DiskCalls, bindings: Bindings) -> None:
        self._source = source
        self._disk = disk
        self._bindings = bindings
        self._files: dict[ast.AST, bool] = {}

    def silent_loops(self, reached: list[tuple[Offer, list[Function]]]) -> Iterator[Finding]:
        """Yield the loops of what clients can reach that never reports."""
        told: set[ast.AST] = set()
        for offer, functions in reached:
            if any(self._reports(node) for function in functions for node in ast.walk(function)):
                continue
            for function in functions:
                for loop, why in self._slow_loops(function):
                    if loop not in told:
                        told.add(loop)
                        who = f"the {offer.kind} {offer.name!r}"
                        message = f"this loop {why}, and {who} never says that it is alive"
                        yield Finding.at(loop, "silent-loop", message, _CURE)

    def _slow_loops(self, function: Function) -> Iterator[tuple[ast.AST, str]]:
        """Yield the outermost slow loops of a function."""
        waiting: list[ast.AST] = [function]
        while waiting:
            node = waiting.pop()
            why = self._why_slow(node) if isinstance(node, _LOOPS) else None
            if why is not None:
                yield node, why
            else:
                waiting += ast.iter_child_nodes(node)

    def _why_slow(self, loop: ast.AST) -> str | None:
        if any(self._is_file(iterated) for iterated in _iterated(loop)):
            return "goes through a file"
        if any(self._source.dotted(getattr(node, "func", None)) in _SLEEPS for node in _repeated(loop)):
            return "sleeps"
        few = any(map(self._is_written_down, _iterated(loop)))
        if not few and any(self._waits(node) for node in _repeated(loop)):
            return "reads or waits for something outside in every turn"
        return None

    def _waits(self, node: ast.AST, *, follow: bool = True) -> bool:
        if not isinstance(node, ast.Call):
            return False
        dotted = self._source.dotted(node.func) or ""
        if dotted.startswith(_WAITS) or dotted in _SLEEPS:
            return True
        if self._disk.read(node) is not None or self._disk.write(node) is not None:
            return getattr(node.func, "attr", "") not in ("glob", "iterdir", "mkdir", "unlink")
        if isinstance(node.func, ast.Attribute):
            return self._waits_by_method(node.func)
        return follow and self._helper_waits(node)

    def _waits_by_method(self, func: ast.Attribute) -> bool:
        if func.attr in _WAITING_METHODS:
            return True
        if func.attr == "read" and self._disk.values.kind(func.value) is ValueKind.FILE:
            return True
        return any(self._source.dotted(made) in _SESSIONS for made in self._makers(func.value))

    def _makers(self, expression: ast.AST) -> Iterator[ast.AST | None]:
        """Yield the classes or functions that a value comes from."""
        bound: list[ast.expr] = []
        if isinstance(expression, ast.Name):
            bound = self._bindings.of(expression)
            parameter = self._bindings.parameter(expression)
            yield parameter.annotation if parameter is not None else None
        elif isinstance(expression, ast.Attribute):
            bound = self._bindings.of_attribute(expression.attr)
        for value in bound:
            yield value.func if isinstance(value, ast.Call) else None

    def _is_written_down(self, iterated: ast.AST) -> bool:
        """Say whether a loop goes over what the author has listed, so over a few things."""
        listed = (ast.Tuple, ast.List, ast.Set)
        bound = self._bindings.of(iterated) if isinstance(iterated, ast.Name) else [iterated]
        return bool(bound) and all(isinstance(value, listed) and value.elts for value in bound)

    def _helper_waits(self, call: ast.Call) -> bool:
        """Say whether a function of the file that is called in each turn waits itself."""
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        awaited = isinstance(self._source.parents.get(call), ast.Await)
        return any(
            self._waits(node, follow=False)
            for function in self._source.functions.get(name, [])
            # A coroutine that is only made in the loop, as for `asyncio.gather`, waits elsewhere.
            if awaited or isinstance(function, ast.FunctionDef)
            for node in own_nodes(function)
        )

    def _is_file(self, iterated: ast.AST) -> bool:
        if iterated not in self._files:
            # Until it is known: a name may be bound to something made of itself.
            self._files[iterated] = False
            self._files[iterated] = self._goes_through_file(iterated)
        return self._files[iterated]

    def _goes_through_file(self, iterated: ast.AST) -> bool:
        if self._disk.values.kind(iterated) is ValueKind.FILE:
            return True
        if isinstance(iterated, ast.Name):
            bound = self._bindings.of(iterated)
            return any(isinstance(value, ast.Call) and self._is_file(value) for value in bound)
        if not isinstance(iterated, ast.Call):
            return False
        dotted = self._source.dotted(iterated.func) or ""
        if dotted.startswith("pandas.read_"):
            return bool({word.arg for word in iterated.keywords} & {"chunksize", "iterator"})
        if dotted in _PASSED_ON:
            return any(map(self._is_file, iterated.args))
        attribute = iterated.func if isinstance(iterated.func, ast.Attribute) else None
        if attribute is not None and attribute.attr == "readlines":
            return self._is_file(attribute.value)
        return attribute is not None and attribute.attr in _PIECEWISE

    def _reports(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute) and node.attr == "report_progress":
            return True
        func = node.func if isinstance(node, ast.Call) else None
        if not isinstance(func, ast.Attribute):
            return False
        return func.attr in _MESSAGES | _STEPS and self._is_context(func.value)

    def _is_context(self, expression: ast.AST) -> bool:
        if isinstance(expression, ast.Call):
            return (self._source.dotted(expression.func) or "").endswith(
                ("get_context", "CurrentContext", "Progress")
            )
        if isinstance(expression, ast.Attribute):
            bound = self._bindings.of_attribute(expression.attr)
            return any(isinstance(value, ast.Name) and self._is_context(value) for value in bound)
        if not isinstance(expression, ast.Name):
            return False
        parameter = self._bindings.parameter(expression)
        if parameter is not None:
            named = parameter.annotation is None and expression.id in ("ctx", "context", "progress")
            return named or is_context(parameter.annotation)
        return any(
            isinstance(bound, ast.Call) and self._is_context(bound) for bound in self._bindings.of(expression)
        )


def _iterated(loop: ast.AST) -> list[ast.expr]:
    if isinstance(loop, ast.For | ast.AsyncFor):
        return [loop.iter]
    return [part.iter for part in getattr(loop, "generators", [])]


def _repeated(loop: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run in every turn of a loop."""
    if isinstance(loop, ast.For | ast.AsyncFor):
        starts: list[ast.AST] = [*loop.body]
    elif isinstance(loop, ast.While):
        starts = [loop.test, *loop.body]
    else:
        starts = [child for child in ast.iter_child_nodes(loop) if not isinstance(child, ast.comprehension)]
        starts += [test for part in getattr(loop, "generators", []) for test in part.ifs]
    for start in starts:
        yield from own_nodes(start)
