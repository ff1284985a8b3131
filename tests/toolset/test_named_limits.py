"""Limits of calls by name: who counts for them, in what window, and in which order waiting calls start."""

import asyncio
import itertools
from pathlib import Path

import pytest
from held_objects import held_objects
from pydantic import ValidationError
from somebody import somebody
from support import call, details, error_code, open_toolset

from runner.errors import CallError, Code
from runner.settings.named_limits import LimitSettings, counted
from runner.settings.settings import ToolSettings
from runner.toolset.fair_queue import FairQueue, PlaceDemand
from runner.toolset.rates import Rates

EACH = LimitSettings(per="user", calls_per_minute=2)
SALES = LimitSettings(tools=["sales_*"], max_calls=1)
TOOLS = '''
import time
from pathlib import Path
from fastmcp import FastMCP
from runner.author import artifacts
mcp = FastMCP("t")

@mcp.tool
def slow() -> float:
    """Take half a second."""
    began = time.time()
    time.sleep(0.5)
    return began

@mcp.tool
def busy(seconds: float) -> int:
    """Use the processor."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    return 1

@mcp.tool
def busy_child(seconds: float) -> int:
    """Have a child use it."""
    import subprocess, sys
    code = f"import time\\nwhile time.process_time() < {seconds}: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    return 1

@mcp.tool
def takes(mib: int) -> int:
    """Take memory."""
    return len(bytearray(b"x") * (mib * 1024 * 1024))

@mcp.tool
def takes_too(mib: int) -> int:
    """Take memory, without a limit by name."""
    return takes(mib)

def content(mib: int, name: str) -> bytes:
    return name.encode().ljust(mib * 1024 * 1024)

@mcp.tool
def keep(username: str, mib: int, name: str) -> dict:
    """Return a file."""
    path = Path.home() / name
    path.write_bytes(content(mib, name))
    return {"results": 1, "artifacts": [{"name": name, "path": str(path)}]}

@mcp.tool
def other_keep(username: str, mib: int, name: str) -> dict:
    """Return a file."""
    return keep(username, mib, name)

@mcp.tool
def keep_unsaid(username: str, mib: int, name: str) -> int:
    """Leave a file."""
    (Path.home() / name).write_bytes(content(mib, name))
    return 1

@mcp.tool
async def keep_running(username: str, mib: int, name: str) -> int:
    """Keep a file while it runs."""
    await artifacts.put_bytes(content(mib, name), filename=name)
    return 1
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


def test_a_call_counts_for_the_limits_of_its_tool_and_user() -> None:
    limits = {
        "all": LimitSettings(calls_per_minute=9),
        "each": EACH,
        "sales": SALES,
        "guests": LimitSettings(users=["guest"], max_calls=1),
    }

    assert names(limits, "sales_report", "ann") == [("all", ""), ("each", "home-of-ann"), ("sales", "")]
    assert names(limits, "other", "guest") == [("all", ""), ("each", "home-of-guest"), ("guests", "")]
    assert names(limits, None, "ann") == [("all", ""), ("each", "home-of-ann")]


def test_a_limit_that_limits_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="it limits nothing"):
        LimitSettings(tools=["a"])


def admitted(rates: Rates, user: str, now: float, tool: str = "t") -> bool:
    try:
        rates.admit(rates.of(tool=tool, user=user, whose=user), now=now)
    except CallError:
        return False
    return True


def test_each_user_has_so_many_calls_in_any_minute_over_all_tools() -> None:
    rates = Rates(limits={"each": EACH})

    of_ann = [admitted(rates, "ann", now, tool) for now, tool in ((0, "a"), (30, "b"), (59, "c"), (60, "a"))]

    assert of_ann == [True, True, False, True]
    assert admitted(rates, "bob", 59)


def test_a_call_that_one_limit_refuses_counts_for_no_other() -> None:
    limits = {
        "all": LimitSettings(calls_per_minute=2),
        "ann": LimitSettings(users=["ann"], calls_per_minute=1),
    }
    rates = Rates(limits=limits)

    assert [admitted(rates, "ann", 0) for _ in range(5)] == [True, False, False, False, False]
    assert [admitted(rates, "bob", 1) for _ in range(2)] == [True, False]


def test_the_error_names_the_limit_and_the_moment_at_which_a_call_would_pass() -> None:
    rates = Rates(limits={"each": EACH})
    mine = rates.of(tool="t", user="ann", whose="ann")
    rates.admit(mine, now=0)
    rates.admit(mine, now=10)

    with pytest.raises(CallError) as refused:
        rates.admit(mine, now=20)

    said = refused.value
    assert (said.code, said.retryable) == (Code.E_BUSY, True)
    assert said.message == (
        "2 calls a minute are what this user may have (call_limits.each.calls_per_minute); "
        "try again in 40 seconds"
    )
    assert said.details["retry_after_seconds"] == 40
    assert said.details["setting"] == "call_limits.each.calls_per_minute"
    rates.admit(mine, now=60)


def test_processor_time_of_the_last_hour_counts_and_is_forgotten_after_it() -> None:
    rates = Rates(limits={"cpu": LimitSettings(per="user", cpu_s_per_hour=10)})
    mine = rates.of(tool="t", user="ann", whose="ann")
    for minute in range(10):
        rates.admit(mine, now=minute * 60)
        rates.spend(mine, "cpu_s_per_hour", 1.0, now=minute * 60)

    with pytest.raises(CallError) as refused:
        rates.admit(mine, now=600)

    assert refused.value.details["retry_after_seconds"] == 3000
    assert refused.value.details["setting"] == "call_limits.cpu.cpu_s_per_hour"
    assert admitted(rates, "bob", 600)
    rates.admit(mine, now=3600)


def test_an_hour_of_any_number_of_calls_is_few_numbers_and_idle_users_are_forgotten() -> None:
    rates = Rates(limits={"cpu": LimitSettings(per="user", cpu_s_per_hour=10**9)})
    before = held_objects(rates)
    for second in range(7200):
        rates.spend(rates.of(tool="t", user="ann", whose="ann"), "cpu_s_per_hour", 0.5, now=second)
    of_an_hour = held_objects(rates)
    for number in range(1100):
        mine = rates.of(tool="t", user=f"u{number}", whose=f"u{number}")
        rates.spend(mine, "cpu_s_per_hour", 0.5, now=0)
    of_all = held_objects(rates)

    rates.spend(rates.of(tool="t", user="late", whose="late"), "cpu_s_per_hour", 0.5, now=20_000)

    assert of_an_hour < before + 3 * 130
    assert of_all > of_an_hour + 1100
    assert held_objects(rates) < before + 20


ONE = (PlaceDemand(("sales", ""), 1),)


def queue_of(max_calls_per_user: int = 9) -> FairQueue[str]:
    return FairQueue(max_calls=9, max_calls_per_user=max_calls_per_user, max_queue=2000)


def test_calls_that_need_a_full_place_let_others_pass_and_keep_their_turn() -> None:
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


def test_a_thousand_calls_for_one_place_delay_anothers_by_one_call_at_most() -> None:
    queue = queue_of()
    assert queue.starts("ann", ONE)
    for number in range(1000):
        queue.wait("ann", f"ann-{number}", ONE)
    queue.wait("bob", "bob-1", ONE)

    assert list(queue.leave("ann", ONE)) == ["bob-1"]
    assert list(queue.leave("bob", ONE)) == ["ann-0"]


def test_a_waiting_call_of_a_full_place_can_be_withdrawn() -> None:
    queue = queue_of()
    assert queue.starts("ann", ONE)
    queue.wait("bob", "bob-1", ONE)

    assert queue.withdraw("bob", "bob-1")
    assert not queue.withdraw("bob", "bob-1")
    assert list(queue.leave("ann", ONE)) == []


def memory(takes: int) -> tuple[PlaceDemand]:
    return (PlaceDemand(("memory_mb", "sales", ""), 1000, takes),)


def test_calls_that_take_different_amounts_run_while_there_is_enough_of_it() -> None:
    queue = queue_of()
    assert queue.starts("ann", memory(600))
    assert queue.starts("bob", memory(400))
    assert not queue.starts("bob", memory(1))
    queue.wait("bob", "small", memory(1))

    assert list(queue.leave("bob", memory(400))) == ["small"]
    assert list(queue.leave("bob", memory(1))) == []
    assert list(queue.leave("ann", memory(600))) == []
    assert queue.starts("ann", memory(1000))


def test_small_calls_do_not_keep_a_large_one_waiting_for_ever() -> None:
    queue = queue_of()
    assert queue.starts("ann", memory(300))
    assert queue.starts("ann", memory(300))
    queue.wait("bob", "large", memory(900))

    # There would be room, and it is saved for who came before. What takes nothing of it goes on.
    assert not queue.starts("ann", memory(300))
    queue.wait("ann", "small", memory(300))
    assert queue.starts("ann")
    assert list(queue.leave("ann", memory(300))) == []
    assert list(queue.leave("ann", memory(300))) == ["large"]
    assert list(queue.leave("bob", memory(900))) == ["small"]


def test_a_waiting_call_whose_user_may_run_no_more_keeps_nothing_from_others() -> None:
    queue = queue_of(max_calls_per_user=1)
    assert queue.starts("ann", memory(300))
    queue.wait("ann", "large", memory(900))

    assert queue.starts("bob", memory(600))


def test_a_call_counts_with_its_memory_and_with_no_more_than_there_is() -> None:
    limits = {"small": LimitSettings(memory_mb=500), "other": LimitSettings(max_calls=1)}

    of_a_large_one = counted(limits, tool="t", user="ann", whose="ann", memory_mb=4096)
    of_a_small_one = counted(limits, tool="t", user="ann", whose="ann", memory_mb=100)

    assert [one.memory_mb for one in of_a_large_one] == [500, 0]
    assert [one.memory_mb for one in of_a_small_one] == [100, 0]


def test_what_was_kept_in_a_day_counts_until_the_day_is_over() -> None:
    rates = Rates(limits={"kept": LimitSettings(stored_mb_per_day=10)})
    mine = rates.of(tool="t", user="ann", whose="ann")
    rates.spend(mine, "stored_mb_per_day", 6.0, now=0)
    rates.admit(mine, now=1000)
    rates.spend(mine, "stored_mb_per_day", 6.0, now=1000)

    with pytest.raises(CallError, match=r"10 MiB of files a day are what all users") as refused:
        rates.admit(mine, now=2000)

    assert refused.value.details["setting"] == "call_limits.kept.stored_mb_per_day"
    assert refused.value.details["retry_after_seconds"] == 24 * 3600 - 2000
    rates.admit(mine, now=24 * 3600)


def test_what_is_counted_elsewhere_is_told_there_and_only_what_is_limited() -> None:
    told: list[tuple[str, float]] = []
    limits = {"kept": LimitSettings(tools=["t"], stored_mb_per_day=10)}
    rates = Rates(limits=limits, told=lambda _, setting, amount: told.append((setting, amount)))

    for tool in ("t", "other"):
        mine = rates.of(tool=tool, user="ann", whose="ann")
        rates.spend(mine, "cpu_s_per_hour", 5.0, now=0)
        rates.spend(mine, "stored_mb_per_day", 5.0, now=0)
        rates.spend(mine, "stored_mb_per_day", 0.0, now=0)

    assert told == [("stored_mb_per_day", 5.0)]


@pytest.mark.kernel
@pytest.mark.anyio
async def test_memory_of_calls_at_once_is_bounded_together(limited: Path, tmp_path: Path) -> None:
    limits = {"together": LimitSettings(tools=["slow", "takes"], memory_mb=300)}
    own = {"slow": ToolSettings(call_memory_mb=200, memory_mb=200)}

    with somebody() as ann, somebody() as bob:
        async with open_toolset(limited, tmp_path, call_limits=limits, tools=own) as toolset:
            at_once = await asyncio.gather(*(call(toolset, who, "slow") for who in (ann, bob)))
            enough = error_code(await call(toolset, ann, "takes", mib=100))
            too_much = await call(toolset, ann, "takes", mib=400)
            of_another = error_code(await call(toolset, ann, "takes_too", mib=400))

    first, second = sorted(completed.processed.value["results"] for completed in at_once)
    assert second - first > 0.45
    assert (enough, of_another) == (None, None)
    assert error_code(too_much) == "E_MEMORY"


@pytest.mark.kernel
@pytest.mark.anyio
async def test_what_calls_of_a_tool_keep_is_bounded_by_the_day(limited: Path, tmp_path: Path) -> None:
    limits = {"kept": LimitSettings(tools=["keep*"], per="user", stored_mb_per_day=3)}

    with somebody() as ann, somebody() as bob:
        async with open_toolset(limited, tmp_path, call_limits=limits, generated="keep") as toolset:
            kept = [
                error_code(await call(toolset, ann, tool, mib=1, name=tool))
                for tool in ("keep", "keep_running", "keep_unsaid")
            ]
            refused = await call(toolset, ann, "keep", mib=1, name="4")
            others = [
                error_code(await call(toolset, who, tool, mib=1, name="5"))
                for who, tool in ((bob, "keep"), (ann, "other_keep"))
            ]
            names = {record.name for record in await toolset.library.of(ann).all()}

    assert kept == [None, None, None]
    assert names == {"keep", "keep_running", "keep_unsaid", "5"}
    assert error_code(refused) == "E_BUSY"
    assert details(refused)["setting"] == "call_limits.kept.stored_mb_per_day"
    assert details(refused)["retry_after_seconds"] > 80_000
    assert others == [None, None]


@pytest.mark.kernel
@pytest.mark.anyio
async def test_limits_by_name_hold_for_calls_at_once_and_for_processor_time(
    limited: Path, tmp_path: Path
) -> None:
    limits = {
        "one_slow": LimitSettings(tools=["sl*"], max_calls=1),
        "cpu": LimitSettings(tools=["busy*"], per="user", cpu_s_per_hour=2),
    }

    with somebody() as ann, somebody() as bob:
        async with open_toolset(limited, tmp_path, call_limits=limits) as toolset:
            at_once = await asyncio.gather(*(call(toolset, who, "slow") for who in (ann, bob, ann)))
            used = [error_code(await call(toolset, ann, "busy", seconds=0.6)) for _ in range(2)]
            used.append(error_code(await call(toolset, ann, "busy_child", seconds=1.0)))
            refused = await call(toolset, ann, "busy", seconds=0.1)
            of_bob = error_code(await call(toolset, bob, "busy", seconds=0.1))

    began = sorted(completed.processed.value["results"] for completed in at_once)
    assert all(later - earlier > 0.45 for earlier, later in itertools.pairwise(began))
    assert used == [None, None, None]
    assert error_code(refused) == "E_BUSY"
    assert details(refused)["setting"] == "call_limits.cpu.cpu_s_per_hour"
    assert 3000 < details(refused)["retry_after_seconds"] <= 3600
    assert of_bob is None
