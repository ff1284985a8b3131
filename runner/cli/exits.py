"""Exit statuses of commands, and the one sentence printed for an error.

Source: `docs/cli.md`, exit codes.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Never

import typer

from runner.errors import CallError, RunnerError, StartError
from runner.formats.terminal_text import json_text
from sandbox.errors import ConfinementError, IsolationUnavailable, SandboxError

__all__ = [
    "EXIT_FAULT",
    "EXIT_INTERRUPTED",
    "EXIT_ISOLATION",
    "EXIT_USAGE",
    "Report",
    "end_at_once",
    "end_with",
    "print_error",
]

log = logging.getLogger(__name__)

EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_ISOLATION = 5
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a command, for programs and for people.

    Attributes:
        document: Printed with `--json`.
        text: Printed without.
        status: The exit status.
        indent: Indentation of the document.
    """

    document: object
    text: str
    status: int = 0
    indent: int | None = None


def end_with(
    command: Callable[[], int | Report],
    *,
    as_json: bool = False,
    interrupted: Callable[[int, FrameType | None], Any] = signal.default_int_handler,
) -> Never:
    """Run a command and end with its status; our own errors end as one sentence, never a traceback.

    Args:
        command: The command.
        as_json: Whether a report is printed as JSON.
        interrupted: What Ctrl-C does until an event loop of the command's takes the signals over.
    """
    try:
        # While it runs it cleans up behind itself; before and after, there is nothing to clean up.
        before = signal.signal(signal.SIGINT, interrupted)
        outcome = command()
        if isinstance(outcome, Report):
            _print(json_text(outcome.document, indent=outcome.indent) if as_json else outcome.text)
        status = outcome.status if isinstance(outcome, Report) else outcome
        signal.signal(signal.SIGINT, before)
    except (StartError, ConfinementError, IsolationUnavailable) as error:
        status = print_error(error, EXIT_ISOLATION)
    except CallError as error:
        hint = error.details.get("suggestion")
        print(f"runner: {error.message}{f'. {hint}' if hint else ''}", file=sys.stderr)  # noqa: T201
        if as_json:
            from runner.contract.error_messages import envelope  # noqa: PLC0415 - not at each start

            _print(json_text(envelope(error)))
        status = error.code.exit_status
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


def _print(text: str) -> None:
    if text:
        print(text, flush=True)  # noqa: T201


def _ours(error: Exception) -> Exception:
    return RunnerError(
        f"this is a fault of the runner itself, not of your file: {type(error).__name__}: {error}; "
        "run it again with --log-level debug and report what it prints"
    )
