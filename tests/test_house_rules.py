"""Rules that no linter knows."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path.relative_to(ROOT) for top in ("runner", "sandbox") for path in (ROOT / top).rglob("*.py")
)
NAMED = [path for path in MODULES if path.name not in {"__init__.py", "__main__.py"}]
SANDBOX = [path for path in MODULES if path.parts[0] == "sandbox"]
CONFINED = [path for path in SANDBOX if path.parts[1] in {"inside", "layers", "denials"}]
INTERNALS = [path for path in MODULES if "internals" in path.parts]
OUTSIDE = [path for path in MODULES if path.parts[0] == "runner" and path not in INTERNALS]
FRAMEWORK = {"fastmcp", "mcp", "mcp_types", "starlette"}
# What FastMCP, the SDK and Starlette document, or what holds a type that a documented signature names.
# Whatever else one of them has may go with a minor version, so it is imported in `internals` folders only.
PUBLIC = {
    *("fastmcp", "fastmcp.client.transports", "fastmcp.client.transports.base", "fastmcp.exceptions"),
    *("fastmcp.resources", "fastmcp.server.auth", "fastmcp.server.auth.providers.jwt", "fastmcp.tools"),
    "fastmcp.server.auth.providers.introspection",
    *("fastmcp.server.dependencies", "fastmcp.server.middleware", "fastmcp.server.transforms"),
    "fastmcp.utilities.versions",
    *(
        "mcp",
        "mcp.client.subscriptions",
        "mcp.server.context",
        "mcp.server.lowlevel",
    ),
    *("mcp.server.mcpserver", "mcp.server.mcpserver.exceptions", "mcp.server.subscriptions"),
    *("mcp.shared.exceptions", "mcp.shared.subscriptions"),
    *("mcp_types", "mcp_types.methods", "mcp_types.version"),
    *("starlette.applications", "starlette.datastructures", "starlette.middleware", "starlette.requests"),
    *("starlette.middleware.trustedhost", "starlette.responses", "starlette.routing", "starlette.types"),
}

DEFINED_TWICE = {
    "ArtifactError": "both are promised: what tool files catch, and what the published schema has",
}
"""Public classes of one name, each with its reason."""

# In pieces, so that this file keeps its own rules. Tests may name folders of users: they try to get in.
PERSONAL_FOLDERS = re.compile("/roo" + r"t/\w|/hom" + r"e/(?!alice\b)\w")
MACHINE_FOLDERS = re.compile(f"{re.escape(str(ROOT))}/|{'/wo' + 'rk/'}|{'/opt/' + 'pypi'}|{'.py' + 'env/'}")
REGISTRIES = re.compile("pypi" + r"\.org|pythonhosted" + r"\.org|--(extra-)?index" + "-url")


def tracked_files() -> list[str]:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def lines_with(pattern: re.Pattern[str], files: list[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name in files
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]


def imported(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def own_names(tree: ast.Module) -> set[str]:
    """Return what a module defines: functions, classes, fields and what it sets on `self`."""
    nodes = list(ast.walk(tree))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    named = {node.name for node in nodes if isinstance(node, kinds)}
    named |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return named | {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and of(node, "self", "cls")
    }


def of(node: ast.Attribute, *names: str) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in names


def private_names_of_the_framework(module: Path) -> Iterator[str]:
    """Yield what a module touches that FastMCP and the SDK call private, as far as its text shows.

    An attribute that neither the module nor one that it imports from defines is taken for theirs.
    """
    tree = ast.parse((ROOT / module).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    beside = [ROOT / f"{node.module.replace('.', '/')}.py" for node in imports]
    own = own_names(tree).union(*(own_names(ast.parse(path.read_text())) for path in beside if path.exists()))
    for node in imports:
        if node.module.partition(".")[0] in FRAMEWORK:
            yield from filter(private, [*node.module.split("."), *(alias.name for alias in node.names)])
    for node in ast.walk(tree):
        foreign = isinstance(node, ast.Attribute) and not of(node, "self", "cls", "sys", "os")
        if foreign and private(node.attr) and node.attr not in own:
            yield node.attr


@pytest.mark.parametrize("module", OUTSIDE, ids=str)
def test_private_names_of_the_framework_are_touched_in_internals_only(module):
    assert set(private_names_of_the_framework(module)) == set()


def modules_of_the_framework(module: Path) -> Iterator[str]:
    """Yield each module of FastMCP, the SDK and Starlette that a module imports, or imports a name from."""
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            # `from package import submodule` is an import of that submodule.
            named = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            named = [named[0], *(name for name in named[1:] if is_module(name))]
        yield from (name for name in named if name.partition(".")[0] in FRAMEWORK)


@cache
def is_module(name: str) -> bool:
    if name.partition(".")[0] not in FRAMEWORK:
        return False
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("module", OUTSIDE, ids=str)
def test_undocumented_modules_of_the_framework_are_imported_in_internals_only(module):
    assert set(modules_of_the_framework(module)) - PUBLIC == set()


def test_undocumented_modules_of_the_framework_are_found_where_they_are():
    found = {name for module in INTERNALS for name in modules_of_the_framework(module)}

    assert {"fastmcp.server.http", "fastmcp.server.providers.aggregate"} <= found - PUBLIC


def patches_of_the_framework(module: Path) -> Iterator[str]:
    """Yield what a module sets on something that it imports from FastMCP, the SDK or Starlette."""
    tree = ast.parse((ROOT / module).read_text())
    theirs: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if (source or alias.name).partition(".")[0] in FRAMEWORK:
                    theirs.add((alias.asname or alias.name).partition(".")[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (ast.unparse(target) for target in targets if is_part_of(target, theirs))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
            yield from (ast.unparse(node) for _ in [0] if is_part_of(node.args[0], theirs, whole=True))


def is_part_of(node: ast.expr, names: set[str], *, whole: bool = False) -> bool:
    """Say whether an expression is `name.x`, `vars(name)[x]` or deeper; with `whole` also the name itself."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        is_vars = isinstance(node, ast.Call) and ast.unparse(node.func) == "vars"
        node, whole = (
            (node.args[0] if is_vars else node.func) if isinstance(node, ast.Call) else node.value,
            True,
        )
    return whole and isinstance(node, ast.Name) and node.id in names


