"""Decision, by name alone, on paths that may be lent to tools, and the option that lends one.

Source: `docs/isolation.md`.
"""

import os.path
import re
from pathlib import Path

from sandbox.readable import is_hidden_name

__all__ = ["KEYS", "OUR_VARIABLES", "VARIABLE", "flag_for", "never_lent", "of_the_system", "shared", "within"]

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The name of an environment variable."""
OUR_VARIABLES = "RUNNER_"
"""Prefix of variables that are never lent: settings of the runner, and perhaps keys."""

# Folders without user files.
_NEVER = ("/proc", "/sys", "/dev", "/run", "/var/run")
_EXCEPT = "/run/media"
# Folders that contain files of several people, so are not lent as a whole.
_SHARED = ("/", "/home", "/root", "/tmp", "/var", "/var/tmp", "/mnt", "/media")  # noqa: S108
KEYS = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials", ".pypirc", ".npmrc",
    ".config/gcloud", ".config/gh", ".local/share/keyrings", ".mozilla",
)  # fmt: skip
"""Keys and credentials, relative to a person's home folder."""

# The runner's default state folders.
_STATE = (".local/state/toolcell", "var/lib/toolcell")
# Parts of a path directly below the root.
_TOP = 2
_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")


def flag_for(path: str, wants: str, *, homes: Path) -> str | None:
    """Return the option that would lend the folder of a path, or the path itself; None if neither may be.

    The path itself is named if its folder cannot be lent, or is as wide as `/srv`.

    Args:
        path: The path, as a tool named it.
        wants: `read` or `write`; empty if unknown.
        homes: The folder of homes, which are never lent.
    """
    if not path.startswith("/") or "\0" in path:
        return None
    named = Path("/", os.path.normpath(path).lstrip("/"))
    is_wide = shared(named.parent) or len(named.parent.parts) <= _TOP
    # The folder of a key or a `.env` is not lent as a whole.
    lent = named if is_wide or is_hidden_name(named.name) else named.parent
    # Readable system files need no option.
    if (
        never_lent(lent)
        or shared(lent)
        or len(lent.parts) <= _TOP
        or of_the_system(lent)
        or within(lent, homes)
        or _is_private(lent)
    ):
        return None
    if wants == "read":
        return f"--allow-read={lent}"
    return f"--allow-write={lent}" if wants else f"--allow-read={lent} or --allow-write={lent}"


def _is_private(path: Path) -> bool:
    """Return whether a path holds keys or the runner's own state, which are never lent."""
    return any(f"/{private}/" in f"{path}/" for private in (*KEYS, *_STATE))


def never_lent(path: Path) -> bool:
    """Return whether a path contains processes, devices or sockets of the machine."""
    return any(within(path, top) for top in _NEVER) and (not within(path, _EXCEPT) or str(path) == _EXCEPT)


def shared(path: Path) -> bool:
    """Return whether a folder has files of several people, or is a person's whole home folder."""
    return str(path) in _SHARED or path.parent == Path("/home")


def of_the_system(path: Path) -> bool:
    """Return whether a path belongs to the operating system's packages."""
    return any(within(path, top) for top in _SYSTEM)


def within(path: Path, top: Path | str) -> bool:
    """Return whether a path is another or lies beneath it."""
    # As text: the parents of a path with thousands of components have millions of characters.
    return f"{path}/".startswith(f"{str(top).rstrip('/')}/")
