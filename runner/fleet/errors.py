"""Errors of calls that a fleet could not, or not wholly, execute."""

from runner.contract.error_messages import crashed
from runner.errors import CallError, Code

__all__ = ["may_have_run", "no_node", "not_sent"]

RETRY_AFTER_S = 5


def no_node(release: str) -> CallError:
    """Return the error of a call for which there is no worker node that serves the same."""
    return _busy(
        f"No worker node serves this version ({release}) now",
        "For the operator: start `runner worker` with the same tool files and version",
    )


def not_sent(problem: str) -> CallError:
    """Return the error of a call that could not be handed to a worker node."""
    return _busy(
        f"The call could not be handed to a worker node: {problem}",
        "Call again; nothing of it has been done. For the operator: see that Redis answers and has memory",
    )


def may_have_run(cause: str) -> CallError:
    """Return the error of a call that had started on a node that is gone.

    Args:
        cause: What became of the node, as a clause.
    """
    error = crashed(None, cause=cause)
    error.details["begun"] = True
    return error


def _busy(message: str, suggestion: str) -> CallError:
    return CallError(
        Code.E_BUSY,
        f"{message}; try again in {RETRY_AFTER_S} seconds",
        details={"retry_after_seconds": RETRY_AFTER_S, "suggestion": suggestion},
    )
