"""Packages that commands behind the proxy fetch and run, as `npx` and `uvx` do: folder and registries.

Each server of each user has a folder of its own, kept between starts, in which files may be written and
executed. The whole entry of a server identifies it: another command never finds its packages.

Source: `docs/proxy.md`, "Fetched servers"; npm-config(7); uv, "Environment variables".
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from runner.errors import UsageError
from runner.proxy.targets import Target
from runner.settings.execution import ExecutionSettings
from runner.settings.lendable import of_the_system
from runner.system.state_files import make_folder
from sandbox.network.destinations import ANYWHERE

__all__ = [
    "REGISTRIES",
    "authority_variables",
    "check_fetching",
    "fetches",
    "package_folder",
    "package_variables",
]

REGISTRIES = f"{ANYWHERE}:443"
"""Destination that `--allow-fetch` opens: registries are public, and have many mirrors."""

# Programs that fetch what they run, with the subcommands that do; none: the program alone does.
_FETCHERS: Mapping[str, tuple[str, ...]] = {
    "npx": (),
    "bunx": (),
    "pnpx": (),
    "uvx": (),
    "npm": ("exec", "x"),
    "pnpm": ("dlx",),
    "yarn": ("dlx",),
    "bun": ("x",),
    "uv": ("run", "tool"),
    "pipx": ("run",),
}
# Names of files with certificates of authorities, which a network with its own ones needs.
_AUTHORITIES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "CURL_CA_BUNDLE",
)


def fetches(target: Target, settings: ExecutionSettings) -> bool:
    """Return whether a command may fetch packages: any with `--allow-fetch`, a known one with a network."""
    return settings.allow_fetch or (bool(settings.rights().network) and _fetcher(target) is not None)


def check_fetching(target: Target, settings: ExecutionSettings) -> None:
    """Check that a command which has to fetch what it runs may do so.

    Raises:
        UsageError: It may not; the message names the option.
    """
    fetcher = _fetcher(target)
    if settings.allow_fetch and settings.rights().programs:
        raise UsageError("allow_run names the only programs, and allow_fetch runs others; give one of them")
    if fetcher is not None and not fetches(target, settings):
        raise UsageError(
            f"{target.name}: `{fetcher}` fetches the server from a package registry when it starts, and a "
            "confined server has no network. Start with --allow-fetch, or install the server before and name "
            "its program instead"
        )


def package_folder(target: Target, settings: ExecutionSettings, segment: str, uid: int | None) -> Path:
    """Return the folder of one server's packages, which is made where it is missing.

    Args:
        target: The server.
        settings: The effective settings.
        segment: The folder name of its user.
        uid: User and group id that it runs as; None for this process's own.

    Raises:
        OSError: It cannot be made.
    """
    source = "" if target.source is None else str(target.source)
    identity = json.dumps([source, target.name, str(target.folder), target.command])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    # Files of another user id could be neither read nor replaced.
    owner = os.geteuid() if uid is None else uid
    names = (segment, f"{target.name}-{digest}-{owner}")
    make_folder(settings.packages_path, *names)
    folder = settings.packages_path.joinpath(*names)
    if uid is not None:
        os.chown(folder, uid, uid, follow_symlinks=False)
    return folder


def package_variables(folder: Path) -> dict[str, str]:
    """Return the variables with which package managers keep all they fetch in a folder."""
    return {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "npm_config_cache": str(folder / "npm"),
        # Its notice would be the last words of a server that cannot start.
        "npm_config_update_notifier": "false",
        "BUN_INSTALL": str(folder / "bun"),
        "BUN_TMPDIR": str(folder / "bun" / "tmp"),
        "PIPX_HOME": str(folder / "pipx"),
        "UV_TOOL_DIR": str(folder / "tools"),
        "UV_PYTHON_INSTALL_DIR": str(folder / "python"),
        "UV_PROJECT_ENVIRONMENT": str(folder / "environment"),
        # No server writes bytecode, so all modules would be compiled at each start.
        "UV_COMPILE_BYTECODE": "1",
    }


def authority_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those variables that name certificates of authorities which belong to the system."""
    return {name: variables[name] for name in _AUTHORITIES if of_the_system(Path(variables.get(name) or "."))}


def _fetcher(target: Target) -> str | None:
    """Return the words by which a command fetches what it runs; None for any other command."""
    program = Path(target.command[0]).name
    subcommands = _FETCHERS.get(program)
    if subcommands is None:
        return None
    after_option = False
    for word in target.command[1:] if subcommands else ():
        if word in subcommands:
            return f"{program} {word}"
        is_option = word.startswith("-")
        # A word after an option may be its value: `uv --directory FOLDER run server`.
        if not is_option and not after_option:
            return None
        after_option = is_option
    return None if subcommands else program
