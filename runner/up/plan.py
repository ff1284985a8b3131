"""What each server is to be: its command, its variables, its port, its user id, its bounds.

Decided before anything is started. Ports that users had stay theirs, so that addresses last.
"""

import contextlib
import hashlib
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.errors import UsageError
from runner.system.private_files import read_file
from runner.up.users_file import Given, UsersFile, environment_of
from runner.users.usernames import home_segment

__all__ = ["Server", "ServerLimits", "planned"]

_INHERITED = ("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The most that a server and all its calls may have in sum; None: as much as there is."""

    memory_mb: int | None
    processes: int | None
    cpus: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One user's server, as it is to be.

    Attributes:
        name: The user.
        segment: The user's path segment: the name of the folder, of the log, of the control group.
        port: Where it listens.
        host: On which address.
        uid: The user id that it runs as; None: ours.
        command: Its command line; no secret is in it.
        environment: Its variables, which may be secrets.
        reads: Files that it must be able to read.
        bounds: What it may have.
        stop_s: How long it may take to end, in seconds.
    """

    name: str
    segment: str
    port: int
    host: str
    uid: int | None
    command: tuple[str, ...]
    environment: Mapping[str, str]
    reads: tuple[Path, ...]
    bounds: ServerLimits
    stop_s: float

    @property
    def address(self) -> tuple[str, int]:
        """Its host and its port."""
        return (self.host, self.port)

    @property
    def digest(self) -> str:
        """Return what changes when the server has to be started anew, its configuration file included."""
        said = {**asdict(self), "reads": [_content(path) for path in self.reads if path.suffix == ".toml"]}
        said.pop("stop_s")
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def planned(
    file: UsersFile,
    path: Path,
    folder: Path,
    *,
    ports: Mapping[str, int],
    uid_of: Callable[[str], int | None],
) -> dict[str, Server]:
    """Return the server of each user, by name.

    Args:
        file: What the file of users says.
        path: Where it is; relative names start there.
        folder: The folder in which each user has a folder.
        ports: Ports that users without one of their own had before.
        uid_of: Returns the user id for the segment of a user.

    Raises:
        UsageError: Somebody has no tools, there are too few ports, or an environment file cannot be used.
    """
    own = {name: given.port for name, given in file.users.items() if given.port is not None}
    given_out = _ports(file, own, ports)
    return {
        name: _server(name, file, path.absolute().parent, folder, given_out[name], uid_of(home_segment(name)))
        for name in file.users
    }


def _ports(file: UsersFile, own: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return everybody's port: the own one, the one from before, or the first that is nobody's."""
    found = dict(own)
    asking = [name for name in file.users if name not in own]
    for name in asking:
        if before.get(name) in file.port_range and before[name] not in found.values():
            found[name] = before[name]
    free = iter([port for port in file.port_range if port not in found.values()])
    for name in asking:
        if name in found:
            continue
        port = next(free, None)
        if port is None:
            raise UsageError(f"ports = {file.ports!r} has no port left for {name!r}; widen it")
        found[name] = port
    return found


def _server(name: str, file: UsersFile, beside: Path, folder: Path, port: int, uid: int | None) -> Server:
    given, segment = file.given(name), home_segment(name)
    told = environment_of(given, beside)
    home = folder / segment
    config = None if given.config is None else beside / given.config
    _refuse_tls(name, told, config)
    words, files = _served(name, given, beside)
    kind = "proxy" if given.proxy is not None else "serve"
    options = ["--transport", "http", "--port", str(port), "--user", name]
    if config is not None:
        options += ["--config", str(config)]
    command = (sys.executable, "-P", "-m", "runner", kind, *options, *words)
    inherited = {variable: os.environ[variable] for variable in _INHERITED if variable in os.environ}
    usual = {"RUNNER_HOST": "127.0.0.1", "RUNNER_STORE": (home / "store").as_uri()}
    return Server(
        name=name,
        segment=segment,
        port=port,
        host=told.get("RUNNER_HOST", usual["RUNNER_HOST"]),
        uid=uid,
        command=command,
        environment={**inherited, **usual, **told, "RUNNER_STATE_DIR": str(home / "state")},
        reads=(*files, *([config] if config else [])),
        bounds=ServerLimits(memory_mb=given.memory_mb, processes=given.processes, cpus=given.cpus),
        stop_s=file.stop_s,
    )


def _refuse_tls(name: str, told: Mapping[str, str], config: Path | None) -> None:
    """Refuse a server with TLS: whether it is ready is asked in plain HTTP, and it would never seem to be."""
    found: object = None
    if config is not None:
        # What is wrong with the file, the server says in its own words.
        with contextlib.suppress(OSError, ValueError):
            found = tomllib.loads(read_file(config).decode()).get("auth")
    in_file = isinstance(found, Mapping) and found.get("gateway_certificate")
    if in_file or told.get("RUNNER_AUTH__GATEWAY_CERTIFICATE"):
        raise UsageError(
            f"users.{name} has auth.gateway_certificate, and `runner up` asks its servers in plain HTTP "
            "whether they are ready; take it out, or run that server with `runner serve`"
        )


def _served(name: str, given: Given, beside: Path) -> tuple[list[str], list[Path]]:
    """Return the words that name what is served, and the files among them."""
    if given.proxy is not None:
        if len(given.proxy) > 1:
            return ["--", *given.proxy], []
        words, files = _placed(given.proxy, beside)
        return words, files
    if given.tools is not None:
        return _placed(given.tools, beside)
    raise UsageError(
        f"users.{name} has neither tools nor proxy; say what it serves, or give it in [defaults]"
    )


def _placed(words: Iterable[str], beside: Path) -> tuple[list[str], list[Path]]:
    """Return words with their files by absolute paths, and those; a module's name or an address stays."""
    placed, files = [], []
    for word in words:
        file, colon, rest = word.partition(":")
        path = beside / file
        if "://" in word or not path.exists():
            if "/" in word and "://" not in word:
                raise UsageError(f"{path} does not exist")
            placed.append(word)
            continue
        placed.append(f"{path}{colon}{rest}")
        files.append(path)
    return placed, files


def _content(path: Path) -> str:
    try:
        return hashlib.sha256(read_file(path)).hexdigest()
    except OSError:
        return ""
