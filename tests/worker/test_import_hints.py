"""Options and cures that the error of an import names."""

import sys
from pathlib import Path

import pytest

from runner.worker.toolfile import load_tool_files
from sandbox.errors import LoadError

HEAD = "import json, os, sqlite3, sys\nfrom fastmcp import FastMCP\nmcp = FastMCP('x')\n"
DENIED = "try:\n    raise PermissionError(13, 'Permission denied')\nexcept OSError as error:\n    {}\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (DENIED.format("raise RuntimeError('no connection') from error"), "without --allow-net=HOST"),
        ("sqlite3.connect('/nowhere/notes.db')", "--allow-write=FOLDER"),
        ("raise OSError(30, 'Read-only file system', '/x')", "a tool file may write nothing"),
        ("open('data/conf.json')", "write Path(__file__).parent / 'data/conf.json'"),
        ("open('../data/conf.json')", "which --allow-read="),
        ("K = os.getenv('A_KEY') or sys.exit('A_KEY is required')", "with --allow-env=A_KEY"),
        ("K = os.environ.get('A_KEY')\nif not K:\n    sys.exit(1)", "with --allow-env=A_KEY"),
        ("K = os.getenv('A_KEY')\nif not K:\n    raise ValueError('set A_KEY')", "with --allow-env=A_KEY"),
        ("K = os.environ['A_KEY']", "with --allow-env=A_KEY"),
        ("K = os.environ['RUNNER_KEY']", "no tool sees variables that begin with RUNNER_"),
        (
            "K = os.getenv('RUNNER_K'), os.getenv('A_KEY')\nsys.exit(1)",
            "with --allow-env=A_KEY",
        ),
        (
            "from pydantic_settings import BaseSettings\n"
            "class S(BaseSettings):\n    model_config = {'env_prefix': 'a_'}\n    key: str\nS()",
            "with --allow-env=A_KEY",
        ),
    ],
)
def test_failed_import_names_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, expected: str
) -> None:
    monkeypatch.delenv("A_KEY", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "hints.py"
    file.write_text(HEAD + code + "\n")

    with pytest.raises(LoadError) as raised:
        load_tool_files([str(file)])

    assert expected in str(raised.value)


def test_error_without_remedy_names_no_option(tmp_path: Path) -> None:
    file = tmp_path / "hints.py"
    file.write_text(HEAD + "K = os.getenv('A_KEY')\nraise ValueError('something else')\n")

    with pytest.raises(LoadError) as raised:
        load_tool_files([str(file)])

    assert "--allow" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("create_server()", "hints.py:create_server"),
        ("create_server(port)", "add `mcp"),
        ("helper()", "hints.py:helper"),
        ("main():\n    FastMCP('x').run()\n    return helper()\ndef helper(port)", "add `mcp"),
    ],
)
def test_function_that_makes_a_server_is_proposed(tmp_path: Path, name: str, expected: str) -> None:
    file = tmp_path / "hints.py"
    file.write_text(f"from fastmcp import FastMCP\ndef {name}:\n    return FastMCP('x')\n")

    with pytest.raises(LoadError) as raised:
        load_tool_files([str(file)])

    assert expected in str(raised.value)
