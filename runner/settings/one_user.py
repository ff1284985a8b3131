"""Defaults of a server that is bound to one user: its calls share a process, and none is refused a place.

Such a server replaces one that runs all calls in its own process, and there is nobody else to protect.
"""

from typing import Any, Literal

from runner.settings.settings import Settings
from runner.settings.sources import origins

__all__ = ["for_one_user"]


def for_one_user(settings: Settings, transport: Literal["stdio", "http"]) -> Settings:
    """Return settings with the defaults of a server that is bound to one user, if it is.

    Args:
        settings: The settings.
        transport: Over which transport they are served.
    """
    has_auth = settings.auth.kind != "none"
    if settings.is_fleet or (transport == "http" and settings.user is None and has_auth):
        return settings
    origin = origins(settings)
    values: dict[str, Any] = {}
    if origin["worker_reuse"] == "default" or settings.worker_reuse == "shared":
        values = {"worker_reuse": "shared", "max_calls_per_user": settings.max_calls}
    return settings.model_copy(
        update={name: value for name, value in values.items() if origin[name] == "default"}
    )
