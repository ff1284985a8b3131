"""`runner --in ENGINE COMMAND...`: a command of the runner in a container, on systems without a Linux kernel.

For macOS, Windows and WSL2. The image of the project runs with standard input and output passed through, and
with the folder of the tool file mounted read-only at `/opt/tools`. No Linux-only module is imported here.

Source: docker-run(1); `docs/deploying.md`, "Without a Linux kernel" and "Container".
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

__all__ = ["ENGINES", "Engine", "check_system", "container_command", "run_in"]

Engine = Literal["docker", "lima", "nerdctl", "podman"]

ENGINES: Mapping[str, tuple[str, ...]] = {
    "docker": ("docker",),
    "podman": ("podman",),
    "nerdctl": ("nerdctl",),
    # Mounts are those of the virtual machine: by default the user's home folder, read-only.
    "lima": ("limactl", "shell", "--workdir", "/", "default", "nerdctl"),
}
"""The engines, each with the command words before `run`."""

_SERVERS = ("dev", "proxy", "serve")
_NATIVE = ("check", "config", "files", "init", "install", "schema")
_FOLDER = "/opt/tools"
_PORT = "8000"
_CANNOT_RUN = 125
_USAGE = 2


def check_system(words: Sequence[str]) -> None:
    """Exit with a sentence if the command cannot run on this system: none can on Windows, a few on macOS.

    Args:
        words: The words of the command line.
    """
    platform: str = sys.platform
    command = next((word for word in words if not word.startswith("-")), "")
    if platform == "linux" or (platform != "win32" and command in ("", *_NATIVE)):
        return
    there = ", or install toolcell in WSL2" if platform == "win32" else ""
    sys.exit(_say(f"this needs a Linux kernel; run `runner --in docker {command or 'COMMAND'}…`{there}"))


def run_in(words: Sequence[str]) -> int:
    """Run the command in a container and return its exit status.

    Args:
        words: The words of the command line after `--in`.
    """
    engine = words[0] if words else ""
    if engine not in ENGINES or len(words) < 2:
        return _say(f"usage: runner --in {'|'.join(ENGINES)} COMMAND...; see runner --help for commands")
    if shutil.which(ENGINES[engine][0]) is None:
        return _say(f"{ENGINES[engine][0]} is not on the PATH; install it, or name another engine after --in")
    image = os.environ.get("TOOLCELL_IMAGE") or f"toolcell:{version('toolcell')}"
    try:
        command = container_command(
            engine,
            words[1:],
            image=image,
            user=os.environ.get("USER") or os.environ.get("USERNAME") or "user",
            has_terminal=sys.stdin is not None and sys.stdin.isatty(),
            environment=os.environ,
        )
    except ValueError as error:
        return _say(str(error))
    with subprocess.Popen(command) as process:
        # Ctrl-C also interrupts the engine, which ends the container; a SIGTERM is sent only to us.
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, lambda _number, _frame: process.terminate())
        status = process.wait()
    if status == _CANNOT_RUN:
        build = " ".join([*ENGINES[engine], "build", "--tag", image, "."])
        _say(f"{engine} could not start {image}; where it is missing, in a checkout of toolcell: {build}")
    return status


def container_command(
    engine: str,
    words: Sequence[str],
    *,
    image: str,
    user: str,
    has_terminal: bool,
    environment: Mapping[str, str],
) -> list[str]:
    """Return the command line that runs a command of the runner in a container.

    Args:
        engine: One of `ENGINES`.
        words: The command and its arguments.
        image: The image.
        user: The user whose calls it runs, and whose files persist across containers.
        has_terminal: Whether standard input is a terminal: a server then listens on HTTP.
        environment: The environment; its settings are passed on by name.

    Raises:
        ValueError: A file is outside the mounted folder.
    """
    name = re.sub(r"[^a-zA-Z0-9_.-]", "-", user)
    # The keys of a store in S3 are in AWS's variables; an option takes precedence over the variable.
    store = _value(words, "--store") or environment.get("RUNNER_STORE", "")
    passed_on = ("RUNNER_", "AWS_") if store.lower().startswith("s3://") else ("RUNNER_",)
    variables = [key for key in environment if key.startswith(passed_on)]
    variables += [each for word in words if word.startswith("--allow-env=") for each in word[12:].split(",")]
    arguments, mount = _mounted(words)
    ports: list[str] = []
    transport = _value(words, "--transport") or ("http" if has_terminal else "stdio")
    if words[0] == "dev" or (words[0] in _SERVERS and transport == "http"):
        port = _value(words, "--port") or _PORT
        ports = ["--publish", f"127.0.0.1:{port}:{port}"]
        # Only the published port leads into the container.
        listening = ["--host", "0.0.0.0", *([] if _value(words, "--port") else ["--port", port])]  # noqa: S104
        if words[0] != "dev" and _value(words, "--transport") is None:
            listening += ["--transport", "http"]
        arguments = [arguments[0], *listening, *arguments[1:]]
    return [
        *ENGINES[engine], "run", "--rm", "--interactive",
        # Never pull an image that someone else has published under this name.
        "--pull=never",
        # The image's own health check uses HTTP, which a stdio server does not have.
        *(["--no-healthcheck"] if engine in ("docker", "podman") else []),
        "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "2048",
        "--volume", f"toolcell-{name}:/tmp", "--env", f"RUNNER_USER={name}",
        *(part for key in sorted(set(variables) - {"RUNNER_USER"}) for part in ("--env", key)),
        *ports, *mount,
        "--workdir", _FOLDER if mount else "/tmp",  # noqa: S108 - of the container
        "--entrypoint", "/usr/bin/tini", image, "--", "runner", *arguments,
    ]  # fmt: skip


def _value(words: Sequence[str], option: str) -> str | None:
    """Return the value of an option; the last one counts."""
    value = None
    for at, word in enumerate(words):
        if word == "--":
            # The rest is the command of another program.
            break
        if word.startswith(f"{option}="):
            value = word.partition("=")[2]
        elif word == option and at + 1 < len(words):
            value = words[at + 1]
    return value


def _mounted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words with paths of the container, and the option that mounts their files.

    The first file determines the folder; of a whole home folder, or of a root, only the file is mounted.

    Raises:
        ValueError: Another file is elsewhere, or a path cannot be written as a mount.
    """
    top: Path | None = None
    shown: list[str] = []
    for word in words:
        # `tool.py`, `tool.py:mcp`, `filename=@sales.csv`.
        found = re.fullmatch(r"(?P<before>[\w.-]+=@|)(?P<path>.+?)(?P<after>:[^\W\d]\w*|)", word)
        path = Path(found["path"]).expanduser() if found and not word.startswith("-") else None
        if found is None or path is None or not shown or not path.exists():
            shown.append(word)
            continue
        path = path.resolve()
        if top is None:
            folder = path if path.is_dir() else path.parent
            is_wide = folder == Path.home() or folder == folder.parent
            top = path if is_wide and path.is_file() else folder
        if path != top and not path.is_relative_to(top):
            raise ValueError(f"{path} lies outside of {top}, which is mounted; move it there")
        inside = path.name if top == path and path.is_file() else path.relative_to(top).as_posix()
        shown.append(f"{found['before']}{_FOLDER}/{inside}{found['after']}")
    if top is None:
        return shown, []
    if "," in str(top) or '"' in str(top):
        raise ValueError(f"{top} has a comma or a quote in its name, which engines do not mount; rename it")
    target = f"{_FOLDER}/{top.name}" if top.is_file() else _FOLDER
    return shown, ["--mount", f"type=bind,source={top},target={target},readonly"]


def _say(text: str) -> int:
    print(f"runner: {text}", file=sys.stderr)  # noqa: T201
    return _USAGE
