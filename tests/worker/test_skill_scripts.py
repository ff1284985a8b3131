"""Folders of skills: what is served of them, how their scripts run, and what hostile ones get."""

import contextlib
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.exceptions import ToolError
from mcp_types import TextResourceContents
from support import put_file, settings_in

from runner.errors import UsageError
from runner.homes.homes import Homes
from runner.server.host import make_host
from runner.toolset.toolset import Toolset
from runner.worker.targets import check_targets, entry_of
from sandbox.errors import LoadError

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

SKILL = """---
name: {name}
description: Counts words.
---
Run `scripts/count.py FILE`.
"""
COUNT = """
import pathlib, sys
text = pathlib.Path(sys.argv[1]).read_text()
pathlib.Path("count.txt").write_text(str(len(text.split())))
print((pathlib.Path(__file__).parents[1] / "reference.md").read_text().strip())
"""
SCRIPTS = {
    "count.py": COUNT,
    "shout.sh": 'echo "$1" | tr a-z A-Z',
    "perl.pl": "#!/usr/bin/env perl\nprint 6 * 7;",
    "fail.py": "import sys; print('half', file=sys.stderr); sys.exit(3)",
    "write.py": "import sys; open(sys.argv[1], 'w')",
    "list.py": "import os, sys; print(os.listdir(sys.argv[1]))",
    "connect.py": "import socket, sys; socket.create_connection((sys.argv[1], 53), 2)",
    "late.py": "import os; print('done', flush=True); os.closerange(1, 3); sum(range(10**7))",
    "silent.py": "while True: pass",
    "leaves.sh": "echo before; sleep 60 & echo after",
    "long.py": "print(end='x' + 'ü' * 36_000)",
    "data.txt": "no script",
}


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """A folder with one skill."""
    tmp_path.chmod(0o755)
    return written(tmp_path / "skills", "words")


def written(folder: Path, name: str) -> Path:
    """Write a skill into a folder of skills, and return the folder."""
    (folder / name / "scripts").mkdir(parents=True)
    (folder / name / "SKILL.md").write_text(SKILL.format(name=name))
    (folder / name / "reference.md").write_text("words are split at blanks\n")
    for script, text in SCRIPTS.items():
        (folder / name / "scripts" / script).write_text(text)
    return folder


@contextlib.asynccontextmanager
async def serving(skills: Path, **more: Any) -> AsyncIterator[tuple[Client[Any], str]]:
    """Serve a folder of skills to one user, who is returned with the client."""
    state, user = skills.parent / "state", f"t-{uuid.uuid4().hex[:12]}"
    state.mkdir(mode=0o700, exist_ok=True)
    settings = settings_in(state, user=user, **more)
    async with (
        Toolset.open(settings, check_targets([str(skills)])) as toolset,
        Client(make_host(toolset, transport="stdio", download_url=None)) as client,
    ):
        yield client, user


async def run(client: Client[Any], script: str, *args: str, **more: Any) -> dict[str, Any]:
    arguments = {"skill": "words", "script": script, "args": list(args), **more}
    result = await client.call_tool("run_skill_script", arguments)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def test_skill_served_as_resources_with_one_tool(skills: Path) -> None:
    async with serving(skills) as (client, _):
        uris = {str(resource.uri) for resource in await client.list_resources()}
        (text,) = await client.read_resource("skill://words/SKILL.md")
        tools = {tool.name: tool for tool in await client.list_tools()}

    assert {"skill://words/SKILL.md", "skill://words/scripts/count.py"} <= uris
    assert isinstance(text, TextResourceContents)
    assert text.text == SKILL.format(name="words")
    assert "scripts/count.py" in (tools["run_skill_script"].description or "")
    assert "data.txt" not in (tools["run_skill_script"].description or "")


