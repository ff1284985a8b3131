"""What a tool needs of its policy beside a home: the network, programs, variables of the environment."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from runner.check.source import Function, SourceFile

__all__ = ["PolicyNeed", "needs"]

_NETWORK = (
    "requests.", "httpx.", "aiohttp.", "urllib.request.", "urllib3.", "http.client.", "socket.", "smtplib.",
    "ftplib.", "boto3.", "websockets.", "openai.", "anthropic.", "asyncpg.", "psycopg",
)  # fmt: skip
_PROGRAMS = (
    "subprocess.", "os.system", "os.popen", "os.spawn", "os.exec", "os.posix_spawn",
    "asyncio.create_subprocess",
)  # fmt: skip
_VARIABLES = frozenset({"os.getenv", "os.environ.get"})
# Given by the runner itself: they name the home, the user, or how to find programs.
_GIVEN = frozenset({"HOME", "USER", "LOGNAME", "TMPDIR", "PATH", "LANG", "TZ", "TERM", "SHELL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyNeed:
    """Something that a policy must allow.

    Attributes:
        kind: `network`, `programs` or `environment`; `hidden` for a file, `dotenv` for a variable in one.
        what: What is called, or the name of the variable.
        line: Line of the author's file.
        option: The option that gives it, where only one does.
    """

    kind: str
    what: str
    line: int
    option: str = ""


def needs(source: SourceFile, functions: list[Function]) -> list[PolicyNeed]:
    """Return what the functions and the import need, the first place of each."""
    nodes = [*source.at_import(), *(node for function in functions for node in ast.walk(function))]
    found = (need for node in nodes for need in _needs_of(source, node))
    first: dict[tuple[str, str], PolicyNeed] = {}
    for need in sorted(found, key=lambda need: need.line):
        first.setdefault((need.kind, need.what), need)
    return list(first.values())


def _needs_of(source: SourceFile, node: ast.AST) -> Iterator[PolicyNeed]:
    if isinstance(node, ast.Subscript) and source.dotted(node.value) == "os.environ":
        yield from _variable(node.slice, node.lineno)
    if not isinstance(node, ast.Call):
        return
    dotted = source.dotted(node.func) or ""
    if dotted in _VARIABLES and node.args:
        yield from _variable(node.args[0], node.lineno)
    elif dotted.startswith(_NETWORK) and dotted != "socket.gethostname":
        yield PolicyNeed(kind="network", what=dotted, line=node.lineno)
    elif dotted.startswith(_PROGRAMS):
        yield PolicyNeed(kind="programs", what=dotted, line=node.lineno)


def _variable(name: ast.AST, line: int) -> Iterator[PolicyNeed]:
    if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value not in _GIVEN:
        yield PolicyNeed(kind="environment", what=name.value, line=line)
