"""The line of the log that each call has."""

import asyncio
import logging
from functools import partial

__all__ = ["log_call"]

log = logging.getLogger(__name__)


def log_call(
    user: str, tool: str, outcome: str, *, elapsed_ms: float, files: int = 0, generated: int = 0
) -> None:
    """Write the line, once the answer is on its way: nobody waits for it.

    Args:
        user: The name of the user who called.
        tool: The name of the tool.
        outcome: The error's code, `error` where the tool said so, or `ok`.
        elapsed_ms: How long the call took, in milliseconds.
        files: How many files it returned.
        generated: How many others were kept that the tool wrote.
    """
    facts = {"user": user, "tool": tool, "elapsed_ms": elapsed_ms, "outcome": outcome, "files": files}
    facts |= {"generated": generated} if generated else {}
    asyncio.get_running_loop().call_soon(partial(log.info, "call ended", extra=facts))
