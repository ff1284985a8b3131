"""Error of a full disk, for everything that the runner writes for a user.

Source: open(2), write(2): ENOSPC, EDQUOT.
"""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from runner.errors import CallError, Code

__all__ = ["disk_full_as_call_error"]

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})

_log = logging.getLogger(__name__)


@contextmanager
def disk_full_as_call_error(user: str) -> Iterator[None]:
    """Turn ENOSPC and EDQUOT into a call error, and log it for the operator.

    Args:
        user: The user whose files are written.

    Raises:
        CallError: `E_STORE` on a full disk; other errors pass unchanged.
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
