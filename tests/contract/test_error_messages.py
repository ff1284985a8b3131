"""The words of the contract, compared whole."""

import json
from pathlib import Path

import pytest

from runner.contract.error_messages import (
    RefusedFile,
    artifact_missing,
    busy,
    cancelled,
    crashed,
    envelope,
    file_not_found,
    invalid_argument,
    invalid_result,
    legible,
    notice,
    out_of_descriptors,
    outside_home,
    timed_out,
    too_large,
    tool_not_found,
    tool_raised,
)
from runner.contract.limit_errors import over_limit
from runner.errors import CallError
from sandbox.deadlines import Deadlines, Rung
from sandbox.outcome import Reached

ALL = [
    timed_out(Deadlines(), limit="idle", last_progress="a"),
    outside_home("/etc/passwd", Path("/tmp/alice")),
    too_large(2, 1),
    artifact_missing("/tmp/alice/x"),
    tool_raised("ValueError", "bad", frames=["tool.py:3 in f"]),
    crashed("signal SIGKILL", memory_peak_bytes=5, output="out"),
    over_limit(Reached(limit="memory_bytes", value=10), memory_peak_bytes=11),
    tool_not_found("sum", ["add"]),
    invalid_argument("`a` must be an integer", argument="a"),
    file_not_found("a.csv", ["b.csv"]),
    invalid_result("results", "it holds bytes"),
    cancelled(),
    out_of_descriptors(5, limit=1024),
    busy(2.5, value=1024),
]


def test_timeout_uses_words_of_section_12_1() -> None:
    """Source: S1-129 to S1-131."""
    error = timed_out(Deadlines(), limit="idle", last_progress="Processing chunk 45/200")

    assert envelope(error) == {
        "results": {"error": "Tool execution timed out after 30 seconds"},
        "retryable": True,
        "meta_data": {
            "is_error": True,
            "reason": "ExecutionTimeout",
            "error_code": "E_TIMEOUT",
            "details": {
                "timeout_seconds": 30,
                "last_progress": "Processing chunk 45/200",
                "suggestion": (
                    "Consider breaking large operations into smaller chunks or using progress reporting"
                ),
            },
            "retryable": True,
        },
    }


def test_total_timeout_error_states_its_seconds_and_limit() -> None:
    error = timed_out(Deadlines(idle_s=2.5, total_s=600.0), limit="total", last_progress=None)

    assert error.message == "Tool execution timed out after 600 seconds"
    assert error.details["limit"] == "total"
    assert error.details["timeout_seconds"] == 600


def test_fractional_limit_written_unrounded() -> None:
    error = timed_out(Deadlines(idle_s=2.5), limit="idle", last_progress=None)

    assert error.message == "Tool execution timed out after 2.5 seconds"


def test_path_outside_home_error_uses_spec_words_and_prefix() -> None:
    """Source: S1-132 to S1-134."""
    error = outside_home("/etc/passwd", Path("/tmp/alice"))

    assert envelope(error) == {
        "results": {"error": "File operation outside allowed directory"},
        "retryable": False,
        "meta_data": {
            "is_error": True,
            "reason": "SecurityViolation",
            "error_code": "E_INVALID_PATH",
            "details": {
                "attempted_path": "/etc/passwd",
                "allowed_prefix": "/tmp/alice/",
                "suggestion": "Use /tmp/{username}/ prefix for file operations",
            },
            "retryable": False,
        },
    }


def test_tool_without_home_error_explains_how_to_get_one() -> None:
    error = outside_home("/tmp/alice/x", None)

    assert error.details["allowed_prefix"] is None
    assert error.details["suggestion"].startswith("Use /tmp/{username}/ prefix for file operations")
    assert "`username: str`" in error.details["suggestion"]


def test_large_file_uses_words_of_section_12_3() -> None:
    """Source: S1-135 to S1-137."""
    error = too_large(107374182400, 53687091200)

    assert envelope(error) == {
        "results": {"error": "Generated file exceeds processing limits"},
        "retryable": False,
        "meta_data": {
            "is_error": True,
            "reason": "FileSizeExceeded",
            "error_code": "E_FILE_TOO_LARGE",
            "details": {
                "file_size_bytes": 107374182400,
                "current_limit_bytes": 53687091200,
                "suggestion": "Consider generating summary or using chunked processing",
            },
            "retryable": False,
        },
    }


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.message[:24])
def test_errors_all_become_json_envelopes(error: CallError) -> None:
    answer = envelope(error)

    assert json.loads(json.dumps(answer)) == answer
    assert answer["meta_data"]["error_code"] == error.code.name
    assert answer["retryable"] == answer["meta_data"]["retryable"] == error.retryable


def test_unknown_tool_answered_with_nearest_names() -> None:
    error = tool_not_found("sales_reprot", ["sales_report", "hello"])

    assert error.details["nearest"] == ["sales_report"]


def test_tool_may_mark_error_retryable() -> None:
    error = tool_raised("Busy", "", retryable=True)

    assert (error.message, error.retryable) == ("The tool raised Busy", True)


def test_lone_surrogate_in_long_text_stays_encodable() -> None:
    text = legible("\ud800" + "x" * 10_000)

    assert len(text.encode("utf-8")) < 5000


def test_refused_file_listed_with_its_envelope() -> None:
    error = too_large(2, 1)

    entry = RefusedFile(name="a.bin", reason="file_too_large", error=error).entry()

    assert entry == {"name": "a.bin", "reason": "file_too_large", "error": envelope(error)}


def test_notices_use_words_of_section_11_3() -> None:
    """Source: S1-125 to S1-128."""
    notices = [notice(rung, Deadlines()) for rung in Rung]

    assert notices == [
        "The tool is taking longer than expected. Please wait...",
        "Still processing your request. This may take a few more moments.",
        "Processing continues. The tool will timeout in 5 seconds if no progress.",
        *["Tool failed to respond in a reasonable amount of time. Please try again or use a smaller dataset."]
        * 2,
    ]


def test_long_path_shown_by_both_ends_usual_path_in_full() -> None:
    usual, longer = "/" + "a" * 254, "/start/" + "b" * 4000 + "/end.txt"

    shown = outside_home(longer, None).details["attempted_path"]

    assert outside_home(usual, None).details["attempted_path"] == usual
    assert len(shown) == 255
    assert shown.startswith("/start/bb")
    assert shown.endswith("bb/end.txt")
    assert artifact_missing(longer).details["attempted_path"] == shown
    assert len(artifact_missing(longer).message) < 400


def test_missing_file_with_tilde_names_the_expansion() -> None:
    assert "not expanded" in artifact_missing("~/x.csv").details["suggestion"]
    assert "not expanded" not in artifact_missing("/tmp/alice/x~").details["suggestion"]
