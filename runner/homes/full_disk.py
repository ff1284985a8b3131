"""A disk without room for what the runner itself writes for a user: told in one way, wherever it shows.

Source: open(2), write(2): ENOSPC, EDQUOT.
"""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from runner.errors import CallError, Code

__all__ = ["told_of_no_room"]

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})

_log = logging.getLogger(__name__)


@contextmanager
def told_of_no_room(user: str) -> Iterator[None]:
    """Turn a failure on a full disk into an error that says so, and log it for the operator.

    Args:
        user: For whom something was to be written.

    Raises:
        CallError: `E_STORE` where there was no room; whatever else was raised, as it was.
    """
    try:
        yield
    except (CallError, OSError) as error:
        cause = error.__cause__ if isinstance(error, CallError) else error
        if not isinstance(cause, OSError) or cause.errno not in _NO_ROOM:
            raise
        _log.error("home not made: disk full", extra={"user": user, "reason": str(error)})
        message = (
            "the server's disk is full: there is no room for the home and the records of this user; "
            "ask its operator to make room below the folders of the settings state_dir and homes"
        )
        raise CallError(Code.E_STORE, message) from error
