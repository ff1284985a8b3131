"""How a command ends: with an exit status, and where something is wrong with one sentence.

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
    "say",
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
        status = say(error, EXIT_USAGE)
    except LoadError as error:
        status = say(error, EXIT_USAGE)
    except (StartError, ConfinementError, IsolationUnavailable) as error:
        status = say(error, EXIT_ISOLATION)
    except (RunnerError, SandboxError) as error:
        status = say(error, EXIT_USAGE)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough; there is nobody left to tell.
        status = 1
    except Exception as error:
        log.debug("fault of ours", exc_info=True)
        status = say(_ours(error), EXIT_FAULT)
    raise typer.Exit(status)


def end_at_once(_number: int, _frame: FrameType | None) -> Never:
    """End on Ctrl-C without a word, for a command that has nothing to clean up before its loop runs.

    An exception would be lost where Python can raise none, as in a callback at the end of an import, a fork
    or an object; and the server would go on as if nobody had asked.
    """
    os._exit(EXIT_INTERRUPTED)


def say(error: Exception, status: int) -> int:
    """Say what is wrong, and return the status to end with."""
    print(f"runner: {error}", file=sys.stderr)  # noqa: T201
    return status


def _ours(error: Exception) -> Exception:
    return RunnerError(
        f"this is a fault of the runner itself, not of your file: {type(error).__name__}: {error}; "
        "run it again with --log-level debug and report what it prints"
    )
