"""Servers that others wrote work on a folder that is lent to them, as its owner, in every tier."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from everything import node
from proxying import proxied
from support import ROOT, settings_in

from runner.contract.missed_network import missed_network
from runner.errors import UsageError
from runner.proxy.hints import network_hint, option_hint, relative_hint, variable_hint
from runner.proxy.targets import Target
from runner.proxy.upstreams import ways_to
from runner.settings.lendable import within
from sandbox.probe.machine import Tier

pytestmark = [
    pytest.mark.needs_root,
    pytest.mark.needs_npm,
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.kernel,
]

PACKAGES = ROOT / "tests/npm/node_modules/@modelcontextprotocol"
OWNER = 4242


@pytest.fixture(params=["process", "user", "namespace"])
def tier(request: pytest.FixtureRequest) -> str:
    assert os.geteuid() == 0, "two of the tiers are for a runner that root starts; run these tests as root"
    return str(request.param)


@pytest.fixture
def lent() -> Iterator[Path]:
    """A folder that is open to nobody by default."""
    top = Path(tempfile.mkdtemp(prefix="toolcell-lent-", dir="/srv"))
    (top / "notes").mkdir()
    (top / "beside").mkdir()
    (top / "beside/secret.txt").write_text("secret")
    top.chmod(0o755)
    yield top / "notes"
    shutil.rmtree(top)


def node_server(name: str, *arguments: str, **more: Any) -> Target:
    program = PACKAGES / f"server-{name}/dist/index.js"
    assert program.is_file(), f"the {name}-server is not installed; scripts/test runs npm ci in tests/npm"
    return Target(name=name, command=(node(), str(program), *arguments), **more)


def python_server(program: str, *arguments: str) -> Target:
    return Target(name="python", command=(str(Path(sys.prefix) / "bin" / program), *arguments))


async def text_of_call(client: Any, tool: str, **arguments: Any) -> str:
    called = await client.call_tool(tool, arguments, raise_on_error=False)
    return "\n".join(block.text for block in called.content if block.type == "text")


async def test_filesystem_server_works_on_granted_folder_only(
    folder: Path, user: str, lent: Path, tier: str, caplog: pytest.LogCaptureFixture
) -> None:
    beside = lent.parent / "beside"
    for entry in (lent, beside):
        os.chown(entry, OWNER, OWNER)
    target = node_server("filesystem", str(lent), str(beside), allow_write=(lent,))
    wider = node_server("filesystem", str(lent), str(beside), allow_write=(lent,), allow_read=(beside,))

    async with proxied(folder, user, wider, isolation=tier) as client:
        assert await text_of_call(client, "read_text_file", path=f"{beside}/secret.txt") == "secret"
    async with proxied(folder, user, target, isolation=tier) as client:
        written = await text_of_call(client, "write_file", path=f"{lent}/a.txt", content="a note")
        read = await text_of_call(client, "read_text_file", path=f"{lent}/a.txt")
        refused = await text_of_call(client, "read_text_file", path=f"{beside}/secret.txt")

    assert "Successfully wrote" in written
    assert read == "a note"
    assert (lent / "a.txt").stat().st_uid == OWNER
    assert refused != "secret"
    # Where the folder is invisible, the server omits it and writes the denial itself: the log has the option.
    assert (f"--allow-read={beside}" in refused) == (tier != "namespace"), refused
    hints = [getattr(record, "hint", "") for record in caplog.records]
    assert sum(f"--allow-read={beside} lends" in hint for hint in hints) == 1, hints


async def test_memory_server_keeps_file_in_granted_folder(
    folder: Path, user: str, lent: Path, tier: str
) -> None:
    os.chown(lent, OWNER, OWNER)
    target = node_server("memory", env={"MEMORY_FILE_PATH": f"{lent}/memory.jsonl"}, allow_write=(lent,))
    entity = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}

    async with proxied(folder, user, target, isolation=tier) as client:
        await text_of_call(client, "create_entities", entities=[entity])
    async with proxied(folder, user, target, isolation=tier) as client:
        remembered = await text_of_call(client, "read_graph")

    assert "likes tea" in remembered
    assert (lent / "memory.jsonl").stat().st_uid == OWNER


async def test_excel_server_makes_workbook_in_granted_folder(
    folder: Path, user: str, lent: Path, tier: str
) -> None:
    book = f"{lent}/book.xlsx"
    target = python_server("excel-mcp-server", "stdio")

    async with proxied(folder, user, target, isolation=tier, allow_write=(lent,)) as client:
        made = await text_of_call(client, "create_workbook", path=book)
        described = await text_of_call(client, "describe_workbook", path=book)

    assert "book.xlsx" in made
    assert "Sheet1" in described
    assert Path(book).is_file()


@pytest.fixture
def repository(lent: Path, folder: Path) -> Path:
    subprocess.run(["git", "init", "-q", lent], check=True)
    for name in ("user.name", "user.email"):
        subprocess.run(["git", "-C", lent, "config", name, "a@b.example"], check=True)
    (lent / "a.txt").write_text("a")
    # Root without any capability works there: the folder is root's, the repository in it is not.
    os.chown(lent / ".git", OWNER, OWNER)
    os.chmod(lent / ".git", 0o777)
    theirs = {**os.environ, "HOME": str(folder)}
    status = subprocess.run(["git", "-C", lent, "status"], user=OWNER + 1, capture_output=True, env=theirs)
    assert b"dubious ownership" in status.stderr
    return lent


async def test_git_server_commits_to_repository_of_another_owner(
    folder: Path, user: str, repository: Path, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, at = python_server("mcp-server-git", "--repository", str(repository)), str(repository)

    with monkeypatch.context() as without:
        # The control: git as it is, which is not told that what is lent may be somebody else's.
        without.setattr("runner.toolset.programs._GIT", {})
        async with proxied(folder, user, target, isolation=tier, allow_write=(repository,)) as client:
            refused = await text_of_call(client, "git_add", repo_path=at, files=["a.txt"])
    async with proxied(folder, user, target, isolation=tier, allow_write=(repository,)) as client:
        added = await text_of_call(client, "git_add", repo_path=at, files=["a.txt"])
        committed = await text_of_call(client, "git_commit", repo_path=at, message="one")
        log = await text_of_call(client, "git_log", repo_path=at)

    assert "dubious ownership" in refused
    assert "one" in log, (added, committed)


def test_folder_of_command_is_not_granted_to_it(folder: Path, lent: Path) -> None:
    server = lent / "server.py"
    server.write_text("")
    target = Target(name="x", command=(sys.executable, "server.py"), folder=lent, allow_write=(lent,))

    with pytest.raises(UsageError, match=r"holds .*server.py, which tools run from"):
        ways_to(settings_in(folder), [target])


def test_semaphore_denial_names_tier_that_allows_it(folder: Path) -> None:
    error = (
        'File "/usr/lib/python3/multiprocessing/synchronize.py" / SemLock: [Errno 30] Read-only file system'
    )

    hint = option_hint(error, settings_in(folder), Tier.PROCESS)
    there = option_hint(error, settings_in(folder), Tier.NAMESPACE)

    assert hint is not None
    assert "POSIX semaphore" in hint
    assert "--isolation=namespace" in hint
    assert "--allow" not in hint
    assert "semaphore" not in str(there)


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("EACCES: permission denied, open '/srv/a/b'", "--allow-read=/srv/a or --allow-write=/srv/a"),
        ("EACCES: permission denied, open '/srv/read/b'", "--allow-write=/srv/read"),
        ("ENOENT: no such file or directory, open '/srv/a/b'", "--allow-read=/srv/a"),
        ("ENOENT: no such file or directory, open '/opt/a/b'", None),
        ("ENOENT: no such file or directory, open '/srv/read/b'", None),
        ('{"success":false,"error":"Folder not found: /srv/a/b"}', "--allow-read=/srv/a"),
        ("Loading failed: not found: /srv/a/b.pdf. Reason: none", "--allow-read=/srv/a"),
        ("No files matching '/srv/a/b.js' were found.", "--allow-read=/srv/a"),
        ("EROFS: read-only file system, mkdir '/srv/a/b'", "--allow-write=/srv/a"),
        ("the folder /srv/notes does not exist", "--allow-read=/srv/notes"),
        (
            "[Errno 13] Permission denied: '/home/ada/notes'",
            "--allow-read=/home/ada/notes or --allow-write=/home/ada/notes",
        ),
        ("[Errno 13] Permission denied: '/home/ada'", None),
        ("[Errno 13] Permission denied: '/srv/write/b'", None),
        ("all is well with /srv/a/b", None),
        (
            "Error: No permission to access vault directory: /srv/a/b",
            "--allow-read=/srv/a or --allow-write=/srv/a",
        ),
        # The last lines of a process are told as one, and not each of them is about what was denied.
        ('File "/srv/bin/tool", line 3, in main / OSError: [Errno 30] Read-only file system', None),
        (
            "File \"/srv/bin/tool\", line 3 / PermissionError: [Errno 13] Permission denied: '/srv/a/b'",
            "--allow-read=/srv/a or --allow-write=/srv/a",
        ),
    ],
)
def test_option_found_in_server_message(words: str, flag: str | None, folder: Path) -> None:
    settings = settings_in(folder, allow_read=(Path("/srv/read"),), allow_write=(Path("/srv/write"),))

    hint = option_hint(words, settings, Tier.NAMESPACE)

    assert (hint is None) if flag is None else (hint is not None and f"operator: {flag} would" in hint)


def test_long_path_compared_with_folders_as_text() -> None:
    deep = Path("/srv" + "/a" * 200_000)

    assert within(deep, "/srv/a")
    assert within(deep, "/")
    assert within(deep, deep)
    assert not within(deep, "/srv/a/b")
    assert not within(Path("/srvb"), "/srv")
    assert not within(Path("/srv"), "/srv/a")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("ModuleNotFoundError: No module named 'stories'", "PYTHONPATH"),
        ("Error: Cannot find module 'stories'", "PYTHONPATH"),
        ("ValueError: a valid ALLOWED_DIR is required", "ALLOWED_DIR"),
        ("ValueError: a valid API_KEY is required", None),
        ("ValueError: OTHER_DIR is required", None),
        ("all is well", None),
    ],
)
def test_missing_variable_is_named(words: str, name: str | None) -> None:
    hint = variable_hint(words, ("API_KEY",), ("API_KEY", "ALLOWED_DIR", "PYTHONPATH"))

    assert (hint is None) if name is None else (hint is not None and f"--allow-env={name} passes it" in hint)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'logs/a.log'", "logs/a.log"),
        ("Error: ENOENT: no such file or directory, open 'conf.json' / at open", "conf.json"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/opt/a'", None),
        ("Error: Cannot find module 'express'", None),
    ],
)
def test_relative_path_not_found_names_working_folder(words: str, path: str | None) -> None:
    hint = relative_hint(words)

    assert (hint is None) if path is None else (hint is not None and path in hint and "scratch home" in hint)


@pytest.mark.parametrize(
    ("words", "is_missed"),
    [
        ("Error: getaddrinfo ENOTFOUND api.host.example", True),
        ("ENOTFOUND", True),
        ("ModuleNotFoundError: no module", False),
    ],
)
def test_network_hint_given_where_program_reports_it(words: str, is_missed: bool) -> None:
    assert missed_network(words) is is_missed


@pytest.mark.parametrize(
    ("output", "has_network", "expected"),
    [
        ("runner: connection to 10.0.0.5:443 denied / npm error EACCES", True, "--allow-net=10.0.0.5:443 "),
        (
            "runner: connection to [fd00::1]:443 denied / runner: connection to a.example denied",
            True,
            "--allow-net=[fd00::1]:443,a.example ",
        ),
        ("fetch failed", False, "--allow-net=HOST "),
        ("fetch failed", True, None),
        # Text of the server that a shell would run.
        ("runner: connection to $(id) denied", True, None),
    ],
)
def test_network_hint_names_denied_addresses(output: str, *, has_network: bool, expected: str | None) -> None:
    hint = network_hint(output, has_network=has_network) or ""

    assert bool(hint) is (expected is not None)
    assert (expected or "") in hint
