"""Errors for unexpected exceptions of our own code: an id for the client, the cause for the log.

Such an exception is a fault of ours. Its text may contain paths, arguments or secrets, and does not help the
caller; so it goes to the log, with its traceback and an id that the caller gets.

Source: the table of error codes in `docs/cli.md`.
"""

import logging
import os

from runner.contract.error_messages import internal_error
from runner.errors import CallError
from runner.system.logging_setup import CallScope

__all__ = ["unexpected"]

log = logging.getLogger(__name__)


def unexpected(error: Exception, *, call: str | None = None) -> CallError:
    """Log an unexpected exception; return the error that callers get instead.

    Args:
        error: The exception.
        call: The id of the call; by default a new one.
    """
    number = call or os.urandom(6).hex()
    with CallScope(number):
        log.error("request failed internally", exc_info=error)
    return internal_error(number)
