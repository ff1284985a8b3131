"""`runner --in`: the command line of an engine, and what of ours runs without Linux."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, outer_environment

from runner.cli.launcher import ENGINES, container_command

ENGINE = """#!{python}
import json, os, sys
json.dump({{"words": sys.argv[1:], "input": sys.stdin.read()}}, open({file!r}, "w"))
print("answer of the container")
sys.exit(7)
"""


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "tool.py").write_text("")
    return tmp_path / "project" / "tool.py"


def words_of(
    *words: str, engine: str = "docker", has_terminal: bool = False, **environment: str
) -> list[str]:
    return container_command(
        engine, words, image="toolcell:1", user="ann", has_terminal=has_terminal, environment=environment
    )


def inside(command: list[str]) -> list[str]:
    """Return the words of the command that runs in the container."""
    return command[command.index("runner") + 1 :]


def test_folder_of_tool_file_mounted_to_be_read(tool: Path) -> None:
    command = words_of("serve", f"{tool}:mcp")

    assert (
        command[command.index("--mount") + 1] == f"type=bind,source={tool.parent},target=/opt/tools,readonly"
    )
    assert inside(command) == ["serve", "/opt/tools/tool.py:mcp"]
    assert command[:3] == ["docker", "run", "--rm"]
    assert "--publish" not in command
    assert "--pull=never" in command


def test_input_file_named_as_container_sees_it(tool: Path) -> None:
    (tool.parent / "sales.csv").write_text("")

    command = words_of("call", str(tool), "report", f"filename=@{tool.parent / 'sales.csv'}", "text=hi")

    assert inside(command) == [
        "call",
        "/opt/tools/tool.py",
        "report",
        "filename=@/opt/tools/sales.csv",
        "text=hi",
    ]


def test_file_outside_of_mounted_folder_refused(tool: Path, tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("")

    with pytest.raises(ValueError, match="outside of"):
        words_of("call", str(tool), "report", f"filename=@{tmp_path / 'sales.csv'}")


def test_whole_home_folder_not_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "tool.py").write_text("")

    command = words_of("serve", str(tmp_path / "tool.py"))

    assert f"type=bind,source={tmp_path}/tool.py,target=/opt/tools/tool.py,readonly" in command
    assert inside(command) == ["serve", "/opt/tools/tool.py"]


@pytest.mark.parametrize(
    ("words", "port"),
    [
        (["--transport", "http", "--port", "9000"], "9000"),
        (["--transport=http"], "8000"),
        ([], "8000"),
    ],
)
def test_http_port_published_on_loopback_only(words: list[str], port: str, tool: Path) -> None:
    command = words_of("serve", str(tool), *words, has_terminal=not words)

    assert command[command.index("--publish") + 1] == f"127.0.0.1:{port}:{port}"
    assert inside(command)[1:3] == ["--host", "0.0.0.0"]


def test_settings_passed_on_by_name_alone(tool: Path) -> None:
    command = words_of(
        "serve", str(tool), "--allow-env=API_KEY", RUNNER_REDIS_URL="hidden", AWS_REGION="x", OTHER="x"
    )
    with_s3 = words_of("serve", str(tool), "--store", "s3://bucket", AWS_SECRET_ACCESS_KEY="hidden")
    argument = words_of("call", str(tool), "copy", "to=s3://bucket", AWS_SECRET_ACCESS_KEY="hidden")
    command_of_another = words_of("proxy", "--", "x", "--store=s3://bucket", AWS_SECRET_ACCESS_KEY="hidden")

    assert "hidden" not in json.dumps(command)
    assert [command[at + 1] for at, word in enumerate(command) if word == "--env"] == [
        "RUNNER_USER=ann",
        "API_KEY",
        "RUNNER_REDIS_URL",
    ]
    assert "AWS_SECRET_ACCESS_KEY" in with_s3
    assert "AWS_SECRET_ACCESS_KEY" not in {*argument, *command_of_another}


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_runs_image(engine: str, tool: Path) -> None:
    command = words_of("serve", str(tool), engine=engine)

    assert command[: len(ENGINES[engine])] == list(ENGINES[engine])
    assert "toolcell:1" in command


def run(*words: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "runner", *words],
        env={**outer_environment(), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        input="a request",
    )


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A program that stands for the engine, and keeps what it is given."""
    engine = tmp_path / "bin" / "docker"
    engine.parent.mkdir()
    engine.write_text(ENGINE.format(python=sys.executable, file=str(tmp_path / "got.json")))
    engine.chmod(0o755)
    return engine


def test_engine_gets_standard_input_and_its_status_is_ours(tool: Path, engine: Path, tmp_path: Path) -> None:
    done = run("--in", "docker", "serve", "tool.py", folder=tool.parent, PATH=str(engine.parent))

    got: dict[str, Any] = json.loads((tmp_path / "got.json").read_text())
    assert (done.returncode, done.stdout, done.stderr) == (7, "answer of the container\n", "")
    assert got["input"] == "a request"
    assert inside(["docker", *got["words"]]) == ["serve", "/opt/tools/tool.py"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--in"], "usage"),
        (["--in", "qemu", "serve"], "usage"),
        (["--in", "podman", "serve"], "not on the PATH"),
    ],
)
def test_wrong_engine_refused_in_a_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    done = run(*words, folder=tmp_path, PATH=str(tmp_path))

    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