@pytest.mark.parametrize("module", OUTSIDE, ids=str)
def test_the_framework_is_patched_in_internals_only(module):
    assert set(patches_of_the_framework(module)) == set()


def test_patches_of_the_framework_are_found_where_they_are():
    found = {patch for module in INTERNALS for patch in patches_of_the_framework(module)}

    assert {"vars(methods)['serialize_server_result']", "vars(aggregate)['gather']"} <= found
    assert {"vars(tools_base)['default_serializer']", "fastmcp.settings.telemetry_mode"} <= found


@pytest.mark.parametrize("module", [path for path in INTERNALS if path.name != "__init__.py"], ids=str)
def test_every_module_of_the_edge_has_its_reason_and_what_to_do_when_it_breaks(module):
    rows = [line for line in (ROOT / "docs/versions.md").read_text().splitlines() if f"`{module}`" in line]

    assert len(rows) == 1
    assert all(len(cell.strip()) > 20 for cell in rows[0].strip("|").split("|"))


def test_every_module_that_is_called_public_is_there_and_used():
    used = {name for module in OUTSIDE for name in modules_of_the_framework(module)}

    assert used == PUBLIC


def test_private_names_of_the_framework_are_found_where_they_are():
    found = {name for module in INTERNALS for name in private_names_of_the_framework(module)}

    assert {"_mcp_server", "_wrap_body_errors", "_stream_protocols", "_dispatcher"} <= found


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_module_says_what_it_is(module):
    assert ast.get_docstring(ast.parse((ROOT / module).read_text()))


@pytest.mark.parametrize("module", NAMED, ids=str)
def test_every_module_says_what_of_it_is_public(module):
    body = ast.parse((ROOT / module).read_text()).body
    targets = [ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)]

    assert targets.count("__all__") == 1


def public_classes() -> dict[str, list[str]]:
    """Return where classes are defined that other modules may name, by their names."""
    found: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.walk(ast.parse((ROOT / module).read_text())):
            if isinstance(node, ast.ClassDef) and not private(node.name):
                found.setdefault(node.name, []).append(str(module))
    return found


def test_a_public_class_name_is_defined_once():
    """Who has met a name in one room must not take another's for it."""
    found = public_classes()

    assert len(found) > 400
    assert {name for name, modules in found.items() if len(modules) > 1} == set(DEFINED_TWICE), {
        name: modules for name, modules in found.items() if len(modules) > 1
    }


@pytest.mark.parametrize("module", SANDBOX, ids=str)
def test_sandbox_needs_only_the_standard_library_and_psutil(module):
    assert set(imported(module)) <= sys.stdlib_module_names | {"sandbox", "psutil"}


@pytest.mark.parametrize("module", CONFINED, ids=str)
def test_the_confined_half_of_sandbox_needs_the_standard_library_alone(module):
    assert set(imported(module)) <= sys.stdlib_module_names | {"sandbox"}


def test_what_two_folders_of_tests_share_lies_where_both_find_it():
    """pytest puts a folder on the path when it collects its first file; another folder finds it by luck."""
    tests = [ROOT / name for name in tracked_files() if re.fullmatch(r"tests/.+\.py", name)]
    places: dict[str, set[Path]] = {}
    for path in tests:
        places.setdefault(path.stem, set()).add(path.parent)
    everywhere = {ROOT / "tests", ROOT / "tests/conformance"}
    by_luck = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in tests
        if path.name.startswith("test_")
        for name in set(imported(path.relative_to(ROOT))) & places.keys()
        if not places[name] & {*everywhere, path.parent} and find_spec(name) is None
    ]

    assert len(tests) > 100
    assert by_luck == []


def test_no_file_names_a_folder_of_the_machine_it_was_written_on():
    files = tracked_files()

    assert "pyproject.toml" in files
    assert lines_with(MACHINE_FOLDERS, files) == []
    assert lines_with(PERSONAL_FOLDERS, [name for name in files if not name.startswith("tests/")]) == []


def test_no_file_names_a_package_registry():
    assert lines_with(REGISTRIES, tracked_files()) == []
