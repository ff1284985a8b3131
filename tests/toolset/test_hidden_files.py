"""Hidden files that the text of a tool file names: found with the option that lends them."""

import os
from pathlib import Path

import pytest
from support import settings_in

from runner.toolset.hidden_files import hidden_files


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".prompts").mkdir(parents=True)
    (folder / ".prompts" / "system.md").write_text("be brief")
    (folder / "data").mkdir()
    for name in (".env", "server.pem", "id_rsa", "data/.cache", "plain.txt"):
        (folder / name).write_text("TOKEN=1\nexport OTHER = 2\n# NO=1\n")
    return folder


def found(project: Path, text: str, **settings: object) -> list[tuple[str, int]]:
    tool = project / "tool.py"
    tool.write_text(text)
    files = hidden_files([tool], settings_in(project.parent, **settings))
    return [(str(each.path.relative_to(project)), each.line) for each in files]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from dotenv import load_dotenv\nload_dotenv()", [(".env", 2)]),
        ("import dotenv\ndotenv.dotenv_values()", [(".env", 2)]),
        ("from environs import Env\nenv = Env()\nenv.read_env()", [(".env", 3)]),
        ("class S:\n    config = dict(env_file='.env')", [(".env", 2)]),
        ("open('./data/../.env')", [(".env", 1)]),
        ("p = __file__\n(q / '.prompts' / 'system.md')", [(".prompts", 2)]),
        ("open('.prompts/system.md')", [(".prompts", 1)]),
        ("ssl.load('server.pem')\nopen('id_rsa')", [("server.pem", 1), ("id_rsa", 2)]),
        ("open('data/.cache')", [("data/.cache", 1)]),
        ("open('.absent'); open('plain.txt'); x = '.'; y = '..'; z = ''", []),
        ("open('../.outside')", []),
        (f"x = '{'.' * 3000}'\ny = '\\0.env'", []),
        ("this is not Python", []),
    ],
)
def test_hidden_file_named_in_text_is_found(
    text: str, expected: list[tuple[str, int]], project: Path
) -> None:
    (project.parent / ".outside").write_text("")

    assert found(project, text) == expected


def test_granted_hidden_file_is_not_reported(project: Path) -> None:
    text = "open('.env'); open('.prompts')"

    assert found(project, text, allow_read=(project / ".env",)) == [(".prompts", 1)]
    assert found(project, text, allow_write=(project,)) == []


def test_hidden_file_named_in_a_module_is_found(project: Path) -> None:
    (project / "config.py").write_text("\n\nPATH = '.env'\n")
    tool = project / "tool.py"
    tool.write_text("import config")

    [one] = hidden_files([tool], settings_in(project.parent))

    assert (one.file, one.line, one.flag) == ("config.py", 3, f"--allow-read={project}/.env")
    assert one.variables == {"TOKEN", "OTHER"}


def test_dotenv_reader_finds_the_nearest_above(project: Path) -> None:
    inner = project / "inner"
    inner.mkdir()
    tool = inner / "tool.py"
    tool.write_text("load_dotenv()")

    assert [each.path for each in hidden_files([tool], settings_in(project.parent))] == [project / ".env"]


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_variables_are_read_of_regular_files_only(kind: str, project: Path) -> None:
    (project / ".env").unlink()
    if kind == "pipe":
        os.mkfifo(project / ".env")
    else:
        (project / ".env").symlink_to(project / "plain.txt")
    tool = project / "tool.py"
    tool.write_text("open('.env')")

    [one] = hidden_files([tool], settings_in(project.parent))

    assert one.variables == frozenset()