# What our own modules find on macOS, and on Windows; libraries have ways of their own there.
WITHOUT_LINUX = """
import builtins, ctypes, fcntl, os, resource, signal, socket, sys, types

platform, words = sys.argv[1], sys.argv[2:]
lacking = "fcntl grp pwd resource spwd termios".split() if platform == "win32" else []
found, read_link = builtins.__import__, os.readlink

def imported(name, globals=None, *rest):
    importer = str((globals or {}).get("__name__"))
    if importer.partition(".")[0] not in ("runner", "sandbox"):
        return found(name, globals, *rest)
    if name in lacking:
        raise ImportError(f"{importer} imports {name}, which is not there")
    return system if name == "sys" else found(name, globals, *rest)

class System(types.ModuleType):
    "The module `sys` of another system."
    def __getattr__(self, name):
        return platform if name == "platform" else getattr(sys, name)

class Library:
    "A C library without the calls of Linux."
    def __getattr__(self, name):
        def call(*args):
            raise OSError(38, f"{name} is not there")
        self.__dict__[name] = call
        return call

def look_up(event, args):
    if event in ("open", "os.listdir", "os.scandir") and str(args[0]).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "No such file or directory", args[0])

def read_link_elsewhere(path, **rest):
    look_up("open", [path])
    return read_link(path, **rest)

system = System("sys")
builtins.__import__ = imported
ctypes.CDLL = lambda *args, **kwargs: Library()
os.readlink = read_link_elsewhere
for module, names in {
    os: "MFD_CLOEXEC O_NOATIME O_PATH O_TMPFILE copy_file_range eventfd getrandom getxattr memfd_create "
    "pidfd_open posix_fadvise posix_fallocate sched_getaffinity sendfile setns setresuid setxattr splice "
    "unshare",
    fcntl: "F_ADD_SEALS F_OFD_SETLK F_SETPIPE_SZ",
    resource: "RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_SIGPENDING prlimit",
    signal: "pidfd_send_signal",
    socket: "AF_NETLINK AF_VSOCK SO_DOMAIN SO_PEERCRED",
}.items():
    for name in names.split():
        vars(module).pop(name, None)
sys.addaudithook(look_up)
sys.argv = ["runner", *words]
from runner.__main__ import main
main()
"""
MACOS, WINDOWS = "darwin", "win32"


def elsewhere(
    platform: str, *words: str, folder: Path, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command of the runner as on another system."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_LINUX, platform, *words],
        env={**outer_environment(), "PYTHONPATH": str(ROOT), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        input="",
    )


@pytest.mark.release
@pytest.mark.parametrize(
    ("platform", "words", "status"),
    [
        (WINDOWS, ["--in", "docker", "serve", "tool.py"], 7),
        (MACOS, ["--in", "docker", "serve", "tool.py"], 7),
        (MACOS, ["install", "mcp-json", "tool.py", "--in", "docker"], 0),
        (MACOS, ["init", "new"], 0),
        (MACOS, ["schema"], 0),
        (MACOS, ["config"], 0),
        (MACOS, ["--version"], 0),
    ],
)
def test_command_runs_without_linux(
    platform: str, words: list[str], status: int, tool: Path, engine: Path
) -> None:
    done = elsewhere(platform, *words, folder=tool.parent, PATH=str(engine.parent))

    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == status
    assert done.stdout


@pytest.mark.release
@pytest.mark.parametrize(
    ("platform", "words", "sentence"),
    [
        (MACOS, ["serve", "tool.py"], "run `runner --in docker serve"),
        (WINDOWS, ["check", "tool.py"], "run `runner --in docker check"),
        (WINDOWS, ["--help"], "in WSL2"),
    ],
)
def test_command_that_needs_linux_refused_in_a_sentence(
    platform: str, words: list[str], sentence: str, tool: Path
) -> None:
    done = elsewhere(platform, *words, folder=tool.parent)

    assert done.returncode == 2
    assert done.stderr.startswith("runner: this needs a Linux kernel; ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.release
def test_check_without_linux_looks_at_text_alone(tool: Path) -> None:
    tool.write_text(
        "from fastmcp import FastMCP\nmcp = FastMCP('x')\n\n@mcp.tool\ndef f() -> str:\n    print(1)\n"
    )
    text, as_json = (
        elsewhere(MACOS, "check", "tool.py", folder=tool.parent),
        elsewhere(MACOS, "check", "--json", "tool.py", folder=tool.parent),
    )
    report = json.loads(as_json.stdout)

    assert "print-to-stdout" in text.stdout
    assert "only its text was looked at" in text.stdout
    assert "runner --in docker check" in text.stdout
    assert (report["loads"], report["dry_run"], len(report["findings"])) == (None, [], 1)
    assert text.returncode == as_json.returncode == 0


@pytest.mark.release
def test_files_of_local_store_used_without_linux(tool: Path, tmp_path: Path) -> None:
    tool.write_text("content")
    tmp_path.chmod(0o700)
    folders = {
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
        "RUNNER_STORE": (tmp_path / "store").as_uri(),
        "RUNNER_USER": "ann",
    }

    done = [
        elsewhere(MACOS, "files", *words.split(), folder=tool.parent, **folders)
        for words in (
            "put tool.py",
            "ls",
            "get tool.py --out copy.py",
            "get tool.py",
            "rm tool.py",
            "end-session",
        )
    ]

    assert [one.returncode for one in done] == [0, 0, 0, 2, 0, 0], [one.stderr for one in done]
    assert "tool.py" in done[1].stdout
    assert (tool.parent / "copy.py").read_text() == "content"
    assert "tool.py exists" in done[3].stderr
    assert "home_emptied: False" in done[5].stdout
