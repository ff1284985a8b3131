"""The resource limits of a call: the setting for each, and the error of a call that exceeds it.

`runner.contract.limit_errors` has the message of each; a new limit needs a mark in `runner.settings.parts`
and a message there.

Source: docs/isolation.md, which has a row for each limit; the table of error codes in `docs/cli.md`.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from runner.settings.parts import CallSettings, StoreSettings
from runner.settings.values import PER_TOOL, LimitFacts
from sandbox.host.server_memory import ServerMemory
from sandbox.policy import MIB

__all__ = ["DISK_FULL", "LIMITS", "warn_of_memory"]

log = logging.getLogger(__name__)

DISK_FULL = "disk"
"""Limit reached when the disk of the homes, or a file system quota, is full; not a setting of ours."""

LIMITS: Mapping[str, LimitFacts] = {
    facts.limit: replace(facts, setting=name, own=PER_TOOL in field.metadata)
    for part in (CallSettings, StoreSettings)
    for name, field in part.model_fields.items()
    for facts in field.metadata
    if isinstance(facts, LimitFacts)
}
"""Limits by name in `sandbox.policy.Limits`, except the one on output, which is fixed and ends no call."""


def warn_of_memory(settings: CallSettings, memory: ServerMemory) -> None:
    """Log a warning if the settings allow calls more memory than the server has."""
    promised = settings.max_calls * settings.call_memory_mb * MIB
    room = memory.limit_bytes - memory.reserve_bytes
    if promised <= room:
        return
    fits = max(1, room // settings.max_calls // MIB)
    log.log(
        # Most machines have less than the sum of the defaults; an operator who sets a limit must see it.
        logging.INFO if memory.group is None else logging.WARNING,
        "call limits exceed server memory",
        extra={
            "effect": "the largest call is ended when memory is used up",
            "promised": f"max_calls ({settings.max_calls}) x call_memory_mb ({settings.call_memory_mb}) "
            f"= {_mib(promised)}",
            "limit": f"{_mib(memory.limit_bytes)} of {memory.whose}",
            "cure": f"the setting max_calls = {max(1, room // settings.call_memory_mb // MIB)}, "
            f"or call_memory_mb = {fits}, or more memory",
        },
    )


def _mib(number: int) -> str:
    return f"{number // MIB} MiB"
