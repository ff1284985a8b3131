"""Rules of the project that no linter checks."""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from framework_exposure import exposure, is_private, private_names
from framework_patches import FRAMEWORK, patches, tree_of

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path.relative_to(ROOT) for top in ("runner", "sandbox") for path in (ROOT / top).rglob("*.py")
)
NAMED = [path for path in MODULES if path.name not in {"__init__.py", "__main__.py"}]
SANDBOX = [path for path in MODULES if path.parts[0] == "sandbox"]
CONFINED = [path for path in SANDBOX if path.parts[1] in {"inside", "layers", "denials"}]
INTERNALS = [path for path in MODULES if "internals" in path.parts]
OUTSIDE = [path for path in MODULES if path.parts[0] == "runner" and path not in INTERNALS]
# Modules that FastMCP, the SDK and Starlette document, or that define a type of a documented signature.
# A minor version may remove any other module, so those are imported in `internals` folders only.
PUBLIC = {
    *("fastmcp", "fastmcp.client.transports", "fastmcp.exceptions"),
    *("fastmcp.resources", "fastmcp.server.auth", "fastmcp.server.auth.providers.jwt", "fastmcp.tools"),
    *("fastmcp.server.auth.oidc_proxy", "fastmcp.server.auth.providers.introspection"),
    *("fastmcp.server.dependencies", "fastmcp.server.middleware", "fastmcp.server.providers"),
    *("fastmcp.experimental.transforms.code_mode", "fastmcp.server.transforms"),
    *("fastmcp.skills", "fastmcp.skills.provider"),
    "fastmcp.utilities.versions",
    *(
        "mcp",
        "mcp.client.streamable_http",
        "mcp.client.subscriptions",
        "mcp.server.context",
        "mcp.server.lowlevel",
    ),
    *("mcp.server.mcpserver", "mcp.server.mcpserver.exceptions", "mcp.server.subscriptions"),
    "mcp.shared.exceptions",
    *("mcp_types", "mcp_types.version"),
    *("starlette.applications", "starlette.datastructures", "starlette.middleware", "starlette.requests"),
    "starlette.middleware.cors",
    *("starlette.middleware.trustedhost", "starlette.responses", "starlette.routing", "starlette.types"),
}

DEFINED_TWICE = {
    "ArtifactError": "both are promised: what tool files catch, and what the published schema has",
}
"""Names of more than one public class, each with the reason."""

# Split, so that this file obeys its own rules. Tests may name home folders: they try to enter them.
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


def offenders(found: Callable[[Path], Iterable[str]], modules: list[Path]) -> dict[str, list[str]]:
    """Return the findings of `found` by module, for modules that have any."""
    return {str(module): names for module in modules if (names := sorted(set(found(module))))}


