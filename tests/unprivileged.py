"""Helpers to run the command as ourselves, root or nobody, even if the interpreter's folder is private."""

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

__all__ = ["NOBODY", "run_as_nobody", "run_for_others", "run_here", "run_unprivileged", "run_without"]

NOBODY = 65534


def run_here(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run `python -m runner` with these arguments; return the completed process."""
    command = [sys.executable, "-m", "runner", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def run_unprivileged(arguments: list[str], *, seconds: float) -> "subprocess.CompletedProcess[str]":
    """Run `python -m runner` as nobody, without capabilities, in a minimal environment."""
    return run_as_nobody([sys.executable, "-m", "runner", *arguments], seconds=seconds)


def run_without(capability: str, command: list[str], *, seconds: float) -> "subprocess.CompletedProcess[str]":
    """Run a command as root without one capability, with an interpreter that every user can read."""
    assert os.getuid() == 0, "there is no capability to take away; run these tests as root"
    dropped = f"-{capability}"
    drop = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"]
    return _run_readable([*drop, *command], seconds=seconds)


def run_as_nobody(command: list[str], *, seconds: float) -> "subprocess.CompletedProcess[str]":
    """Run a command as nobody, without capabilities, in a minimal environment."""
    if os.getuid() == 0:
        drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]
        command = [*drop, "--inh-caps=-all", *command]
    return _run_readable(command, seconds=seconds)


def run_for_others(arguments: list[str], *, seconds: float) -> "subprocess.CompletedProcess[str]":
    """Run `python -m runner` as root, with an interpreter that every user can read."""
    assert os.getuid() == 0, "the tier user is for a server that root starts; run these tests as root"
    return _run_readable([sys.executable, "-m", "runner", *arguments], seconds=seconds)


def _run_readable(command: list[str], *, seconds: float) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/nonexistent"}
    private = private_folder(Path(sys.base_prefix)) if os.getuid() == 0 else None
    if private is not None:
        command = ["unshare", "--mount", "sh", "-ec", opened(private, Path(sys.base_prefix), command)]
    return subprocess.run(
        command,
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def private_folder(path: Path) -> Path | None:
    """Return the topmost folder of `path` that other users cannot traverse, if there is one."""
    tops = [*reversed(path.parents), path]
    return next((top for top in tops if not top.stat().st_mode & stat.S_IXOTH), None)


def opened(private: Path, wanted: Path, command: list[str]) -> str:
    """Return a script that runs `command` where `private` contains only `wanted`, accessible to all users."""
    aside = Path("/mnt")
    steps = [
        ["mount", "--make-rprivate", "/"],
        ["mount", "--bind", str(wanted), str(aside)],
        ["mount", "-t", "tmpfs", "-o", "mode=755", "none", str(private)],
        ["mkdir", "-p", str(wanted)],
        ["mount", "--bind", str(aside), str(wanted)],
        ["exec", *command],
    ]
    return "\n".join(shlex.join(step) for step in steps)
