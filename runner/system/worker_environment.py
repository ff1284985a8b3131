"""The environment of forkserver, zygote and worker: built from known names, never inherited as a whole.

While a tool file is imported, caches and settings of libraries go to the zygote's scratch folder, which is
read-only for its workers. In a call these variables point into the home.
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

_INHERITED = (
    *("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_NUMERIC", "LC_TIME", "TZ", "TERM"),
    # The operator's choices for FastMCP servers; others of its variables hold keys.
    *("FASTMCP_MASK_ERROR_DETAILS", "FASTMCP_STRICT_INPUT_VALIDATION"),
)

_FIXED = {
    # They would only add a line on standard error for each `ctx.info`.
    "FASTMCP_LOG_ENABLED": "false",
    "FASTMCP_CHECK_FOR_UPDATES": "off",
    # FastMCP would read `.env` of the current folder, and this process is not confined yet.
    "FASTMCP_ENV_FILE": os.devnull,
    # FastMCP requires a home on import, even for a user without one. Calls get their own.
    "HOME": "/nonexistent",
    # Threads started by an import would prevent forking; workers may start any number.
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
"""Variables that name a folder, each with its folder below the home."""


def framework_environment(host: Mapping[str, str], allowed: Sequence[str]) -> dict[str, str]:
    """Return the environment of the forkserver: no secrets, unless named in `allowed`."""
    names = (*_INHERITED, *allowed)
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **_FIXED, **{n: host[n] for n in names if n in host}}


def planned_environment(limits: Limits) -> dict[str, str]:
    """Return variables with the available resources, for libraries that would read them from /proc.

    DuckDB reads these Slurm variables before `/proc/self/cgroup`, which a forked process may not read
    without namespaces: DuckDB would abort when it finds the file but cannot read it.
    """
    return {
        "SLURM_CPUS_ON_NODE": str(len(os.sched_getaffinity(0))),
        "SLURM_MEM_PER_NODE": str(limits.memory_bytes // MIB),
    }


def load_environment(framework: Mapping[str, str], *, user: str, scratch: Path) -> dict[str, str]:
    """Return the environment of a tool file's import."""
    return {**framework, **_personal(user, scratch)}


def call_environment(*, user: str, home: Path) -> dict[str, str]:
    """Return the changes at the start of a call: personal folders point into `home`."""
    return _personal(user, home)


def homeless_environment(*, user: str, empty: Path) -> dict[str, str]:
    """Return the changes for a call without a home: personal folders point to one empty folder."""
    return {**_personal(user, empty), **dict.fromkeys(FOLDERS, str(empty))}


def _personal(user: str, home: Path) -> dict[str, str]:
    folders = {name: str(home / folder) for name, folder in FOLDERS.items()}
    # Existing bytecode of installed packages is read. None is written, not even into lent folders.
    return {"HOME": str(home), "USER": user, "LOGNAME": user, "PYTHONDONTWRITEBYTECODE": "1", **folders}
