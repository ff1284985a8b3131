"""The environment of forkserver, zygote and worker: made from names we know, never inherited whole.

While a file is imported, everything that libraries write on the side goes to the zygote's scratch
folder, which its workers see read-only. In a call the same names point into the home.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandbox.policy import MIB, Limits

__all__ = [
    "FOLDERS",
    "call_environment",
    "framework_environment",
    "homeless_environment",
    "load_environment",
    "planned_environment",
]

_INHERITED = ("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_NUMERIC", "LC_TIME", "TZ", "TERM")

_FIXED = {
    # One line on standard error for each `ctx.info` would be all they add.
    "FASTMCP_LOG_ENABLED": "false",
    "FASTMCP_CHECK_FOR_UPDATES": "off",
    # It would read `.env` of the current folder, and this process is not confined yet.
    "FASTMCP_ENV_FILE": os.devnull,
    # FastMCP wants to know a home when it is imported, also from a user who has none. Calls get their own.
    "HOME": "/nonexistent",
    # Threads started by an import would forbid forking; workers may start as many as they like.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MPLBACKEND": "Agg",
}

FOLDERS = {
    "TMPDIR": ".tmp",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
    "XDG_RUNTIME_DIR": ".run",
    "MPLCONFIGDIR": ".config/matplotlib",
    "NUMBA_CACHE_DIR": ".cache/numba",
}
"""Variables that name a folder, and the folder below the home that each one names."""


def framework_environment(host: Mapping[str, str], allowed: Sequence[str]) -> dict[str, str]:
    """Return the environment of the forkserver: no secrets, unless named in `allowed`."""
    names = (*_INHERITED, *allowed)
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **_FIXED, **{n: host[n] for n in names if n in host}}


def planned_environment(limits: Limits) -> dict[str, str]:
    """Return variables with the resources that a library may plan with, where it would read /proc.

    DuckDB asks these names of Slurm's before it reads `/proc/self/cgroup`, which a forked process cannot be
    given outside of namespaces: there it ends the process when it finds the file and may not read it.
    """
    return {
        "SLURM_CPUS_ON_NODE": str(len(os.sched_getaffinity(0))),
        "SLURM_MEM_PER_NODE": str(limits.memory_bytes // MIB),
    }


def load_environment(framework: Mapping[str, str], *, user: str, scratch: Path) -> dict[str, str]:
    """Return the environment of a tool file's import."""
    return {**framework, **_personal(user, scratch)}


def call_environment(*, user: str, home: Path) -> dict[str, str]:
    """Return the changes at the start of a call: everything personal points into `home`."""
    return _personal(user, home)


def homeless_environment(*, user: str, empty: Path) -> dict[str, str]:
    """Return the changes for a call without a home: everything personal names one empty folder."""
    return {**_personal(user, empty), **dict.fromkeys(FOLDERS, str(empty))}


def _personal(user: str, home: Path) -> dict[str, str]:
    folders = {name: str(home / folder) for name, folder in FOLDERS.items()}
    # Bytecode of installed packages is read where it lies. None is written: not into what is lent either.
    return {"HOME": str(home), "USER": user, "LOGNAME": user, "PYTHONDONTWRITEBYTECODE": "1", **folders}
