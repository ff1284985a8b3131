"""Removals on the log: nothing that a store lets go by itself goes silently."""

import logging
from collections.abc import Iterable

from runner.store.protocol import Removal

__all__ = ["log_removals"]

_log = logging.getLogger(__name__)


def log_removals(removals: Iterable[Removal]) -> None:
    """Log what a store removed by itself, each with its reason."""
    for removal in removals:
        # Its name is the user's own business, as its content is.
        facts = {"artifact": removal.what, "size": removal.size, "reason": removal.reason.value}
        _log.info("artifact removed", extra=facts)
