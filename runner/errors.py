"""Errors of the runner, sorted by fault: caller, author, us.

    RunnerError
    ├── UsageError        the command line, the configuration or the tool file is wrong (exit 2)
    ├── StartError        this machine cannot do what was requested (exit 5)
    └── CallError         one call ended with an error envelope, of the kind in its `Code`

A `CallError` becomes the error envelope of the contract: `runner.contract.error_messages`.

Source: document 001, section 12; the table of error codes in `docs/cli.md`.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CallError", "Code", "RunnerError", "StartError", "UsageError"]


class RunnerError(Exception):
    """Base of all errors of this package."""


class UsageError(RunnerError):
    """The command line, the configuration or the tool file is wrong; the message names the place."""


class StartError(RunnerError):
    """This machine cannot provide what was requested."""


@dataclass(frozen=True, slots=True)
class _Row:
    reason: str
    retryable: bool
    exit_status: int


class Code(enum.Enum):
    """Error codes of the envelope, each with its reason, whether to retry, and the exit status of `call`."""

    E_TIMEOUT = _Row("ExecutionTimeout", retryable=True, exit_status=3)
    E_INVALID_PATH = _Row("SecurityViolation", retryable=False, exit_status=4)
    E_FILE_TOO_LARGE = _Row("FileSizeExceeded", retryable=False, exit_status=6)
    E_TOOL_NOT_FOUND = _Row("ToolNotFound", retryable=False, exit_status=2)
    E_TOOL = _Row("ToolError", retryable=False, exit_status=1)
    E_CRASHED = _Row("WorkerCrashed", retryable=True, exit_status=1)
    E_MEMORY = _Row("MemoryExceeded", retryable=False, exit_status=1)
    E_RESOURCE_LIMIT = _Row("ResourceExceeded", retryable=False, exit_status=1)
    E_BUSY = _Row("Overloaded", retryable=True, exit_status=1)
    E_UNAUTHORIZED = _Row("AuthenticationRequired", retryable=False, exit_status=4)
    E_APPROVAL = _Row("ApprovalRequired", retryable=False, exit_status=4)
    E_CANCELLED = _Row("Cancelled", retryable=True, exit_status=1)
    E_INVALID_ARGUMENT = _Row("InvalidArgument", retryable=False, exit_status=2)
    E_FILE_NOT_FOUND = _Row("FileNotFound", retryable=False, exit_status=2)
    E_NETWORK_DENIED = _Row("NetworkDenied", retryable=False, exit_status=4)
    E_STORE = _Row("StoreUnavailable", retryable=True, exit_status=1)
    E_QUOTA = _Row("QuotaExceeded", retryable=False, exit_status=6)
    E_ISOLATION = _Row("IsolationUnavailable", retryable=False, exit_status=5)
    E_INVALID_RESULT = _Row("InvalidResult", retryable=False, exit_status=1)
    E_INTERNAL = _Row("InternalError", retryable=True, exit_status=1)

    @property
    def reason(self) -> str:
        """Return the `reason` of the envelope."""
        return self.value.reason

    @property
    def retryable(self) -> bool:
        """Return whether a retry can help."""
        return self.value.retryable

    @property
    def exit_status(self) -> int:
        """Return the exit status of `runner call` for this code."""
        return self.value.exit_status


class CallError(RunnerError):
    """One call ended with an error.

    Attributes:
        code: The error code.
        message: What happened, for people; `results.error` of the envelope.
        details: JSON-serialisable facts for `meta_data.details`.
        retryable: Whether a retry can help; by default that of the code.
        answer: Result of the tool's own server, as on the wire, if that is the source of the error.
        withheld: Facts for the log only, since the tool's server masks them for clients.
        beside: Further entries of `meta_data`, such as files that other calls have left.
    """

    answer: Mapping[str, Any] | None = None
    withheld: Mapping[str, Any] | None = None
    beside: Mapping[str, Any] | None = None

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = dict(details or {})
        self.retryable = code.retryable if retryable is None else retryable
