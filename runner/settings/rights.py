"""What tools may do beyond their own folder: the network, programs, variables, what is lent to them.

Given for all tools, or for one tool instead. What a value means is checked here, once; the kernel enforces
it (`sandbox.network.egress`, `sandbox.layers.landlock`).

Source: architecture, decisions "Network", "Environment" and "Programs"; `docs/isolation.md`.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from runner.errors import UsageError
from runner.settings.values import OPEN_TO_TOOLS, Names, split_at_commas
from runner.system.private_files import open_file
from runner.system.worker_environment import framework_environment
from sandbox.network.destinations import Destinations
from sandbox.network.egress import RESOLVER_OPTIONS
from sandbox.policy import Policy

__all__ = [
    "Lent",
    "Network",
    "Paths",
    "Programs",
    "Rights",
    "Variables",
    "interpreters_of",
    "program_files",
    "spell_out",
    "with_rights",
]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# With a dot, a colon or both, or the one name that every machine has.
_HOSTS = re.compile(r"(?:localhost|[^\s/=,@]*[.:][^\s=,@]*)(?:,[^\s=,@]+)*")
_OURS = "RUNNER_"
_SCRIPT_HEAD_BYTES = 256
_MOST_INTERPRETERS = 4
_ENV = "env"
# Git refuses a repository that belongs to another user id than its own, which a lent one may. What such a
# repository could make it run is confined like all else.
_GIT = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}


def _destinations(texts: tuple[str, ...]) -> tuple[str, ...]:
    Destinations.parse(texts)
    return texts


def _variables(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name of a variable; give names alone, the values are those of this process"
            )
        if name.startswith(_OURS):
            raise ValueError(f"{name} is a setting of the runner and perhaps a key; tools never see these")
    return names


def _programs(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if "\0" in name or ("/" in name and not name.startswith("/")):
            raise ValueError(f"{name!r} is no program; give a name such as git, or a whole path")
    return names


def _absolute(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    if any(path.name == "*" for path in paths):
        raise ValueError("'*' does not stand for all folders; name each folder or file")
    try:
        # Not normalised: behind a link, `..` leads elsewhere than its text says.
        return tuple(dict.fromkeys(path.expanduser().absolute() for path in paths))
    except RuntimeError as error:
        raise ValueError("there is no such home folder; write the whole path") from error


Network = Annotated[Names, AfterValidator(_destinations)]
Variables = Annotated[Names, AfterValidator(_variables)]
Programs = Annotated[Names, AfterValidator(_programs)]
Paths = Annotated[
    tuple[Path, ...], NoDecode, BeforeValidator(split_at_commas), AfterValidator(_absolute), OPEN_TO_TOOLS
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """What was found out of all that is lent, when the runner started.

    Attributes:
        names: What of it was called otherwise than where it lies.
        owner: User and group id that every process must have to use it; None where those of users will do.
        umask: What new files leave out of their mode, where something is lent to write.
    """

    names: tuple[Path, ...] = ()
    owner: tuple[int, int] | None = None
    umask: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What tools may do beyond their own folder.

    Attributes:
        network: Destinations that may be reached.
        variables: Variables of this process that they may see.
        may_run: Whether they may run other programs at all.
        programs: The only ones they may run; empty: any that they may read.
        read: What is lent to them to read.
        write: What is lent to them to read and write.
        sockets: Whether they may have UNIX sockets in their home, among their own processes.
        lent: What was found out of all that is lent, to them or to others.
    """

    network: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    may_run: bool = True
    programs: tuple[str, ...] = ()
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    sockets: bool = False
    lent: Lent = Lent()


