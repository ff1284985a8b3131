"""Limits of calls by name: who counts for them, in what window, and in which order waiting calls start."""

import asyncio
import itertools
from pathlib import Path

import pytest
from held_objects import held_objects
from pydantic import ValidationError
from somebody import somebody
from support import call, open_toolset

from runner.errors import CallError, Code
from runner.settings.named_limits import LimitSettings, counted
from runner.toolset.admission import FairQueue, PlaceDemand
from runner.toolset.rates import Rates

EACH = LimitSettings(per="user", calls_per_minute=2)
SALES = LimitSettings(tools=["sales_*"], max_calls=1)
TOOLS = '''
import time
from fastmcp import FastMCP
mcp = FastMCP("t")

@mcp.tool
def slow() -> float:
    """Take half a second."""
    began = time.time()
    time.sleep(0.5)
    return began
'''


@pytest.fixture
def limited(tmp_path: Path) -> Path:
    """The tools above, in a file."""
    tmp_path.chmod(0o700)
    file = tmp_path / "limited.py"
    file.write_text(TOOLS)
    return file


def names(limits: dict[str, LimitSettings], tool: str | None, user: str) -> list[tuple[str, str]]:
    return [(one.name, one.whose) for one in counted(limits, tool=tool, user=user, whose=f"home-of-{user}")]


def test_call_counts_for_limits_of_its_tool_and_user() -> None:
    limits = {
        "all": LimitSettings(calls_per_minute=9),
        "each": EACH,
        "sales": SALES,
        "guests": LimitSettings(users=["guest"], max_calls=1),
    }

    assert names(limits, "sales_report", "ann") == [("all", ""), ("each", "home-of-ann"), ("sales", "")]
    assert names(limits, "other", "guest") == [("all", ""), ("each", "home-of-guest"), ("guests", "")]
    assert names(limits, None, "ann") == [("all", ""), ("each", "home-of-ann")]


def test_limit_that_limits_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="it limits nothing"):
        LimitSettings(tools=["a"])


def admitted(rates: Rates, user: str, now: float, tool: str = "t") -> bool:
    try:
        rates.admit(rates.of(tool=tool, user=user, whose=user), now=now)
    except CallError:
        return False
    return True


def test_calls_per_minute_counted_per_user_over_all_tools() -> None:
    rates = Rates(limits={"each": EACH})

    of_ann = [admitted(rates, "ann", now, tool) for now, tool in ((0, "a"), (30, "b"), (59, "c"), (60, "a"))]

    assert of_ann == [True, True, False, True]
    assert admitted(rates, "bob", 59)


def test_refused_call_counts_for_no_other_limit() -> None:
    limits = {
        "all": LimitSettings(calls_per_minute=2),
        "ann": LimitSettings(users=["ann"], calls_per_minute=1),
    }
    rates = Rates(limits=limits)

    assert [admitted(rates, "ann", 0) for _ in range(5)] == [True, False, False, False, False]
    assert [admitted(rates, "bob", 1) for _ in range(2)] == [True, False]


def test_rate_limit_error_names_limit_and_retry_time() -> None:
    rates = Rates(limits={"each": EACH})
    mine = rates.of(tool="t", user="ann", whose="ann")
    rates.admit(mine, now=0)
    rates.admit(mine, now=10)

    with pytest.raises(CallError) as refused:
        rates.admit(mine, now=20)

    error = refused.value
    assert (error.code, error.retryable) == (Code.E_BUSY, True)
    assert error.message == (
        "Rate limit reached: 2 calls a minute for this user (call_limits.each.calls_per_minute); "
        "try again in 40 seconds"
    )
    assert error.details["retry_after_seconds"] == 40
    assert error.details["setting"] == "call_limits.each.calls_per_minute"
    rates.admit(mine, now=60)


def test_windows_of_idle_users_dropped() -> None:
    rates = Rates(limits={"each": LimitSettings(per="user", calls_per_minute=10)})
    before = held_objects(rates)
    for number in range(1100):
        admitted(rates, f"u{number}", 0)
    of_all = held_objects(rates)

    assert admitted(rates, "late", 20_000)

    assert of_all > before + 1100
    assert held_objects(rates) < before + 20


ONE = (PlaceDemand(("sales", ""), 1),)


def queue_of(max_calls_per_user: int = 9) -> FairQueue[str]:
    return FairQueue(max_calls=9, max_calls_per_user=max_calls_per_user, max_queue=2000)


def test_calls_for_full_place_yield_and_keep_turn() -> None:
    queue = queue_of()
    assert queue.starts("ann", ONE)
    queue.wait("ann", "ann-sales", ONE)

    assert queue.starts("ann")
    assert not queue.starts("bob", ONE)
    queue.wait("bob", "bob-sales", ONE)

    assert list(queue.leave("ann")) == []
    # Bob has had no call yet: with one place for all, one user's waiting calls delay him by one call only.
    assert list(queue.leave("ann", ONE)) == ["bob-sales"]
    assert list(queue.leave("bob", ONE)) == ["ann-sales"]
    assert list(queue.leave("ann", ONE)) == []
    assert queue.starts("ann", ONE)


def test_thousand_calls_for_one_place_delay_another_by_one_call() -> None:
    queue = queue_of()
    assert queue.starts("ann", ONE)
    for number in range(1000):
        queue.wait("ann", f"ann-{number}", ONE)
    queue.wait("bob", "bob-1", ONE)

    assert list(queue.leave("ann", ONE)) == ["bob-1"]
    assert list(queue.leave("bob", ONE)) == ["ann-0"]


def test_waiting_call_of_full_place_can_be_withdrawn() -> None:
    queue = queue_of()
    assert queue.starts("ann", ONE)
    queue.wait("bob", "bob-1", ONE)

    assert queue.withdraw("bob", "bob-1")
    assert not queue.withdraw("bob", "bob-1")
    assert list(queue.leave("ann", ONE)) == []


@pytest.mark.kernel
@pytest.mark.anyio
async def test_concurrent_calls_of_named_limit_take_turns(limited: Path, tmp_path: Path) -> None:
    limits = {"one_slow": LimitSettings(tools=["sl*"], max_calls=1)}

    with somebody() as ann, somebody() as bob:
        async with open_toolset(limited, tmp_path, call_limits=limits) as toolset:
            at_once = await asyncio.gather(*(call(toolset, who, "slow") for who in (ann, bob, ann)))

    began = sorted(completed.processed.value["results"] for completed in at_once)
    assert all(later - earlier > 0.45 for earlier, later in itertools.pairwise(began))
