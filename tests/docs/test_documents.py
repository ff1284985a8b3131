import re
from pathlib import Path

import pytest

from runner.errors import Code

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
TEST_NAMES = re.compile(r"`(test_\w+)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / document).read_text())

    assert [link for link in links if not ((ROOT / document).parent / link).exists()] == []


def test_every_path_named_in_the_architecture_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    paths = re.findall(r"`((?:runner|sandbox|sample_tools|scripts|tests|docs)/[\w./-]*)`", text)

    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_invariant_of_the_architecture_names_a_test_that_exists() -> None:
    section = (ROOT / "ARCHITECTURE.md").read_text().split("## Invariants")[1].split("\n## ")[0]
    named = TEST_NAMES.findall(section)
    tests = (ROOT / "tests" / "commands" / "test_invariants.py").read_text()

    assert len(named) == len(re.findall(r"(?m)^\d+\. ", section))
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_the_architecture_stays_below_300_lines_and_names_no_line_numbers() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()

    assert len(lines) < 300
    assert [line for line in lines if re.search(r"\.py:\d", line)] == []


def test_the_table_of_error_codes_says_what_the_code_says() -> None:
    rows = re.findall(
        r"(?m)^\| `(E_\w+)` \| `(\w+)` \| (.+?) \|.*\| (\d) \|$", (ROOT / "docs/cli.md").read_text()
    )
    documented = {name: (reason, retry == "yes", int(status)) for name, reason, retry, status in rows}

    assert documented == {code.name: (code.reason, code.retryable, code.exit_status) for code in Code}


def test_every_decision_is_linked_from_the_architecture() -> None:
    decisions = [path.name for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    text = (ROOT / "ARCHITECTURE.md").read_text()

    assert [name for name in decisions if name not in text] == []


def test_every_dependency_has_its_reason() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'(?m)^\s*(?:s3 = \[)?"([a-z0-9-]+)(?:[><=]=)', project)
    reasons = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text()

    assert {"fastmcp", "boto3", "pytest"} <= set(named)
    assert [name for name in named if not re.search(rf"\b{name}\b", reasons)] == []
