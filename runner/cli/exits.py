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

from runner.errors import CallError, Code, RunnerError, StartError
from runner.formats.terminal_text import json_text
from sandbox.errors import ConfinementError, IsolationUnavailable, SandboxError

__all__ = [
    "EXIT_FAULT",
    "EXIT_INTERRUPTED",
    "EXIT_USAGE",
    "Report",
    "end_at_once",
    "end_with",
    "print_error",
]

log = logging.getLogger(__name__)

# Error of `tempfile` once it has tried all its folders. Source: CPython, Lib/tempfile.py.
_NO_TEMPORARY = "No usable temporary directory found"

EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a command, for programs and for people.

    Attributes:
        document: Output with `--json`.
        text: Output without `--json`.
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
    """Run a command and exit with its status; our own errors print one sentence, never a traceback.

    Args:
        command: The command.
        as_json: Whether a report is printed as JSON.
        interrupted: Handler of Ctrl-C until the command's event loop handles signals.
    """
    try:
        # A running command cleans up itself; before and after it, there is nothing to clean up.
        before = signal.signal(signal.SIGINT, interrupted)
        outcome = _outcome(command, as_json=as_json)
        if isinstance(outcome, Report):
            text = json_text(outcome.document, indent=outcome.indent) if as_json else outcome.text
            print(text, end="\n" if text else "", flush=True)  # noqa: T201
        status = outcome.status if isinstance(outcome, Report) else outcome
        signal.signal(signal.SIGINT, before)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output closed the pipe, like `head`.
        status = 1
    except Exception as error:  # noqa: BLE001 - of printing; no document can follow what was printed
        status = print_error(error, EXIT_FAULT)
    raise typer.Exit(status)


def _outcome(command: Callable[[], int | Report], *, as_json: bool) -> int | Report:
    """Return the outcome of a command; of one that failed, the envelope of its error after its sentence."""
    try:
        return command()
    except (StartError, ConfinementError, IsolationUnavailable) as error:
        failure = CallError(Code.E_ISOLATION, str(error))
    except CallError as error:
        failure = error
    except (RunnerError, SandboxError) as error:
        failure = CallError(Code.E_INVALID_ARGUMENT, str(error))
    except BrokenPipeError:
        raise
    except Exception as error:
        log.debug("runner fault", exc_info=True)
        failure = CallError(Code.E_INTERNAL, _in_words(error))
    hint = failure.details.get("suggestion")
    print(f"runner: {failure.message}{f'. {hint}' if hint else ''}", file=sys.stderr)  # noqa: T201
    document = None
    if as_json:
        from runner.contract.error_messages import envelope  # noqa: PLC0415 - not at each start

        document = envelope(failure)
    return Report(document, "", status=failure.code.exit_status)


def end_at_once(_number: int, _frame: FrameType | None) -> Never:
    """Exit silently on Ctrl-C, for a command that has nothing to clean up before its loop runs.

    Python drops exceptions in callbacks of an import, a fork or a finaliser; a KeyboardInterrupt raised
    there would be lost, and the server would keep running.
    """
    os._exit(EXIT_INTERRUPTED)


def print_error(error: Exception, status: int) -> int:
    """Print an error on standard error, and return the exit status."""
    print(f"runner: {error}", file=sys.stderr)  # noqa: T201
    return status


def _in_words(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and _NO_TEMPORARY in str(error):
        return "no folder for temporary files can be written; mount a writable /tmp, or set TMPDIR"
    return (
        f"this is a fault of the runner itself, not of your file: {type(error).__name__}: {error}; "
        "run it again with --log-level debug and report what it prints"
    )
