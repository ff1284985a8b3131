"""Every resource limit, reached by a real act in every tier, with the same act just below it as control."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from runner.contract.limit_errors import over_limit
from runner.settings.resource_limits import LIMITS
from sandbox.layers.cgroup import places
from sandbox.outcome import Reached

pytestmark = [pytest.mark.needs_root, pytest.mark.release, pytest.mark.kernel]

TOOL = "limits.py"

MIB = 1024 * 1024
NOBODY = 65534
LONG = 60
"""Seconds for which a tool holds what the host must see; it is ended long before."""

HOME_LIMITS = {"max_home_bytes": 16 * MIB}
OWN = {
    "eats": {"memory_mb": 256},
    "eats_and_goes_on": {"memory_mb": 256},
    "eats_freely": {"memory_mb": 3000},
    "eat_together": {"memory_mb": 200},
    "eats_without_first_threads": {"memory_mb": 200},
    "shares": {"memory_mb": 300},
    "forks": {"call_processes": 20},
    "starts_threads": {"call_processes": 20},
    "burns": {"cpu_s": 1},
    **dict.fromkeys(("fills", "litters", "digs", "empties"), HOME_LIMITS),
    # What a process that stays holds counts in the next call, also while it is ended for that.
    **{name: {**HOME_LIMITS, "worker_reuse": "call"} for name in ("hides", "hides_well")},
    "limits": {"cpu_s": 7},
}
# Ids of this process alone: the kernel counts what has one id, in whichever server of the machine.
FIRST_UID = 1_800_000_000 + os.getpid() % 100_000 * 1000
SETTINGS = {
    "call_memory_mb": 300,
    "user_memory_mb": 1000,
    "user_processes": 100,
    "max_home_files": 200,
    "open_files": 100,
    "max_artifact_bytes": 30 * MIB,
    "max_payload_bytes": 1_000_000,
    "uid_range": f"{FIRST_UID}-{FIRST_UID + 999}",
    "tools": OWN,
}


@dataclass
class Driver:
    """A process that holds a toolset in one tier, and answers calls as they come."""

    process: "subprocess.Popen[str]"
    user: str
    results: dict[int, Any] = field(default_factory=dict)
    number: int = 0

    def begin(self, tool: str, /, *, home: str = "", **arguments: Any) -> int:
        assert self.process.stdin is not None
        self.number += 1
        call = [self.number, f"{self.user}{home}", tool, arguments]
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()
        return self.number

    def result(self, number: int) -> Any:
        assert self.process.stdout is not None
        while number not in self.results:
            line = self.process.stdout.readline()
            assert line, "the toolset has ended"
            answered, value = json.loads(line)
            self.results[answered] = value
        return self.results.pop(number)

    def ask(self, tool: str, /, *, home: str = "", **arguments: Any) -> Any:
        return self.result(self.begin(tool, home=home, **arguments))


@contextmanager
def driving(
    anybody: tuple[Path, Path], *wrapper: str, is_root: bool = True, **settings: Any
) -> Iterator[Driver]:
    python, tool_file = anybody
    folder = Path(tempfile.mkdtemp(prefix="toolcell-limit-", dir="/var/tmp"))
    if not is_root:
        os.chown(folder, NOBODY, NOBODY)
        wrapper = (*wrapper, "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    user = f"t-{uuid.uuid4().hex[:12]}"
    wanted = json.dumps({"unguarded": False, **SETTINGS, **settings})
    command = [*wrapper, python, ROOT / "tests/programs/limits_driver.py", folder, tool_file, wanted]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "tests")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        list(map(str, command)), stdin=pipe, stdout=pipe, env=environment, text=True
    ) as process:
        yield Driver(process, user)
    shutil.rmtree(folder)
    for home in Path("/tmp").glob(f"{user}*"):
        shutil.rmtree(home, ignore_errors=True)


PLAIN = ["process", "user", "namespace", "namespace, no root"]


@pytest.fixture(scope="module", params=["process, no guard", *PLAIN])
def driver(request: pytest.FixtureRequest, anybody: tuple[Path, Path]) -> Iterator[Driver]:
    with as_named(anybody, request.param) as made:
        yield made


@contextmanager
def as_named(anybody: tuple[Path, Path], name: str, *wrapper: str, **settings: Any) -> Iterator[Driver]:
    """Hold a driver in a tier, by a name such as "namespace, no root"."""
    tier, _, without = name.partition(", no ")
    settings = {"isolation": tier, "unguarded": without == "guard", **settings}
    with driving(anybody, *wrapper, is_root=without != "root", **settings) as made:
        yield made


def reached(value: Any) -> tuple[str, str, int, str]:
    """Return code, limit, value and setting of an error that names a limit."""
    assert value["meta_data"].get("is_error"), value
    facts = value["meta_data"]["details"]
    assert facts["setting"] in facts["suggestion"]
    return value["meta_data"]["error_code"], facts["limit"], facts["value"], facts["setting"]


Expected = tuple[str, str, int, str]
MEMORY = ("E_MEMORY", "memory_bytes", 256 * MIB, "memory_mb")
TOGETHER = ("E_MEMORY", "call_memory_bytes", 300 * MIB, "call_memory_mb")
TASKS = ("E_RESOURCE_LIMIT", "call_processes", 20, "call_processes")
CPU = ("E_RESOURCE_LIMIT", "cpu_s", 1, "cpu_s")
FILE = ("E_FILE_TOO_LARGE", "file_bytes", 30 * MIB, "max_artifact_bytes")
HOME = ("E_QUOTA", "home_bytes", 16 * MIB, "max_home_bytes")
ENTRIES = ("E_QUOTA", "home_entries", 200, "max_home_files")
ACTS = [
    ("eats", {"mib": 200}, {"mib": 400}, MEMORY),
    ("eat_together", {"mib": 60, "children": 2}, {"mib": 100, "children": 4}, TOGETHER),
    ("eats_without_first_threads", {"mib": 60, "children": 2}, {"mib": 100, "children": 4}, TOGETHER),
    ("shares", {"mib": 180, "children": 3}, {"mib": 400, "children": 0}, TOGETHER),
    ("forks", {"count": 18}, {"count": 40}, TASKS),
    ("starts_threads", {"count": 15}, {"count": 40}, TASKS),
    ("opens", {"count": 50}, {"count": 150}, ("E_RESOURCE_LIMIT", "open_files", 100, "open_files")),
    ("burns", {"seconds": 0.5}, {"seconds": 5}, CPU),
    ("writes", {"mib": 30}, {"mib": 31}, FILE),
    ("dies_of_writing", {"mib": 30}, {"mib": 31}, FILE),
    ("fills", {"mib": 8}, {"mib": 24, "seconds": LONG}, HOME),
    ("hides", {"mib": 8}, {"mib": 24}, HOME),
    ("litters", {"count": 100}, {"count": 300}, ENTRIES),
    ("litters", {"count": 100, "closed": True}, {"count": 300, "closed": True}, ENTRIES),
    ("digs", {"depth": 10}, {"depth": 25}, ENTRIES),
    (
        "answers",
        {"size": 400_000},
        {"size": 1_100_000},
        ("E_INVALID_RESULT", "frame_bytes", 1_000_000, "max_payload_bytes"),
    ),
]
# What takes seconds of a processor, and is the same in every tier.
COSTLY = [("burns", {"seconds": 0.5, "ignoring": True}, {"seconds": 5, "ignoring": True}, CPU)]
HOLDS = {
    "eat_together",
    "eats_without_first_threads",
    "shares",
    "forks",
    "starts_threads",
    "hides",
    "litters",
    "digs",
}


@pytest.mark.parametrize(("tool", "below", "above", "expected"), ACTS)
def test_call_over_limit_ends_with_limit_in_error(
    driver: Driver, tool: str, below: dict[str, Any], above: dict[str, Any], expected: Expected
) -> None:
    assert_limited(driver, tool, below, above, expected)


@pytest.mark.parametrize("driver", ["process"], indirect=True)
@pytest.mark.parametrize(("tool", "below", "above", "expected"), COSTLY)
def test_limit_signal_ignored_reports_same_limit(
    driver: Driver, tool: str, below: dict[str, Any], above: dict[str, Any], expected: Expected
) -> None:
    assert_limited(driver, tool, below, above, expected)


def assert_limited(
    driver: Driver, tool: str, below: dict[str, Any], above: dict[str, Any], expected: Expected
) -> None:
    short, long = ({"seconds": 0.2}, {"seconds": LONG}) if tool in HOLDS else ({}, {})
    # What lies in a folder that cannot be listed cannot be removed before the next test either.
    home = "-closed" if below.get("closed") else ""

    enough = driver.ask(tool, home=home, **below, **short)
    emptied = driver.ask("empties")
    too_much = driver.ask(tool, home=home, **above, **long)

    assert "is_error" not in enough.get("meta_data", {}), enough
    assert emptied == {"results": "emptied"}
    assert reached(too_much) == expected
    if expected is FILE and tool == "writes":
        # The kernel has let the file grow up to the limit.
        assert too_much["meta_data"]["details"]["file_size_bytes"] == 30 * MIB
    assert driver.ask("fine") == {"results": "fine"}


@pytest.fixture(scope="module", params=PLAIN)
def unwatched(request: pytest.FixtureRequest, anybody: tuple[Path, Path]) -> Iterator[Driver]:
    """A driver that looks at no call while it lasts."""
    with as_named(anybody, request.param, unwatched=True) as made:
        yield made


# Over before anybody looks.
BURSTS = [
    ("forks", {"count": 18, "seconds": 0}, {"count": 40, "seconds": 0}, TASKS),
    ("fills", {"mib": 8}, {"mib": 24}, HOME),
    ("litters", {"count": 100, "seconds": 0}, {"count": 300, "seconds": 0}, ENTRIES),
]


@pytest.mark.parametrize(("tool", "below", "above", "expected"), BURSTS)
def test_call_ending_before_sample_measured_at_end(
    unwatched: Driver, tool: str, below: dict[str, Any], above: dict[str, Any], expected: Expected
) -> None:
    enough = unwatched.ask(tool, **below)
    emptied = unwatched.ask("empties")
    too_much = unwatched.ask(tool, **above)
    left = unwatched.ask("counts")

    assert "is_error" not in enough.get("meta_data", {}), enough
    assert emptied == {"results": "emptied"}
    assert reached(too_much) == expected
    assert left == {"results": 0}


@pytest.fixture(scope="module", params=PLAIN)
def on_a_disk_of_its_own(request: pytest.FixtureRequest, anybody: tuple[Path, Path]) -> Iterator[Driver]:
    """A driver whose homes share their disk with nobody, so that nobody else fills it."""
    homes = Path(tempfile.mkdtemp(prefix="toolcell-homes-", dir="/var/tmp"))
    small = f'mount -t tmpfs -o size=64m,mode=1777 none {homes} && exec "$@"'
    own = ("unshare", "--mount", "sh", "-c", small, "sh")
    with as_named(anybody, request.param, *own, homes=str(homes)) as made:
        yield made
    homes.rmdir()


@pytest.mark.parametrize("way", ["a second thread", "a socket", "a socket in a socket", "part of a map"])
def test_file_counted_wherever_call_hides_it(on_a_disk_of_its_own: Driver, way: str) -> None:
    enough = on_a_disk_of_its_own.ask("hides_well", way=way, mib=8, seconds=0.5)
    # The disk may get back what the call before had only now, which hides as much of this one.
    too_much = on_a_disk_of_its_own.ask("hides_well", way=way, mib=40, seconds=LONG)

    assert "is_error" not in enough.get("meta_data", {}), enough
    assert reached(too_much) == HOME


def test_unlinked_file_counted_as_far_as_mapped(on_a_disk_of_its_own: Driver) -> None:
    # Beside a map, what the disk has lost counts for every user: so no one else may write on it.
    enough = on_a_disk_of_its_own.ask("hides", mib=8, mapped=True, seconds=0.5)
    too_much = on_a_disk_of_its_own.ask("hides", mib=40, mapped=True, seconds=LONG)

    assert "is_error" not in enough.get("meta_data", {}), enough
    assert reached(too_much) == HOME


def test_tool_continuing_after_limit_keeps_result(driver: Driver) -> None:
    assert driver.ask("eats_and_goes_on", mib=100) == {"results": "100"}
    assert driver.ask("eats_and_goes_on", mib=400) == {"results": "without"}


def test_error_resembling_limit_reported_as_itself(driver: Driver) -> None:
    value = driver.ask("reads_nothing")

    assert value["meta_data"]["error_code"] == "E_TOOL"
    assert value["meta_data"]["details"]["exception_type"] == "BlockingIOError"


def test_tool_limits_apply_beside_those_of_others(driver: Driver) -> None:
    assert driver.ask("limits")["results"] == {"CPU": 7, "FSIZE": 30 * MIB, "NOFILE": 100}


def test_endless_output_keeps_its_end(driver: Driver) -> None:
    value = driver.ask("prints_and_dies", size=2 * MIB)

    output = value["meta_data"]["details"]["output"]
    assert value["meta_data"]["error_code"] == "E_CRASHED"
    assert (len(output), output[-4:]) == (4000, "xend")


@pytest.mark.parametrize("driver", ["user", "namespace", "namespace, no root"], indirect=True)
def test_process_count_of_user_bounded_by_kernel(driver: Driver) -> None:
    enough = driver.ask("forks_freely", count=40, seconds=0)
    too_many = driver.ask("forks_freely", count=150, seconds=LONG)

    assert enough == {"results": "forked"}
    assert reached(too_many) == ("E_RESOURCE_LIMIT", "processes", 100, "user_processes")
    assert driver.ask("fine") == {"results": "fine"}


@pytest.mark.parametrize("driver", ["namespace"], indirect=True)
def test_memory_of_user_bounded_by_control_group(driver: Driver) -> None:
    assert places(), "this needs control groups of memory and processes that root can make, here as anywhere"

    enough = driver.ask("eats_freely", mib=100)
    too_much = driver.ask("eats_freely", mib=1500)

    assert enough == {"results": 100}
    assert reached(too_much) == ("E_MEMORY", "total_memory_bytes", 1000 * MIB, "user_memory_mb")
    assert driver.ask("fine") == {"results": "fine"}


def test_full_home_can_be_emptied_but_not_filled_further(driver: Driver) -> None:
    # No call was seen at it: the limit of another tool is the wider one.
    filled = driver.ask("overfills", home="-full", mib=24)
    more = driver.ask("fills", home="-full", mib=1, name="more")
    emptied = driver.ask("empties", home="-full")
    again = driver.ask("fills", home="-full", mib=1, name="more")

    assert filled == {"results": "filled"}
    assert reached(more) == HOME
    assert emptied == {"results": "emptied"}
    assert again == {"results": "filled"}


def test_full_disk_reported_as_full_disk(anybody: tuple[Path, Path]) -> None:
    homes = Path(tempfile.mkdtemp(prefix="toolcell-homes-", dir="/var/tmp"))
    small = f'mount -t tmpfs -o size=8m,mode=1777 none {homes} && exec "$@"'
    with driving(anybody, "unshare", "--mount", "sh", "-c", small, "sh", homes=str(homes)) as driver:
        enough = driver.ask("fills_disk", mib=4)
        too_much = driver.ask("fills_disk", mib=12)
    homes.rmdir()

    assert enough == {"results": "filled"}
    assert (too_much["meta_data"]["error_code"], too_much["meta_data"]["details"]["limit"]) == (
        "E_QUOTA",
        "disk",
    )


@pytest.mark.parametrize("driver", ["process", "user"], indirect=True)
def test_descriptors_in_flight_leave_other_users_their_workers(driver: Driver) -> None:
    hostile = driver.begin("sends_descriptors", seconds=3)
    honest = [driver.ask("fine", home=f"-{number}") for number in range(3)]
    sent = driver.result(hostile)

    assert honest == [{"results": "fine"}] * 3
    assert sent == {"results": "ETOOMANYREFS"}


# What each row of the table in docs/isolation.md is driven with: an act beyond the limit.
BEYOND: dict[str, tuple[str, dict[str, Any]]] = {
    "memory_mb": ("eats", {"mib": 400}),
    "call_memory_mb": ("eat_together", {"mib": 100, "children": 4, "seconds": 0.5}),
    "user_memory_mb": ("eats_freely", {"mib": 1100}),
    "cpu_s": ("burns", {"seconds": 5}),
    "call_processes": ("forks", {"count": 40, "seconds": 0.5}),
    "user_processes": ("forks_freely", {"count": 150, "seconds": 0.5}),
    "open_files": ("opens", {"count": 150}),
    "max_artifact_bytes": ("writes", {"mib": 31}),
    "max_home_bytes": ("fills", {"mib": 24}),
    "max_home_files": ("litters", {"count": 300, "seconds": 0}),
    "max_payload_bytes": ("answers", {"size": 1_100_000}),
}


def who_bounds_what() -> dict[str, dict[str, str]]:
    """Read the table of the document: by setting and tier, who bounds it."""
    text = (ROOT / "docs/isolation.md").read_text().partition("### Who bounds what")[2].partition("\n##")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    tiers = [toolset.replace("`", "") for toolset in rows[0][1:]]
    return {
        setting.strip("`"): dict(
            zip(tiers, (re.split("[:,]", toolset)[0] for toolset in toolsets), strict=True)
        )
        for setting, *toolsets in rows[1:]
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tier", PLAIN)
def test_limits_table_states_what_enforces_each(anybody: tuple[Path, Path], tier: str) -> None:
    documented = {setting: tiers[tier] for setting, tiers in who_bounds_what().items()}
    holds: dict[str, bool] = {}

    # Nobody looks: whatever still ends with its limit, the kernel or the host has bounded.
    with as_named(anybody, tier, unseen=True) as driver:
        for setting, (tool, act) in BEYOND.items():
            value = driver.ask(tool, home=f"-{setting}", **act)
            facts = value.get("meta_data", {}).get("details", {}) if isinstance(value, dict) else {}
            holds[setting] = facts.get("setting") == setting
            assert holds[setting] or "is_error" not in value.get("meta_data", {}), value

    assert documented.keys() == BEYOND.keys()
    assert holds == {setting: who in ("kernel", "host") for setting, who in documented.items()}
    # Whatever the watch bounds is in this list, which is driven in each tier with the watch.
    watched = {expected[3] for *_, expected in ACTS} - {name for name in holds if holds[name]}
    assert watched == {setting for setting, who in documented.items() if who == "watch"}


def test_each_limit_error_names_its_setting() -> None:
    names = {facts.setting for facts in LIMITS.values()}

    assert len(names) == len(LIMITS)
    messages = {limit: over_limit(Reached(limit=limit, value=12345, used=67890)) for limit in LIMITS}
    assert [limit for limit, error in messages.items() if "12345" not in error.message] == ["file_bytes"]
    assert all(LIMITS[limit].setting in error.details["suggestion"] for limit, error in messages.items())


@pytest.mark.parametrize("tool", ["hides", "shares"])
def test_hidden_usage_found_without_ptrace_right(anybody: tuple[Path, Path], tool: str) -> None:
    expected = {"hides": HOME, "shares": TOGETHER}[tool]
    below, above = {"hides": (8, 24), "shares": (180, 400)}[tool]
    more: dict[str, Any] = {"children": 3} if tool == "shares" else {}
    bound = "-sys_ptrace,-sys_admin,-sys_resource"
    weak = ("setpriv", "--bounding-set", bound, "--inh-caps", bound)

    with driving(anybody, *weak, isolation="user") as driver:
        enough = driver.ask(tool, mib=below, seconds=0.3, **more)
        too_much = driver.ask(tool, mib=above, seconds=LONG, **more)

    assert "is_error" not in enough.get("meta_data", {}), enough
    assert reached(too_much) == expected