async def test_script_gets_input_file_and_returns_output_file(skills: Path) -> None:
    async with serving(skills) as (client, user):
        await put_file(skills.parent / "state", user, "text.txt", b"one two three")
        found = await run(client, "scripts/count.py", "text.txt", filenames=["text.txt"])
        (artifact,) = found["artifacts"]
        (content,) = await client.read_resource(artifact["uri"])

    assert found["results"]["stdout"] == "words are split at blanks\n"
    assert artifact["name"] == "count.txt"
    assert isinstance(content, TextResourceContents)
    assert content.text == "3"


async def test_scripts_run_by_suffix_and_by_first_line(skills: Path) -> None:
    async with serving(skills) as (client, _):
        shouted = await run(client, "shout.sh", "hello")
        counted = await run(client, "perl.pl")
        # Of several chunks, one of which ends inside a character.
        long = await run(client, "long.py")

    assert shouted["results"]["stdout"] == "HELLO\n"
    assert counted["results"]["stdout"] == "42"
    assert set(long["results"]["stdout"]) == {"ü"}


async def test_failed_script_named_with_status_and_complaint(skills: Path) -> None:
    async with serving(skills) as (client, _):
        with pytest.raises(ToolError, match=r"(?s)exit status 3.*half"):
            await run(client, "fail.py")


@pytest.mark.parametrize(
    "script", ["../../other/scripts/count.py", "scripts/../../x.sh", "/bin/sh", "data.txt", "SKILL.md", ""]
)
async def test_only_scripts_of_skill_run(script: str, skills: Path) -> None:
    written(skills, "other")

    async with serving(skills) as (client, _):
        with pytest.raises(ToolError, match="has no script"):
            await run(client, script)
        with pytest.raises(ToolError, match="there is no skill"):
            await client.call_tool("run_skill_script", {"skill": "../words", "script": "count.py"})


@pytest.mark.parametrize(
    ("script", "word"),
    [("write.py", "/etc/skill.new"), ("write.py", "/var/tmp/skill.new"), ("connect.py", "192.0.2.1")],
)
async def test_script_denied_outside_home(script: str, word: str, skills: Path) -> None:
    async with serving(skills) as (client, _):
        allowed = await run(client, "write.py", "own.txt")
        with pytest.raises(ToolError):
            await run(client, script, word)

    assert [one["name"] for one in allowed["artifacts"]] == ["own.txt"]
    assert not Path(word).exists()


async def test_script_sees_no_home_of_others(skills: Path) -> None:
    other = Path("/tmp", f"t-{uuid.uuid4().hex[:12]}")
    other.mkdir(0o777)
    try:
        async with serving(skills) as (client, user):
            own = await run(client, "list.py", f"/tmp/{user}")
            with pytest.raises(ToolError):
                await run(client, "list.py", str(other))
    finally:
        other.rmdir()

    assert "words-" in own["results"]["stdout"]


async def test_silent_script_killed_by_ladder(skills: Path) -> None:
    async with serving(skills, idle_timeout_s=1.0, total_timeout_s=20.0) as (client, _):
        with pytest.raises(ToolError, match="E_TIMEOUT"):
            await run(client, "silent.py")
        assert (await run(client, "shout.sh", "alive"))["results"]["stdout"] == "ALIVE\n"


async def test_line_of_script_reported_once_as_progress(skills: Path) -> None:
    lines = list[str | None]()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        lines.append(message)

    async with serving(skills) as (client, _user):
        arguments = {"skill": "words", "script": "late.py"}
        await client.call_tool("run_skill_script", arguments, progress_handler=on_progress)

    assert lines == ["done"]


async def test_script_that_leaves_process_ends_at_its_exit(skills: Path) -> None:
    """The process has the pipes of the output open."""
    async with serving(skills, idle_timeout_s=3.0, total_timeout_s=5.0) as (client, _):
        found = await run(client, "leaves.sh")
        again = await run(client, "shout.sh", "alive")

    assert found["results"] == {"stdout": "before\nafter\n"}
    assert again["results"]["stdout"] == "ALIVE\n"


