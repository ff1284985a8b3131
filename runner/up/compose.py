"""A compose file with a service for each user.

It is JSON, which is YAML too: no text gets out of its string. Its services are confined as the one in
`deploy/compose.yaml`.

Source: the Compose specification, services and interpolation.
"""

import json
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.up.users_file import UserServer

__all__ = ["compose_text"]

_HEALTH = "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"
_PORT = 8000


def compose_text(servers: Sequence[UserServer]) -> str:
    """Return the compose file of some servers.

    Raises:
        UsageError: A tool file lies directly in `/`, which no container can be given.
    """
    document = {
        "services": {one.unit: _service(one) for one in servers},
        "volumes": {f"{one.unit}-homes": {} for one in servers},
    }
    ascii_text = json.dumps(_literal(document), indent=2)
    # JSON writes a character beyond the first plane as two halves, which YAML does not join.
    return re.sub(r"(?<!\\)((?:\\\\)*)\\u(d[89ab]..)\\u(d[c-f]..)", _joined, ascii_text) + "\n"


def _joined(found: "re.Match[str]") -> str:
    whole = 0x10000 + (int(found[2], 16) - 0xD800) * 0x400 + int(found[3], 16) - 0xDC00
    return f"{found[1]}\\U{whole:08x}"


def _literal(value: Any) -> Any:
    """Return a value with `$` doubled in each text, so that Compose puts no variable in its place."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {name: _literal(inner) for name, inner in value.items()}
    return [_literal(inner) for inner in value] if isinstance(value, list) else value


def _service(server: UserServer) -> dict[str, Any]:
    values = server.options
    options = ["--transport", "http", "--host", "0.0.0.0", "--port", str(_PORT), "--user", server.user]  # noqa: S104
    options += ["--config", str(server.config)] if server.config else []
    folders = sorted({path if path.is_dir() else path.parent for path in server.files})
    if Path("/") in folders:
        raise UsageError(
            f"{server.user!r} has a file in /, and its folder is mounted; move it into another folder"
        )
    memory = f"{values.memory_mb or 4096}m"
    bounds = {} if values.cpus is None else {"cpus": values.cpus}
    secrets = {}
    if server.environment_file is not None:
        secrets = {"env_file": [{"path": str(server.environment_file), "format": "raw"}]}
    return {
        "image": f"toolcell:{version('toolcell')}",
        "entrypoint": ["/usr/bin/tini", "--", "runner"],
        "command": [server.command, *options, *server.words],
        "environment": {name: text for name, text in values.environment.items() if name != "RUNNER_HOST"},
        **secrets,
        # Loopback of this machine: a proxy that authenticates goes in front.
        "ports": [
            {
                "host_ip": values.environment.get("RUNNER_HOST", "127.0.0.1"),
                "published": str(server.port),
                "target": _PORT,
            }
        ],
        "volumes": [
            {"type": "volume", "source": f"{server.unit}-homes", "target": "/tmp"},  # noqa: S108 - the homes
            *(
                {"type": "bind", "source": str(folder), "target": str(folder), "read_only": True}
                for folder in folders
            ),
        ],
        "user": "10001:10001",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": values.processes or 2048,
        **bounds,
        "healthcheck": {
            "test": ["CMD", "python", "-I", "-c", _HEALTH],
            "interval": "10s",
            "timeout": "5s",
            "start_period": "60s",
            "retries": 3,
        },
        "stop_grace_period": f"{server.stop_s:g}s",
        "restart": "unless-stopped",
    }
