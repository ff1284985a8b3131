"""Pages: each begins with a runnable example, whose output is what the page shows."""

import re
import shutil
from pathlib import Path

import pytest
from console_examples import ROOT, console_sessions, run

# References, a generated page, and pages on the store, which become a part of operating.md.
WITHOUT_EXAMPLE = {"cli", "compatibility", "s3", "settings", "store"}
PAGES = sorted(path for path in ROOT.glob("docs/*.md") if path.stem not in WITHOUT_EXAMPLE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_begins_with_an_example(page: Path) -> None:
    assert re.match(r"# .+\n\n```console\n\$ ", page.read_text())


@pytest.mark.release
@pytest.mark.kernel
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_examples_print_their_output(page: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    shutil.copytree(ROOT / "sample_tools", tmp_path / "sample_tools")
    sessions = list(console_sessions(page.read_text()))

    for session in sessions:
        run(session, ROOT if any("scripts/" in command for command, _ in session) else tmp_path, tmp_path)

    assert sessions
