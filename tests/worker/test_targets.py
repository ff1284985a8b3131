"""The FILE argument: which file a link or a configuration stands for, and which it may not."""

import json
import os
from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.worker.targets import check_targets, entry_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("here/own.py", "there/tool.py", "there/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("from fastmcp import FastMCP\nmcp = FastMCP('x')\n")
    return tmp_path


def test_link_to_a_tool_file_has_the_folder_it_leads_to(folder: Path) -> None:
    (folder / "here/link.py").symlink_to("../there/tool.py")

    entry = entry_of(*check_targets([str(folder / "here/link.py")]))

    assert entry.file == folder / "there/tool.py"
    assert entry.folders == (folder / "there",)
    assert (entry.named, entry.title) == (folder / "here/link.py", "link")


def test_link_to_another_kind_of_file_is_refused(folder: Path) -> None:
    (folder / "here/link.py").symlink_to("../there/notes.txt")

    with pytest.raises(UsageError, match=r"link.py leads to .*/there/notes.txt, which is not a Python file"):
        check_targets([str(folder / "here/link.py")])


@pytest.mark.parametrize("source", ["../there/tool.py", "link.py", "{folder}/there/tool.py"])
def test_configuration_names_files_of_its_own_folder_only(folder: Path, source: str) -> None:
    (folder / "here/link.py").symlink_to("../there/tool.py")
    config = folder / "here/fastmcp.json"

    config.write_text(json.dumps({"source": {"path": "own.py"}}))
    assert entry_of(*check_targets([str(config)])).file == folder / "here/own.py"

    config.write_text(json.dumps({"source": {"path": source.format(folder=folder)}}))
    with pytest.raises(UsageError, match="outside of its own folder"):
        check_targets([str(config)])


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipe_or_device_in_a_folder_is_not_read(folder: Path, kind: str) -> None:
    served = folder / "here/server.py"
    if kind == "pipe":
        os.mkfifo(served)
    else:
        served.symlink_to("/dev/zero")
    (folder / "here/main.py").write_text("mcp = FastMCP('x')\n")

    assert check_targets([str(folder / "here")]) == [str(folder / "here/main.py")]


def test_configuration_that_nests_too_deep_is_refused(folder: Path) -> None:
    config = folder / "here/fastmcp.json"
    config.write_text("[" * 200_000)

    with pytest.raises(UsageError, match="nests too deep"):
        check_targets([str(config)])
