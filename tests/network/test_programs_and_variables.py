"""Programs that tools may run and variables that they may see, as calls meet them."""

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support import TOOLS, call, details, error_code, open_toolset

from runner.errors import UsageError
from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

RIGHTS = TOOLS / "rights.py"
ANN = f"t-{uuid.uuid4().hex[:12]}"
GIT, UNAME = ["git", "--version"], ["uname"]


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENED", "for one")
        patch.setenv("SECRET_OF_THE_HOST", "do-not-tell")
        tools = {
            "other_run_each": {"allow_run": ["git", "sh"]},
            "other_run": {"allow_run": ["git"]},
            "run": {"allow_run": []},
            "other_see": {"allow_env": ["OPENED"]},
        }
        async with open_toolset(RIGHTS, tmp_path_factory.mktemp("rights"), tools=tools) as opened:
            yield opened


def results(completed: Any) -> Any:
    return completed.processed.value["results"]


async def test_programs_run_by_default(toolset: Toolset) -> None:
    completed = await call(toolset, ANN, "run_each", programs=[GIT, UNAME])

    assert [text.split()[0] for text in results(completed)] == ["git", "Linux"]


async def test_only_the_programs_that_are_named_run(toolset: Toolset) -> None:
    by_shell = ["sh", "-c", "git --version && uname"]

    completed = await call(toolset, ANN, "other_run_each", programs=[GIT, UNAME, by_shell])

    git, uname, both = results(completed)
    assert git.startswith("git version")
    assert uname == "PermissionError"
    assert both.startswith("git version")
    assert "Linux" not in both
    (denial,) = completed.processed.value["meta_data"]["denials"]
    assert (denial["operation"], denial["path"]) == ("run", "uname")


@pytest.mark.parametrize("tool", ["run", "other_run"])
async def test_tool_failing_without_program_gets_allow_run_flag(toolset: Toolset, tool: str) -> None:
    completed = await call(toolset, ANN, tool, words=UNAME)

    assert error_code(completed) == "E_INVALID_PATH"
    assert details(completed)["flag"] == "--allow-run=uname"


async def test_missing_program_is_not_a_denial(toolset: Toolset) -> None:
    completed = await call(toolset, ANN, "run", words=["no-such-program"])

    assert error_code(completed) == "E_TOOL"


async def test_variable_is_visible_to_its_own_tool_only(toolset: Toolset) -> None:
    seen = await call(toolset, ANN, "other_see", name="OPENED")
    unseen = await call(toolset, ANN, "see", name="OPENED")

    assert results(seen) == ["for one"] * 3
    assert results(unseen) == [None, None, ""]


async def test_worker_has_no_other_host_variables(toolset: Toolset) -> None:
    text = json.dumps(results(await call(toolset, ANN, "environment")))

    assert "PATH=" in text
    assert "do-not-tell" not in text
    assert "for one" not in text


async def test_a_program_that_does_not_exist_ends_the_start(folder: Path) -> None:
    with pytest.raises(UsageError, match="there is no program no-such-program"):
        async with open_toolset(RIGHTS, folder, allow_run=("no-such-program",)):
            pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path
