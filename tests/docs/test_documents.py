import re
import subprocess
from pathlib import Path

import pytest

from runner.errors import Code

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
TEST_NAMES = re.compile(r"`(test_\w+)`")


LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
PAGE_NAME = re.compile(r"\bdocs/[a-z0-9/-]+\.md\b")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(document.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_document_links_lead_to_files_and_headings(document: Path) -> None:
    broken = []
    for link, anchor in LINK.findall(without_code((ROOT / document).read_text())):
        target = ((ROOT / document).parent / link) if link else ROOT / document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(f"{link}#{anchor}")

    assert broken == []


def test_pages_named_anywhere_exist() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    history = ("CHANGELOG.md", "docs/spec/", "tests/output_guard/corpus/")
    files = [name for name in listed.stdout.splitlines() if not name.startswith(history)]
    named = {
        (page, name)
        for name in files
        if (ROOT / name).is_file()
        for page in PAGE_NAME.findall((ROOT / name).read_text(errors="replace"))
    }

    assert ("docs/settings.md", "README.md") in named
    assert sorted(pair for pair in named if not (ROOT / pair[0]).exists()) == []


def test_pages_are_at_most_14_and_4500_lines() -> None:
    pages = list(ROOT.glob("docs/*.md"))

    assert len(pages) <= 14
    assert sum(len(page.read_text().splitlines()) for page in pages) <= 4500


def test_architecture_paths_all_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    paths = re.findall(r"`((?:runner|sandbox|sample_tools|scripts|tests|docs)/[\w./-]*)`", text)

    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_invariants_each_name_an_existing_test() -> None:
    section = (ROOT / "ARCHITECTURE.md").read_text().split("## Invariants")[1].split("\n## ")[0]
    named = TEST_NAMES.findall(section)
    tests = (ROOT / "tests" / "commands" / "test_invariants.py").read_text()

    assert len(named) == len(re.findall(r"(?m)^\d+\. ", section))
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_architecture_below_300_lines_without_line_numbers() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()

    assert len(lines) < 300
    assert [line for line in lines if re.search(r"\.py:\d", line)] == []


def test_error_code_table_matches_code() -> None:
    rows = re.findall(
        r"(?m)^\| `(E_\w+)` \| `(\w+)` \| (.+?) \|.*\| (\d) \|$", (ROOT / "docs/cli.md").read_text()
    )
    documented = {name: (reason, retry == "yes", int(status)) for name, reason, retry, status in rows}

    assert documented == {code.name: (code.reason, code.retryable, code.exit_status) for code in Code}


DECISIONS = sorted(path for path in ROOT.glob("docs/decisions/*.md") if path.stem != "README")


def test_decisions_are_listed_by_their_titles() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    titles = {path: re.sub(r"^# (\d+\. )?", "", path.read_text().split("\n")[0]) for path in DECISIONS}

    assert len(titles) > 30
    assert [path.name for path, title in titles.items() if f"({path.name}): {title}\n" not in index] == []


def test_decisions_have_40_lines_at_most() -> None:
    lengths = {path.stem: len(path.read_text().splitlines()) for path in DECISIONS}

    assert {name for name, length in lengths.items() if length > 40} == set()


def test_dependencies_all_have_a_reason() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'(?m)^\s*(?:s3 = \[)?"([a-z0-9-]+)(?:[><=]=)', project)
    reasons = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text()

    assert {"fastmcp", "boto3", "pytest"} <= set(named)
    assert [name for name in named if not re.search(rf"\b{name}\b", reasons)] == []
