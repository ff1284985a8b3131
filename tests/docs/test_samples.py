import ast
import asyncio
import csv
import importlib.util
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.exceptions import ToolError

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "sample_tools").glob("*.py"))
DATA = ROOT / "sample_tools" / "data" / "sales.csv"

# FastMCP's `ctx.info` still serves clients of the older protocol, and the SDK warns of that.
LOGGING_IS_DEPRECATED = "ignore:The logging capability is deprecated"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"sample_{name}", ROOT / "sample_tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(module: ModuleType, tool: str, **arguments: object) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with Client(module.mcp) as client:
            returned: dict[str, Any] = (await client.call_tool(tool, arguments)).structured_content
            return returned

    return asyncio.run(run())


@pytest.fixture
def username() -> Iterator[str]:
    """A name whose folder below /tmp is there, as the runner would have made it."""
    name = f"sample-{uuid.uuid4().hex}"
    home = Path("/tmp", name)
    home.mkdir(mode=0o700)
    yield name
    shutil.rmtree(home)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_is_short_enough_to_read(sample: Path) -> None:
    assert len(sample.read_text().splitlines()) <= 150


def test_guide_lists_each_sample() -> None:
    page = (ROOT / "docs" / "guide.md").read_text()

    listed = re.findall(r"^\| \[[a-z_]+\.py\]\(\.\./sample_tools/([a-z_]+)\.py\)", page, re.MULTILINE)

    assert sorted(listed) == [sample.stem for sample in SAMPLES]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_functions_all_have_docstrings(sample: Path) -> None:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [node for node in ast.parse(sample.read_text()).body if isinstance(node, kinds)]

    assert functions
    assert all(ast.get_docstring(function) for function in functions)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_starts_no_thread_at_import(sample: Path) -> None:
    count = "import os, runpy, sys; runpy.run_path(sys.argv[1]); print(len(os.listdir('/proc/self/task')))"
    quiet = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}

    done = subprocess.run(
        [sys.executable, "-c", count, sample], env=quiet, capture_output=True, text=True, check=True
    )

    assert done.stdout == "1\n"


@pytest.mark.filterwarnings(LOGGING_IS_DEPRECATED)
def test_sales_report_adds_up_and_names_its_files(username: str) -> None:
    with DATA.open(newline="") as file:
        cents = sum(round(float(row["revenue"]) * 100) for row in csv.DictReader(file))

    report = call(load("sales_report"), "sales_report", filename=str(DATA), username=username)

    files = [Path(artifact["path"]) for artifact in report["artifacts"]]
    assert report["results"]["rows"] == 105_000
    assert report["results"]["revenue"] == cents / 100
    assert sum(report["results"]["revenue_by_region"].values()) == pytest.approx(cents / 100)
    assert [path.name for path in files] == ["sales_report.html", "revenue_by_month.png"]
    assert files[0].read_text().startswith("<!doctype html>")
    assert files[1].read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings(LOGGING_IS_DEPRECATED)
def test_sales_report_names_missing_column(tmp_path: Path, username: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text("date,product\n2025-01-01,Soil\n")

    with pytest.raises(ToolError, match="no column region, revenue; it has date, product"):
        call(load("sales_report"), "sales_report", filename=str(table), username=username)


@pytest.mark.filterwarnings(LOGGING_IS_DEPRECATED)
def test_table_values_are_escaped_in_report_page(tmp_path: Path, username: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text("date,region,product,revenue\n2025-01-01,<script>x</script>,Soil,1.50\n")

    call(load("sales_report"), "sales_report", filename=str(table), username=username)

    page = Path("/tmp", username, "sales_report.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
