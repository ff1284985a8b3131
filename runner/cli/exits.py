"""Exit statuses of commands, and the one sentence printed for an error.

Source: `docs/cli.md`, exit codes.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Never

import typer

from runner.errors import RunnerError, StartError, UsageError
from sandbox.errors import ConfinementError, IsolationUnavailable, LoadError, SandboxError

__all__ = [
    "EXIT_FAULT",
    "EXIT_INTERRUPTED",
    "EXIT_ISOLATION",
    "EXIT_USAGE",
    "end_at_once",
    "end_with",
    "print_error",
]

log = logging.getLogger(__name__)

EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_ISOLATION = 5
EXIT_INTERRUPTED = 130


def end_with(
    command: Callable[[], int],
    *,
    interrupted: Callable[[int, FrameType | None], Any] = signal.default_int_handler,
) -> Never:
    """Run a command and end with its status; our own errors end as one sentence, never a traceback.

    Args:
        command: The command.
        interrupted: What Ctrl-C does until an event loop of the command's takes the signals over.
    """
    try:
        # While it runs it cleans up behind itself; before and after, there is nothing to clean up.
        before = signal.signal(signal.SIGINT, interrupted)
        status = command()
        signal.signal(signal.SIGINT, before)
    except UsageError as error:
        status = print_error(error, EXIT_USAGE)
    except LoadError as error:
        status = print_error(error, EXIT_USAGE)
    except (StartError, ConfinementError, IsolationUnavailable) as error:
        status = print_error(error, EXIT_ISOLATION)
    except (RunnerError, SandboxError) as error:
        status = print_error(error, EXIT_USAGE)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output closed the pipe, as `head` does.
        status = 1
    except Exception as error:
        log.debug("runner fault", exc_info=True)
        status = print_error(_ours(error), EXIT_FAULT)
    raise typer.Exit(status)


def end_at_once(_number: int, _frame: FrameType | None) -> Never:
    """Exit silently on Ctrl-C, for a command that has nothing to clean up before its loop runs.

    Python drops exceptions in callbacks at the end of an import, a fork or an object; a KeyboardInterrupt
    raised there would be lost, and the server would run on.
    """
    os._exit(EXIT_INTERRUPTED)


def print_error(error: Exception, status: int) -> int:
    """Print an error on standard error, and return the exit status."""
    print(f"runner: {error}", file=sys.stderr)  # noqa: T201
    return status


def _ours(error: Exception) -> Exception:
    return RunnerError(
        f"this is a fault of the runner itself, not of your file: {type(error).__name__}: {error}; "
        "run it again with --log-level debug and report what it prints"
    )
