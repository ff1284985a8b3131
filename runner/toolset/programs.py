"""Rights in a policy, and the files that must be executable for the programs that it allows.

Source: architecture, decisions "Network", "Environment" and "Programs"; `docs/isolation.md`.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runner.errors import UsageError
from runner.settings.rights import Rights
from runner.system.private_files import open_file
from runner.system.worker_environment import framework_environment
from sandbox.network.egress import RESOLVER_OPTIONS
from sandbox.policy import Policy

__all__ = ["interpreters_of", "program_files", "with_rights"]

_SCRIPT_HEAD_BYTES = 256
_MOST_INTERPRETERS = 4
_ENV = "env"
# Git refuses a repository of another user id, which a granted one may have. Programs that such a repository
# starts through Git are confined as well.
_GIT = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}


def with_rights(policy: Policy, rights: Rights, variables: Mapping[str, str]) -> Policy:
    """Return a policy extended by rights.

    Args:
        policy: A policy without network and variables.
        rights: The rights to add.
        variables: The environment of this process. Its `PATH` is searched for programs: that of the policy
            may come from an `mcp.json`, which could then choose the programs of `allow_run`.

    Raises:
        UsageError: A named program does not exist.
    """
    seen = {name: variables[name] for name in rights.variables if name in variables}
    options = RESOLVER_OPTIONS if rights.network else {}
    git = _GIT if rights.read or rights.write else {}
    owner, umask = rights.lent.owner, rights.lent.umask
    return replace(
        policy,
        net=rights.network,
        # The only other tier here is `guard`, which needs no permission for sockets.
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


def program_files(names: Sequence[str], *, path: str) -> tuple[Path, ...]:
    """Return the files that must be executable for programs to run: they and their interpreters.

    Args:
        names: Names or absolute paths of programs.
        path: Search path, in the form of `PATH`.

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
    """Return the interpreters that the kernel, or `env`, starts for a script.

    Args:
        file: The file.
        path: Search path of `env`, in the form of `PATH`.

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
        # Shells run a file without an interpreter line themselves.
        return ["/bin/sh"]
    words = head[2:].partition(b"\n")[0].decode(errors="replace").split()
    if not words:
        return []
    named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    behind_env = shutil.which(named[0], path=path) if Path(words[0]).name == _ENV and named else None
    return [words[0], *([behind_env] if behind_env else [])]


def _loader(head: bytes, rest: bytes) -> str | None:
    """Return the loader that an ELF file names near its beginning."""
    found = re.search(
        rb"/[\x21-\x7e]*/ld[-.][\x21-\x7e]*\.so[\x21-\x7e]*|/[\x21-\x7e]*/ld\.so[\x21-\x7e]*", head + rest
    )
    return found[0].decode() if found else None
