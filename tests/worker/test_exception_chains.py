"""Exceptions of tools: what is behind them reaches the error, bounded."""

import asyncio
import errno
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.errors import CallError
from runner.settings.rights import Rights
from runner.steps.listener import CallListener, Nobody
from runner.steps.verdict import judge
from runner.toolset.session_state import SessionState
from runner.worker.call_scope import HostLine, ServedCall, entered
from runner.worker.failure_capture import FailureCapture
from sandbox.deadlines import Deadlines
from sandbox.outcome import Ending, Outcome
from sandbox.policy import Limits

pytestmark = pytest.mark.anyio
PRICES: dict[str, int] = {}


def _caused() -> None:
    try:
        PRICES["price"]
    except KeyError as error:
        raise RuntimeError("no report") from error


def _in_context() -> None:
    try:
        PRICES["price"]
    except KeyError:
        raise RuntimeError("no report")  # noqa: B904 - the context is the case


def _suppressed() -> None:
    try:
        PRICES["price"]
    except KeyError:
        raise RuntimeError("no report") from None


def _group() -> None:
    inner = ExceptionGroup("inner", [ValueError("row 2")])
    raise ExceptionGroup("outer", [inner, TypeError("row 3")])


def _noted() -> None:
    error = ValueError("bad")
    error.add_note("row 3")
    error.add_note("see file")
    raise error


def _circle() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def _endless() -> None:
    error: Exception = ValueError("0")
    for number in range(1, 500):
        outer = ValueError(f"{number}")
        outer.__cause__, error = error, outer
    raise error


class _Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def _without_text() -> None:
    raise RuntimeError("outer") from _Silent()


class NoDenials:
    """The channel of a call in which nothing was denied."""

    is_over = False

    def explain(self, _error: Exception) -> None:
        return None


async def details_of(fails: Callable[[], None], rights: Rights | None = None) -> dict[str, Any]:
    capture = FailureCapture(Path(__file__).parent)
    channel: Any = NoDenials()
    scope = ServedCall(
        channel=channel, line=HostLine(channel, asyncio.get_running_loop(), {}), most_bytes=1 << 20
    )

    async def tool() -> None:
        fails()

    with entered(scope), pytest.raises(Exception):  # noqa: B017, PT011 - whichever the case raises
        await capture.seen(tool(), tool="t")
    listener = CallListener(
        client=Nobody(),
        params={},
        levels=frozenset(),
        deadlines=Deadlines(),
        user="alice",
        state=SessionState(),
    )
    outcome = Outcome(ending=Ending.ANSWERED, answer={"raised": scope.raised})
    known = None if rights is None else lambda: rights
    with pytest.raises(CallError) as judged:
        judge(outcome, listener, home=None, limits=Limits(), rights=known)
    return dict(judged.value.details)


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        (_caused, [("cause", "KeyError", "'price'")]),
        (_in_context, [("context", "KeyError", "'price'")]),
        (_suppressed, []),
        (
            _group,
            [
                ("member", "ExceptionGroup", "inner (1 sub-exception)"),
                ("member", "TypeError", "row 3"),
                ("member", "ValueError", "row 2"),
            ],
        ),
        (_circle, [("cause", "ValueError", "second")]),
        (_without_text, [("cause", "_Silent", "")]),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
async def test_chain_of_an_exception_is_in_the_error(
    fails: Callable[[], None], expected: list[tuple[str, str, str]]
) -> None:
    chain = (await details_of(fails)).get("chain", [])

    assert [(link["relation"], link["exception_type"], link["message"]) for link in chain] == expected


async def test_frames_of_a_cause_are_in_the_error() -> None:
    [cause] = (await details_of(_caused))["chain"]

    assert cause["frames"][0].endswith('in _caused: PRICES["price"]')


async def test_notes_of_an_exception_are_in_the_error() -> None:
    assert (await details_of(_noted))["notes"] == ["row 3", "see file"]


async def test_chain_without_end_is_bounded() -> None:
    chain = (await details_of(_endless))["chain"]

    assert [link["message"] for link in chain] == [str(number) for number in range(498, 478, -1)]


def _variable() -> None:
    os.environ["SHOP_API_TOKEN"]


def _variable_of_library() -> None:
    raise RuntimeError("pass api_key=, or set the SHOP_API_TOKEN environment variable")


def _variable_named_alone() -> None:
    if not os.getenv("SHOP_KEY"):
        raise RuntimeError("SHOP_KEY is not set")


def _longer_name() -> None:
    if not os.getenv("SHOP_KEY"):
        raise RuntimeError("OTHER_SHOP_KEYS is not set")


def _name_of_host() -> None:
    raise RuntimeError("curl: (6) Could not resolve host: example.com")


def _name_behind() -> None:
    try:
        raise socket.gaierror(-2, "Name or service not known")
    except OSError as error:
        raise RuntimeError("no prices") from error


def _program() -> None:
    subprocess.run(["no-such-program"], check=True)


def _relative() -> None:
    Path("no-such-file").read_text()


def _own_constant() -> None:
    raise ValueError("E_PRICE_MISSING: row 3")


@pytest.mark.parametrize(
    ("fails", "rights", "flag"),
    [
        (_variable, Rights(), "--allow-env=SHOP_API_TOKEN"),
        (_variable, Rights(variables=("SHOP_API_TOKEN",)), None),
        (_variable_of_library, Rights(), "--allow-env=SHOP_API_TOKEN"),
        (_variable_named_alone, Rights(), "--allow-env=SHOP_KEY"),
        (_variable_named_alone, Rights(variables=("SHOP_KEY",)), None),
        (_longer_name, Rights(), None),
        (_name_of_host, Rights(), "--allow-net"),
        (_name_behind, Rights(), "--allow-net"),
        (_name_behind, Rights(network=("example.org",)), None),
        (_name_behind, None, None),
        (_own_constant, Rights(), None),
    ],
)
async def test_error_of_missing_right_names_its_option(
    fails: Callable[[], None], rights: Rights | None, flag: str | None
) -> None:
    details = await details_of(fails, rights)

    assert details.get("flag") == flag
    assert (flag is not None) == (str(flag) in details.get("suggestion", ""))


@pytest.mark.parametrize(
    ("fails", "words"), [(_program, "PATH has no program"), (_relative, "relative path")]
)
async def test_missing_program_and_file_told_apart(fails: Callable[[], None], words: str) -> None:
    assert words in (await details_of(fails))["suggestion"]


def _array() -> None:
    raise MemoryError("Unable to allocate 74.5 GiB for an array")


def _full_mailbox() -> None:
    raise OSError(errno.ENOSPC, "mailbox is full")


def _full_disk() -> None:
    raise OSError(errno.ENOSPC, f"Error writing bytes. Detail: {os.strerror(errno.ENOSPC)}")


@pytest.mark.parametrize(
    ("fails", "limit", "message"),
    [
        (_array, "memory_bytes", "Unable to allocate 74.5 GiB for an array"),
        (_full_mailbox, None, "[Errno 28] mailbox is full"),
        (_full_disk, "disk", None),
    ],
)
async def test_words_of_library_stay_beside_limit(
    fails: Callable[[], None], limit: str | None, message: str | None
) -> None:
    details = await details_of(fails)

    assert (details.get("limit"), details.get("message")) == (limit, message)
