"""A compose file with a service for each user.

It is YAML, written as JSON, so that no text can escape from its string. Its services are confined like the
one in `deploy/compose.yaml`.

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
        UsageError: A tool file is directly in `/`, which cannot be mounted in a container.
    """
    document = {
        "services": {one.unit: _service(one) for one in servers},
        "volumes": {f"{one.unit}-homes": {} for one in servers},
    }
    # `$` would begin a variable. JSON writes a character above U+FFFF as a surrogate pair, which YAML does
    # not decode.
    text = json.dumps(document, indent=2, ensure_ascii=False).replace("$", "$$")
    return re.sub(r"[^\n -~]", lambda found: f"\\U{ord(found[0]):08x}", text) + "\n"


def _service(server: UserServer) -> dict[str, Any]:
    values = server.options
    folders = sorted({path if path.is_dir() else path.parent for path in server.files})
    if Path("/") in folders:
        raise UsageError(
            f"{server.user!r} has a file in /, and its folder is mounted; move it into another folder"
        )
    memory, variables = f"{values.memory_mb or 4096}m", values.environment_file
    # Loopback of this machine, for an authenticating proxy in front.
    address = {"host_ip": values.environment.get("RUNNER_HOST", "127.0.0.1"), "published": str(server.port)}
    homes = {"type": "volume", "source": f"{server.unit}-homes", "target": "/tmp"}  # noqa: S108 - of the container
    paths = [{"source": str(folder), "target": str(folder)} for folder in folders]
    service = {
        "image": f"toolcell:{version('toolcell')}",
        "entrypoint": ["/usr/bin/tini", "--", "runner"],
        "command": server.arguments("--host", "0.0.0.0", "--port", str(_PORT)),  # noqa: S104
        "environment": {name: text for name, text in values.environment.items() if name != "RUNNER_HOST"},
        "env_file": variables and [{"path": variables, "format": "raw"}],
        "ports": [{**address, "target": _PORT}],
        "volumes": [homes, *({"type": "bind", **path, "read_only": True} for path in paths)],
        "user": "10001:10001",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": values.processes or 2048,
        "cpus": values.cpus,
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
    return {key: value for key, value in service.items() if value is not None}