def with_rights(policy: Policy, rights: Rights, variables: Mapping[str, str]) -> Policy:
    """Return a policy that gives these rights as well.

    Args:
        policy: Without network and variables.
        rights: What is given.
        variables: The variables of this process. Programs are looked for in their `PATH`: the one of the
            policy may be that of an `mcp.json`, and would choose what `allow_run` names.

    Raises:
        UsageError: A program that is named is not there.
    """
    seen = {name: variables[name] for name in rights.variables if name in variables}
    options = RESOLVER_OPTIONS if rights.network else {}
    git = _GIT if rights.read or rights.write else {}
    owner, umask = rights.lent.owner, rights.lent.umask
    return replace(
        policy,
        net=rights.network,
        # Of the other tiers only `guard` gets here, where nothing has to be allowed.
        sockets=rights.sockets and policy.namespaces,
        programs=rights.may_run,
        run=program_files(rights.programs, path=framework_environment(variables, ())["PATH"]),
        lent_read=rights.read,
        lent_write=rights.write,
        names=(*policy.names, *(rights.lent.names if rights.read or rights.write else ())),
        gid=owner[1] if owner is not None and owner[0] else None,
        umask=policy.umask if umask is None else umask,
        environment={**git, **seen, **policy.environment, **options},
    )


def spell_out(arguments: Sequence[str]) -> list[str]:
    """Return command line arguments with `--allow-net` and its value as one word, `--allow-net=*` for none.

    Its value is optional. So the next word is taken for it only where that can be nothing else: a host with a
    dot or a port, and neither a file nor the only word that could name one.
    """
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    found: list[str] = []
    words = iter(enumerate(arguments))
    for at, argument in words:
        if at >= end or argument != "--allow-net":
            found.append(argument)
            continue
        following = arguments[at + 1] if at + 1 < end else ""
        others = [word for word in arguments[1:] if not word.startswith("-")]
        if _names_hosts(following) and len(others) > 1:
            found.append(f"--allow-net={following}")
            next(words)
        else:
            found.append("--allow-net=*")
    return found


def _names_hosts(word: str) -> bool:
    """Say whether a word can only be meant as hosts."""
    if not _HOSTS.fullmatch(word) or word.endswith(".py") or ".py:" in word or os.path.exists(word):
        return False
    try:
        Destinations.parse(word.split(","))
    except ValueError:
        return False
    return True


def program_files(names: Sequence[str], *, path: str) -> tuple[Path, ...]:
    """Return the files that must be executable for these programs to run: they, and who interprets them.

    Args:
        names: Names or whole paths of programs.
        path: Where programs are looked for, as `PATH` says it.

    Raises:
        UsageError: There is no such program.
    """
    files: dict[Path, None] = {}
    for name in names:
        found = shutil.which(name, path=path)
        if found is None:
            raise UsageError(
                f"allow_run: there is no program {name} in {path}; check the name, or install it"
            )
        files |= dict.fromkeys(_with_interpreters(Path(found), path))
    return tuple(files)


def _with_interpreters(program: Path, path: str) -> list[Path]:
    files: list[Path] = []
    waiting = [program]
    while waiting and len(files) <= 2 * _MOST_INTERPRETERS:
        file = Path(os.path.realpath(waiting.pop()))
        if file not in files:
            files.append(file)
            waiting += [Path(found) for found in interpreters_of(file, path)]
    return files


def interpreters_of(file: Path, path: str) -> list[str]:
    """Return the programs that the kernel, or `env`, starts in the place of a file.

    Args:
        file: The file.
        path: Where `env` looks for programs, as `PATH` says it.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        with open(open_file(file), "rb") as opened:
            head = opened.read(_SCRIPT_HEAD_BYTES)
            if head.startswith(b"\x7fELF"):
                loader = _loader(head, opened.read(8192))
                return [loader] if loader else []
    except OSError as error:
        raise UsageError(f"allow_run: {file} cannot be read: {error.strerror}") from error
    if not head.startswith(b"#!"):
        # What has no first line is given to the shell by those who start it.
        return ["/bin/sh"]
    words = head[2:].partition(b"\n")[0].decode(errors="replace").split()
    if not words:
        return []
    named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    behind_env = shutil.which(named[0], path=path) if Path(words[0]).name == _ENV and named else None
    return [words[0], *([behind_env] if behind_env else [])]


def _loader(head: bytes, rest: bytes) -> str | None:
    """Return the loader that an ELF file names, which stands near its beginning."""
    found = re.search(
        rb"/[\x21-\x7e]*/ld[-.][\x21-\x7e]*\.so[\x21-\x7e]*|/[\x21-\x7e]*/ld\.so[\x21-\x7e]*", head + rest
    )
    return found[0].decode() if found else None
