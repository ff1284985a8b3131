"""The page on migration: both examples of a pair give the same result."""

import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support import ROOT, call, open_toolset

from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

PAGE = (ROOT / "docs" / "contract.md").read_text().partition("## Migration from version 1")[2]
EXAMPLES = re.findall(r"(?s)```python\n(.*?)```", PAGE)
HEAD = (
    "import base64\nfrom pathlib import Path\n\nfrom fastmcp import FastMCP\n\nmcp = FastMCP('migration')\n\n"
)
PAIRS = re.findall(r"def old_(\w+)\(", PAGE)


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    folder = tmp_path_factory.mktemp("migration")
    file = folder / "examples.py"
    file.write_text(HEAD + "\n\n".join(EXAMPLES))
    folder.chmod(0o755)
    file.chmod(0o644)
    async with open_toolset(file, folder) as it:
        yield it


def seen(value: dict[str, Any]) -> dict[str, Any]:
    """Return what callers get of a result, without what a type that was given adds."""
    files = [(file["name"], file["b64"], file["size"]) for file in value.get("artifacts", [])]
    return {"results": value["results"], "meta_data": value.get("meta_data"), "artifacts": files}


def test_each_change_has_an_example() -> None:
    assert PAIRS == ["text", "file"]
    assert re.findall(r"def new_(\w+)\(", PAGE) == PAIRS


@pytest.mark.parametrize("name", PAIRS)
async def test_examples_before_and_after_give_equal_results(toolset: Toolset, user: str, name: str) -> None:
    old = await call(toolset, user, f"old_{name}")
    new = await call(toolset, user, f"new_{name}")

    assert seen(old.processed.value) == seen(new.processed.value)
    assert new.processed.failure is None


async def test_version_1_arrays_deprecated_with_replacement_line(
    toolset: Toolset, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Source: S0-20."""
    with caplog.at_level(logging.WARNING):
        await call(toolset, user, "new_text")
        quiet = [vars(record).get("detail", "") for record in caplog.records]
        await call(toolset, user, "old_text")

    details = [vars(record).get("detail", "") for record in caplog.records]
    assert not any("deprecated" in detail for detail in quiet)
    (deprecated,) = [detail for detail in details if "deprecated" in detail]
    assert '"artifacts": [{"name": \'table.csv\', "path": f"/tmp/{username}/table.csv"}]' in deprecated
