"""Rules that no linter knows."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path.relative_to(ROOT) for top in ("runner", "sandbox") for path in (ROOT / top).rglob("*.py")
)
NAMED = [path for path in MODULES if path.name not in {"__init__.py", "__main__.py"}]
SANDBOX = [path for path in MODULES if path.parts[0] == "sandbox"]
CONFINED = [path for path in SANDBOX if path.parts[1] in {"inside", "layers", "guard"}]

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


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_module_says_what_it_is(module):
    assert ast.get_docstring(ast.parse((ROOT / module).read_text()))


@pytest.mark.parametrize("module", NAMED, ids=str)
def test_every_module_says_what_of_it_is_public(module):
    body = ast.parse((ROOT / module).read_text()).body
    targets = [ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)]

    assert targets.count("__all__") == 1


@pytest.mark.parametrize("module", SANDBOX, ids=str)
def test_sandbox_needs_only_the_standard_library_and_psutil(module):
    assert set(imported(module)) <= sys.stdlib_module_names | {"sandbox", "psutil"}


@pytest.mark.parametrize("module", CONFINED, ids=str)
def test_the_confined_half_of_sandbox_needs_the_standard_library_alone(module):
    assert set(imported(module)) <= sys.stdlib_module_names | {"sandbox"}


def test_no_file_names_a_folder_of_the_machine_it_was_written_on():
    files = tracked_files()

    assert "pyproject.toml" in files
    assert lines_with(MACHINE_FOLDERS, files) == []
    assert lines_with(PERSONAL_FOLDERS, [name for name in files if not name.startswith("tests/")]) == []


def test_no_file_names_a_package_registry():
    assert lines_with(REGISTRIES, tracked_files()) == []