@cache
def nodes_of(module: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module of the tree, walked once."""
    return tuple(ast.walk(tree_of(module)))


@cache
def imported(module: Path) -> frozenset[str]:
    return frozenset(_imported(module))


def _imported(module: Path) -> Iterator[str]:
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def test_private_framework_names_are_used_in_internals_only() -> None:
    assert offenders(private_names, OUTSIDE) == {}


def modules_of_the_framework(module: Path) -> Iterator[str]:
    """Yield each module of FastMCP, the SDK and Starlette that a module imports, or imports a name from."""
    for node in nodes_of(module):
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


def test_undocumented_modules_are_imported_in_internals_only() -> None:
    assert offenders(lambda module: set(modules_of_the_framework(module)) - PUBLIC, OUTSIDE) == {}


def test_undocumented_framework_modules_are_detected() -> None:
    found = {name for module in INTERNALS for name in modules_of_the_framework(module)}

    assert {"fastmcp.server.http", "mcp.server.connection"} <= found - PUBLIC


def patches_of_the_framework(module: Path) -> Iterator[str]:
    """Yield each target on an object of FastMCP, the SDK or Starlette that a module writes to."""
    return patches(tree_of(module))


def test_the_framework_is_patched_in_internals_only() -> None:
    assert offenders(patches_of_the_framework, OUTSIDE) == {}


def test_framework_patches_are_detected() -> None:
    found = {patch for module in INTERNALS for patch in patches_of_the_framework(module)}

    assert "vars(methods)['serialize_server_result']" in found
    assert "vars(streamable_http)['jsonrpc_message_adapter']" in found
    assert {"Tool.convert_result", "fastmcp.settings.telemetry_mode"} <= found
    assert {"limit.app", "limit.max_body_size", "app.router.lifespan_context"} <= found
    assert {"app.auth", "auth.tokens"} <= found


def test_patches_of_any_framework_object_are_detected() -> None:
    """Detection by annotation, by the call that made a value, and by the object it was read from."""
    text = """
        from fastmcp import FastMCP
        from starlette.applications import Starlette
        from starlette.types import Scope
        from runner.protocol.internals.connection import connection_of

        class Kept:
            app: Starlette
            seen: dict[str, Starlette]

            def __init__(self, server: FastMCP) -> None:
                self._server = server
                self.seen[server.name] = self.app
                self.app.debug = True

            def end(self) -> None:
                self._server.name = "gone"
                self.count = len(self._server.name)

        def made(site: Site) -> "tuple[int, FastMCP] | None": ...

        def change(app: Starlette, scope: Scope, own: Site) -> None:
            own.app = app
            scope["app"] = app
            own.count, server = made(own)
            server.title, own.name = "x", "y"
            if server:
                with connection_of(server) as found:
                    found.state.deep["x"] = 1
            web: Site = server.http_app()
            web.routes = []
            setattr(server.http_app().router, "routes", [])
            del app.state.user
            FastMCP("x").name += "y"
    """
    found = set(patches(ast.parse(textwrap.dedent(text))))

    assert found == {
        "self.app.debug",
        "self._server.name",
        "server.title",
        "found.state.deep['x']",
        "setattr(server.http_app().router, 'routes', [])",
        "app.state.user",
        "FastMCP('x').name",
    }


def test_edge_modules_document_their_reason_and_breakage_plan() -> None:
    lines = (ROOT / "docs/development.md").read_text().splitlines()
    edge = [path for path in INTERNALS if path.name != "__init__.py"]
    rows = {str(module): [line for line in lines if f"`{module}`" in line] for module in edge}
    cells = {module: row.strip("|").split("|") for module, found in rows.items() for row in found}

    assert [module for module, found in rows.items() if len(found) != 1] == []
    assert [module for module, row in cells.items() if min(len(cell.strip()) for cell in row) <= 20] == []


def test_every_listed_public_module_exists_and_is_used() -> None:
    used = {name for module in OUTSIDE for name in modules_of_the_framework(module)}

    assert used == PUBLIC


def test_private_names_of_the_framework_are_25_at_most() -> None:
    """A minor version may remove each of these names; docs/development.md describes what to do then."""
    found = exposure()

    assert len(found) <= 25, found
    assert {name for _, name in found} >= {
        *("_mcp_server", "_connection"),  # attributes
        "_FastMCP__state_store",  # a key
        "_inner",  # an argument of getattr
        "_build_capabilities",  # an overriding method
        *("Tool.convert_result", "kind.name"),
    }


def test_every_module_has_a_docstring() -> None:
    assert [str(module) for module in MODULES if not ast.get_docstring(tree_of(module))] == []


def lists_of_public_names(module: Path) -> int:
    targets = [node.targets[0] for node in tree_of(module).body if isinstance(node, ast.Assign)]
    return [ast.unparse(target) for target in targets].count("__all__")


def test_every_module_has_one_list_of_public_names() -> None:
    assert [str(module) for module in NAMED if lists_of_public_names(module) != 1] == []


def public_classes() -> dict[str, list[str]]:
    """Return the modules that define each public class, by class name."""
    found: dict[str, list[str]] = {}
    for module in MODULES:
        for node in nodes_of(module):
            if isinstance(node, ast.ClassDef) and not is_private(node.name):
                found.setdefault(node.name, []).append(str(module))
    return found


def test_a_public_class_name_is_defined_once() -> None:
    """A reader who knows a name from one package must not confuse it with another."""
    found = public_classes()

    assert len(found) > 400
    assert {name for name, modules in found.items() if len(modules) > 1} == set(DEFINED_TWICE), {
        name: modules for name, modules in found.items() if len(modules) > 1
    }


def test_sandbox_needs_only_the_standard_library_and_psutil() -> None:
    known = sys.stdlib_module_names | {"sandbox", "psutil"}

    assert offenders(lambda module: imported(module) - known, SANDBOX) == {}


def test_confined_half_of_sandbox_imports_stdlib_only() -> None:
    known = sys.stdlib_module_names | {"sandbox"}

    assert offenders(lambda module: imported(module) - known, CONFINED) == {}


def test_code_shared_by_test_folders_is_importable_by_both() -> None:
    """pytest adds a folder to the path when it first collects there; others import from it only by luck."""
    tests = [ROOT / name for name in tracked_files() if re.fullmatch(r"tests/.+\.py", name)]
    places: dict[str, set[Path]] = {}
    for path in tests:
        places.setdefault(path.stem, set()).add(path.parent)
    everywhere = {ROOT / "tests", ROOT / "tests/conformance"}
    by_luck = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in tests
        if path.name.startswith("test_")
        for name in imported(path.relative_to(ROOT)) & places.keys()
        if not places[name] & {*everywhere, *path.parents} and find_spec(name) is None
    ]

    assert len(tests) > 100
    assert by_luck == []


def test_no_file_names_a_folder_of_a_developer_machine() -> None:
    files = tracked_files()

    assert "pyproject.toml" in files
    assert lines_with(MACHINE_FOLDERS, files) == []
    assert lines_with(PERSONAL_FOLDERS, [name for name in files if not name.startswith("tests/")]) == []


def test_no_file_names_a_package_registry() -> None:
    assert lines_with(REGISTRIES, tracked_files()) == []


def of(node: ast.Attribute, *names: str) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in names


def writes_past_the_streams(module: Path) -> Iterator[str]:
    """Yield each use of standard output or error that bypasses the escapes of `VisibleText`."""
    for node in nodes_of(module):
        if isinstance(node, ast.Attribute) and of(node, "sys") and node.attr in {"__stdout__", "__stderr__"}:
            yield f"sys.{node.attr}"
        if isinstance(node, ast.Attribute) and node.attr in {"buffer", "detach"}:
            under = node.value
            if isinstance(under, ast.Attribute) and of(under, "sys") and under.attr in {"stdout", "stderr"}:
                yield f"sys.{under.attr}.{node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and of(node.func, "os", "sys"):
            to = node.args[0] if node.args else None
            if node.func.attr == "write" and isinstance(to, ast.Constant) and to.value in (1, 2):
                yield "os.write"


def test_nothing_bypasses_the_escapes_of_standard_streams() -> None:
    hosts = [path for path in MODULES if path.parts[0] == "runner" and path.parts[1] != "worker"]

    assert set(offenders(writes_past_the_streams, hosts)) == {"runner/system/terminal.py"}