async def test_copy_of_skill_removed_from_home_after_call(skills: Path) -> None:
    async with serving(skills) as (client, user):
        await run(client, "shout.sh", "alive")
        left = [path for path in Path("/tmp", user).rglob("*") if path.name == "shout.sh"]

    assert left == []


async def test_changed_script_runs_as_it_was_listed(skills: Path) -> None:
    async with serving(skills) as (client, _):
        first = await run(client, "shout.sh", "a")
        (skills / "words" / "scripts" / "shout.sh").write_text("echo other")
        second = await run(client, "shout.sh", "a")

    assert first == second


def link_to_file(skills: Path) -> None:
    (skills / "words" / "scripts" / "out.py").symlink_to("/etc/passwd")


def link_to_folder(skills: Path) -> None:
    (skills / "words" / "out").symlink_to("/etc")


def pipe(skills: Path) -> None:
    os.mkfifo(skills / "words" / "pipe")


def endless_header(skills: Path) -> None:
    (skills / "words" / "SKILL.md").write_text("---\n" + "a: [\n" * 200_000)


def no_header(skills: Path) -> None:
    (skills / "words" / "SKILL.md").write_text("no header")


def bad_header(skills: Path) -> None:
    (skills / "words" / "SKILL.md").write_text("---\nname: [\n---\n")


def aliases(skills: Path) -> None:
    (skills / "words" / "SKILL.md").write_text("---\nname: &a words\ndescription: *a\n---\n")


def other_name(skills: Path) -> None:
    (skills / "words" / "SKILL.md").write_text(SKILL.format(name="other"))


def odd_bytes(skills: Path) -> None:
    os.close(os.open(os.fsencode(skills) + b"/words/\xff.md", os.O_CREAT))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (link_to_file, "symlink"),
        (link_to_folder, "symlink"),
        (pipe, "non-regular"),
        (endless_header, "longer than"),
        (no_header, "must begin with"),
        (bad_header, "not valid YAML"),
        (aliases, "aliases"),
        (other_name, "other"),
        (odd_bytes, "UTF-8"),
    ],
)
async def test_hostile_skill_refused_in_a_sentence(
    spoil: Callable[[Path], None], words: str, skills: Path
) -> None:
    spoil(skills)

    with pytest.raises(LoadError, match=words) as refusal:
        async with serving(skills):
            raise AssertionError("it was served")

    assert "Traceback" not in str(refusal.value)


async def test_linked_skill_outside_of_folder_not_served(skills: Path, tmp_path: Path) -> None:
    outside = written(tmp_path / "outside", "far")
    (skills / "far").symlink_to(outside / "far")

    async with serving(skills) as (client, _):
        uris = json.dumps([str(resource.uri) for resource in await client.list_resources()])

    assert "skill://words/" in uris
    assert "skill://far/" not in uris


async def test_folder_of_skills_in_a_home_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    homes = tmp_path / "homes"
    homes.mkdir(mode=0o700)

    with Homes.of(settings_in(tmp_path / "other", homes=homes)).lease("ann") as home:
        skills = written(home.path / "skills", "words")
        with pytest.raises(LoadError, match="in the home of a user"):
            async with serving(skills, homes=homes):
                raise AssertionError("it was served")


async def test_folder_of_skills_with_too_many_files_refused(
    skills: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.readable.MOST_ENTRIES", 5)

    with pytest.raises(LoadError, match="nor have more than 20,000 files"):
        async with serving(skills):
            raise AssertionError("it was served")


async def test_folder_of_skills_among_keys_refused(tmp_path: Path) -> None:
    skills = written(tmp_path / ".ssh" / "skills", "words")

    with pytest.raises(UsageError, match="keys"):
        async with serving(skills):
            raise AssertionError("it was served")


def test_folder_without_skills_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\*/SKILL.md"):
        check_targets([str(tmp_path)])


def test_folder_of_skills_named_by_itself(skills: Path) -> None:
    (target,) = check_targets([str(skills)])

    assert entry_of(target).title == "skills"
    assert entry_of(target).folders == (skills,)
