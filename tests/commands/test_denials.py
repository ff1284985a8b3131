"""Denials by the kernel alone: returned as an envelope with the path, logged and listed."""

import logging
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from somebody import somebody
from support import TOOLS, call, details, error_code, open_toolset

from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

WRITES = ("pyarrow", "polars", "attach", "uri", "program")


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    async with open_toolset(TOOLS / "denied.py", tmp_path_factory.mktemp("denied")) as it:
        yield it


@pytest.fixture(scope="module")
def user() -> Iterator[str]:
    """One for this whole file: the zygote of a user takes longer than all else that a test here does."""
    with somebody() as name:
        yield name


@pytest.mark.parametrize("name", WRITES)
async def test_library_write_denied_returns_envelope_with_path(
    name: str, toolset: Toolset, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"/etc/toolcell-{name}.new"

    allowed = await call(toolset, user, "act", name=name, path=f"/tmp/{user}/{name}.new")
    with caplog.at_level(logging.WARNING):
        denied = await call(toolset, user, "act", name=name, path=path)

    assert allowed.processed.value["results"] == "done"
    assert error_code(denied) == "E_INVALID_PATH"
    assert details(denied)["attempted_path"] == path
    assert details(denied)["allowed_prefix"] == f"/tmp/{user}/"
    assert [vars(record)["path"] for record in caplog.records if record.getMessage() == "denied"] == [path]
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("name", "path", "operation"), [("list", "/", "os.listdir"), ("read", "/etc/shadow", "open")]
)
async def test_swallowed_kernel_denial_listed_and_logged(
    name: str, path: str, operation: str, toolset: Toolset, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Source: S1-102."""
    with caplog.at_level(logging.WARNING):
        completed = await call(toolset, user, "swallow", name=name, path=path)

    value = completed.processed.value
    assert value["results"] == "kept quiet"
    assert value["meta_data"]["denials"] == [{"operation": operation, "path": path, "layer": "kernel"}]
    logged = [vars(record) for record in caplog.records if record.getMessage() == "denied"]
    assert [(entry["path"], entry["user"]) for entry in logged] == [(path, user)]


@pytest.mark.parametrize("name", ["pyarrow", "polars", "attach", "program"])
async def test_swallowed_library_denial_logged_when_python_audits_it(
    name: str, toolset: Toolset, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Source: S1-102."""
    path = f"/etc/toolcell-{name}.quiet"

    with caplog.at_level(logging.WARNING):
        completed = await call(toolset, user, "swallow", name=name, path=path)

    logged = [vars(record)["path"] for record in caplog.records if record.getMessage() == "denied"]
    denials = completed.processed.value.get("meta_data", {}).get("denials", [])
    expected = [path] if sys.version_info >= (3, 12) else []
    assert completed.processed.value["results"] == "kept quiet"
    assert (logged, [denial["path"] for denial in denials]) == (expected, expected)
    assert not Path(path).exists()


async def test_denial_ending_call_reported_once(toolset: Toolset, user: str) -> None:
    read = await call(toolset, user, "act", name="read", path="/etc/shadow")

    assert (error_code(read), details(read)["attempted_path"]) == ("E_INVALID_PATH", "/etc/shadow")
