"""How a command ends: with an exit status, and where something is wrong with one sentence.

Source: `docs/cli.md`, exit codes.
"""

import logging
import signal
import sys
from collections.abc import Callable
from typing import Never

import typer

from runner.errors import RunnerError, StartError, UsageError
from sandbox.errors import ConfinementError, IsolationUnavailable, LoadError, SandboxError

__all__ = ["EXIT_FAULT", "EXIT_INTERRUPTED", "EXIT_ISOLATION", "EXIT_USAGE", "end_with", "say"]

log = logging.getLogger(__name__)

EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_ISOLATION = 5
EXIT_INTERRUPTED = 130


def end_with(command: Callable[[], int]) -> Never:
    """Run a command and end with its status; our own errors end as one sentence, never a traceback."""
    try:
        # While it runs it cleans up behind itself; before and after, there is nothing to clean up.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
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


def say(error: Exception, status: int) -> int:
    """Say what is wrong, and return the status to end with."""
    print(f"runner: {error}", file=sys.stderr)  # noqa: T201
    return status


def _ours(error: Exception) -> Exception:
    return RunnerError(
        f"this is a fault of the runner itself, not of your file: {type(error).__name__}: {error}; "
        "run it again with --log-level debug and report what it prints"
    )
