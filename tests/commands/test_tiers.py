"""The tiers that give each user a user id, and a world of their own, as users of the command meet them."""

import base64
import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from process_tree import children, descendants
from support import ROOT, Ran, alive, held, until
from tools.acts import WAYS_TO_STAY

from runner.homes.scratch import sweep
from runner.settings.settings import Settings
from sandbox.layers.cgroup import places

pytestmark = [pytest.mark.needs_root, pytest.mark.kernel]

TOOL = "tiers.py"

NOBODY = 65534
TIERS = ("user", "namespace")


@dataclass(frozen=True)
class Driver:
    """A process that holds a toolset in one tier, and answers one call at a time."""

    process: "subprocess.Popen[str]"
    folder: Path
    tier: str
    user: str
    other: str

    def begin(self, user: str, tool: str, /, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([user, tool, arguments]) + "\n")
        self.process.stdin.flush()

    def ask(self, user: str, tool: str, /, **arguments: Any) -> Any:
        self.begin(user, tool, **arguments)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the toolset in tier {self.tier} has ended"
        return json.loads(line)

    def tries(self, user: str, *acts: str) -> list[Any]:
        """Try acts, each written as its name and its path; return what came of them."""
        results: list[Any] = self.ask(user, "tries", acts=[act.split(" ") for act in acts])["results"]
        return results


@contextlib.contextmanager
def driving(
    anybody: tuple[Path, Path],
    tier: str,
    *settings: str,
    without: str | None = None,
    beside: Driver | None = None,
) -> Iterator[Driver]:
    """Run one with settings, `without` a capability, or with the folders of another that runs meanwhile."""
    python, tool_file = anybody
    folder = (
        Path(tempfile.mkdtemp(prefix="toolcell-tier-", dir="/var/tmp")) if beside is None else beside.folder
    )
    names = [f"t-{uuid.uuid4().hex[:12]}" for _ in range(2)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "tests")}
    command = [python, ROOT / "tests/programs/tier_driver.py", tier, folder, tool_file, *settings]
    if without is not None:
        # What is not in the bounding set is not in what comes after an exec.
        command = ["setpriv", f"--bounding-set=-{without}", *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        list(map(str, command)), stdin=pipe, stdout=pipe, env=environment, text=True
    ) as process:
        yield Driver(process, folder, tier, *names)
    # For the test that kills the host.
    sweep(Path("/tmp"), Settings().uids)
    if beside is None:
        shutil.rmtree(folder)
    for name in names:
        shutil.rmtree(f"/tmp/{name}", ignore_errors=True)


@pytest.fixture(scope="module")
def process(anybody: tuple[Path, Path]) -> Iterator[Driver]:
    """The control: a toolset in the tier that gives users neither."""
    with driving(anybody, "process") as driver:
        yield driver


@pytest.fixture(scope="module")
def by_uid(anybody: tuple[Path, Path]) -> Iterator[Driver]:
    with driving(anybody, "user") as driver:
        yield driver


@pytest.fixture(scope="module")
def by_namespace(anybody: tuple[Path, Path]) -> Iterator[Driver]:
    with driving(anybody, "namespace") as driver:
        yield driver


@pytest.fixture(params=["by_uid", "by_namespace"])
def driver(request: pytest.FixtureRequest) -> Driver:
    found: Driver = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def run(anybody: tuple[Path, Path], tmp_path: Path) -> Callable[..., Ran]:
    """Run `runner call` with a tool file, by default ours, and a state folder of this test."""

    def run_call(tier: str, tool: str, *, file: Path = anybody[1], uid: int = 0, user: str = "nemo") -> Ran:
        options = ["--isolation", tier, "--user", user, "--json"]
        ended = subprocess.run(
            [anybody[0], "-m", "runner.cli.app", "call", file, tool, *options],
            env={
                "PATH": "/usr/bin:/bin",
                "RUNNER_STATE_DIR": str(tmp_path / "state"),
                "RUNNER_STORE": (tmp_path / "store").as_uri(),
                "RUNNER_SESSION_IDLE_S": "600",
            },
            cwd="/",
            capture_output=True,
            text=True,
            timeout=100,
            user=uid,
            group=uid,
            extra_groups=[],
        )
        return Ran(ended.returncode, ended.stdout, ended.stderr)

    return run_call


def uid_of(user: str) -> int:
    return Path(f"/tmp/{user}").stat().st_uid


def processes_of(uid: int) -> list[int]:
    """Return the processes that run with a user id."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        if int(facts["Uid"].split()[0]) == uid and facts["State"].split()[0] not in "ZX":
            found.append(int(folder.name))
    return found


def leads_no_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) != pid
    except ProcessLookupError:
        return False


def is_left(group: Path) -> bool:
    """Return whether a control group has outlived the forkserver that made it."""
    maker = group.name.removeprefix("toolcell-").partition("-")[0]
    return not Path("/proc", maker).exists()


def zygote_of(home: Path, forkserver: int) -> int:
    """Return the zygote from which the calls come that have marks in a home."""
    inode = (home / "plain").stat().st_ino
    [found] = [zygote for zygote in children(forkserver) if inode in locked_below(zygote)]
    return found


def locked_below(pid: int) -> set[int]:
    """Return the inodes of the files on which a process below has a lock."""
    below = set(descendants(pid))
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    fields = [line for line in lines if "FLOCK" in line and "->" not in line]
    return {int(line[5].split(":")[2]) for line in fields if int(line[4]) in below}


# Files.


@pytest.mark.release
@pytest.mark.parametrize("tier", ["process", *TIERS])
def test_homes_for_all_tool_without_username_uses_own_home(anybody: tuple[Path, Path], tier: str) -> None:
    with driving(anybody, tier) as usual:
        refused = usual.ask(usual.user, "keeps", text="not kept")
    with driving(anybody, tier, "homes_for=all") as driver:
        results = [
            driver.ask(name, "keeps", text=f"of {name}")["results"] for name in (driver.user, driver.other)
        ]
        owners = {uid_of(name) for name in (driver.user, driver.other)}
        named = [driver.ask(driver.user, "who")["results"]["uid"][0], results[0]["uid"]]
        across = driver.tries(driver.user, f"read /tmp/{driver.other}/kept.txt")

    assert refused["meta_data"]["error_code"] == "E_INVALID_PATH"
    assert [answer["text"] for answer in results] == [f"of {driver.user}", f"of {driver.other}"]
    assert [answer["folder"] for answer in results] == [f"/tmp/{driver.user}", f"/tmp/{driver.other}"]
    assert across in (["EACCES"], ["ENOENT"])
    assert named[0] == named[1]
    if tier == "process":
        assert owners == {os.geteuid()}
    else:
        assert owners == {answer["uid"] for answer in results}
        assert len(owners) == 2
        assert 0 not in owners


def test_user_ids_tier_shows_only_top_of_other_homes(by_uid: Driver) -> None:
    by_uid.tries(by_uid.other, f"write /tmp/{by_uid.other}/file.txt")
    names = (by_uid.user, by_uid.other, f"{by_uid.other}/file.txt", f"{by_uid.other}/none.txt")

    own, top, inside, nothing = by_uid.tries(by_uid.user, *(f"stat /tmp/{name}" for name in names))

    assert [stat.S_IMODE(own), stat.S_IMODE(top)] == [0o700, 0o700]
    assert [inside, nothing] == ["EACCES", "EACCES"]


def test_namespace_tier_hides_other_homes_and_runner(by_namespace: Driver, tmp_path: Path) -> None:
    by_namespace.tries(by_namespace.other, f"write /tmp/{by_namespace.other}/file.txt")
    other = Path("/tmp", by_namespace.other)
    shared = Path("/dev/shm", by_namespace.other)
    shared.touch()
    there = [other, other / "file.txt", by_namespace.folder / "state" / "uids.json", shared, tmp_path]
    acts = [f"stat {path}" for path in there]

    answers = by_namespace.tries(by_namespace.user, *acts)
    own = by_namespace.tries(by_namespace.user, f"stat /tmp/{by_namespace.user}")
    was_there = [path.exists() for path in there]
    shared.unlink()

    assert answers == ["ENOENT"] * 5
    assert stat.S_IMODE(own[0]) == 0o700
    assert was_there == [True] * 5


def test_files_go_in_and_out(driver: Driver) -> None:
    driver.ask(driver.user, "put", name="in.txt")

    value = driver.ask(driver.user, "passes_on", filename="in.txt")

    assert value["results"] == "passed"
    contents = [base64.b64decode(artifact["b64"]) for artifact in value["artifacts"]]
    assert contents == [b"given", b"given, passed on"]


@pytest.mark.release
def test_home_kept_between_tiers(run: Callable[..., Ran], process: Driver) -> None:
    user = f"{process.user}-k"
    owners, results = [], []
    for tier in ("process", "user", "namespace", "process"):
        results.append(run(tier, "adds", user=user).json["results"])
        owners.append(uid_of(user))
    shutil.rmtree(f"/tmp/{user}")

    assert results == [1, 2, 3, 4]
    assert owners[0] == owners[3] == os.geteuid()
    assert owners[1] == owners[2] != os.geteuid()


# Processes.


def test_user_ids_are_unique_per_user(driver: Driver) -> None:
    first, second = (driver.ask(user, "who")["results"] for user in (driver.user, driver.other))

    assert first["uid"] == first["gid"] == [uid_of(driver.user)] * 3
    assert second["uid"] == second["gid"] == [uid_of(driver.other)] * 3
    assert first["groups"] == []
    assert first["uid"] != second["uid"]
    assert first["uid"][0] in range(1_900_000_000, 1_900_065_536)


def test_nothing_survives_call(driver: Driver) -> None:
    home = Path(f"/tmp/{driver.user}")

    assert driver.ask(driver.user, "leaves") == {"results": "left"}

    assert {way for way in WAYS_TO_STAY if (home / way).exists()} == set(WAYS_TO_STAY)
    assert [way for way in WAYS_TO_STAY if held(home / way)] == []
    # The zygote and its parked workers remain, and nothing that sleeps for long.
    # A new worker leads its group only a moment after it was forked.
    assert until(lambda: not any(map(leads_no_group, processes_of(uid_of(driver.user)))))
    assert processes_of(uid_of(driver.user))


@pytest.mark.parametrize("tier", ["process", *TIERS])
@pytest.mark.parametrize("victim", ["host", "forkserver", "zygote"])
def test_nothing_survives_host_or_zygote(anybody: tuple[Path, Path], tier: str, victim: str) -> None:
    with driving(anybody, tier) as driver:
        driver.begin(driver.user, "leaves", hang=True)
        home = Path(f"/tmp/{driver.user}")
        assert until((home / "left").exists)
        marks = [home / way for way in WAYS_TO_STAY]
        held_before = [held(mark) for mark in marks]
        below = descendants(driver.process.pid)
        lineage = {"host": driver.process.pid, "forkserver": below[0], "zygote": zygote_of(home, below[0])}
        # The host, the forkserver and the zygote of nobody live on where it is another that dies.
        dying = below if victim == "host" else descendants(lineage[victim])

        os.kill(lineage[victim], signal.SIGKILL)

        assert held_before == [True] * len(marks)
        assert len(dying) >= len(marks)
        # A second on a machine that has nothing else to do.
        assert until(lambda: not any(map(held, marks)) and not any(map(alive, dying)))


@pytest.mark.release
def test_homeless_calls_share_user_id_with_no_other_user(driver: Driver, anybody: tuple[Path, Path]) -> None:
    with driving(anybody, driver.tier, beside=driver) as second:
        # Each server's first user is served by the processes that have listed its tools.
        ids = [
            each.ask(user, "number")["results"]
            for each in (driver, second)
            for user in (each.user, each.other)
        ]

    assert len(set(ids)) == len(ids)
    assert 0 not in ids


@pytest.mark.release
def test_processes_limited_per_user(driver: Driver, process: Driver) -> None:
    refused = driver.ask(driver.user, "forks", most=80)["results"]
    allowed = process.ask(process.user, "forks", most=80)["results"]

    assert 10 < refused < 60
    assert allowed == 80


def test_memory_limited_in_sum_with_control_groups(by_namespace: Driver, process: Driver) -> None:
    assert places(), "mount control groups with the controllers memory and pids, so that one can be made"

    refused = by_namespace.ask(by_namespace.user, "fills", children=4, mib=150)
    allowed = process.ask(process.user, "fills", children=4, mib=150)

    assert allowed == {"results": 4}
    assert refused["results"] != 4
    # Those of hosts that other tests have killed are theirs to look at.
    own = f"toolcell-{by_namespace.process.pid}-*"
    assert [group for place in places() for group in place.folder.glob(own) if is_left(group)] == []


def test_control_group_kill_reports_which_limit(by_namespace: Driver, process: Driver) -> None:
    assert places(), "mount control groups with the controllers memory and pids, so that one can be made"

    refused = by_namespace.ask(by_namespace.user, "touches", mib=600)
    allowed = process.ask(process.user, "touches", mib=600)
    after = by_namespace.ask(by_namespace.user, "touches", mib=50)

    assert allowed == {"results": 600}
    assert refused["meta_data"]["error_code"] == "E_MEMORY"
    assert refused["meta_data"]["details"]["setting"] == "user_memory_mb"
    assert after == {"results": 50}


@pytest.mark.release
def test_links_work_without_ptrace_right(anybody: tuple[Path, Path], tmp_path: Path) -> None:
    python, tools = anybody[0], anybody[1].parent
    results = {}
    for tier in TIERS:
        with driving((python, tools / "links.py"), tier, without="sys_ptrace") as driver:
            driver.ask(driver.user, "put", name="in.txt")
            results[tier] = driver.ask(driver.user, "fetch", file_names=["in.txt"])

    assert results == {tier: {"results": {"texts": ["given"]}} for tier in TIERS}


# What is said.


def test_unavailable_tier_refused(run: Callable[..., Ran], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    ran = run("user", "fine", uid=NOBODY)

    assert (ran.status, json.loads(ran.out)["meta_data"]["error_code"]) == (5, "E_ISOLATION")
    assert "only root can" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.release
def test_closed_tool_file_is_named(
    run: Callable[..., Ran], anybody: tuple[Path, Path], tmp_path: Path
) -> None:
    file = tmp_path / "tiers.py"
    shutil.copy(anybody[1], file)
    shutil.copy(anybody[1].parent / "acts.py", tmp_path)

    in_closed_folder = run("user", "fine", file=file)
    in_namespace = run("namespace", "fine", file=file)
    file.chmod(0o600)
    closed = run("namespace", "fine", file=file)
    by_default = run("auto", "fine", file=file)

    assert in_namespace.json == {"results": "fine"}
    assert (in_closed_folder.status, closed.status) == (5, 5)
    assert "is closed to other users" in in_closed_folder.err
    assert f"chmod o+r {file}" in closed.err
    # Nobody asked for a tier in which it cannot be read.
    assert by_default.json == {"results": "fine"}
    assert f"chmod o+r {file}" in by_default.err


@pytest.mark.release
def test_closed_module_beside_tool_file_is_named(
    run: Callable[..., Ran], anybody: tuple[Path, Path], tmp_path: Path
) -> None:
    for name in ("tiers.py", "acts.py"):
        shutil.copy(anybody[1].parent / name, tmp_path)
    (tmp_path / "acts.py").chmod(0o600)

    ran = run("namespace", "fine", file=tmp_path / "tiers.py")

    assert ran.status == 5
    assert f"chmod o+r {tmp_path}/acts.py" in ran.err


def test_strongest_tier_is_default(run: Callable[..., Ran]) -> None:
    user = f"t-{uuid.uuid4().hex[:12]}"

    ran = run("auto", "who", user=user)
    shutil.rmtree(f"/tmp/{user}")

    assert ran.json["results"]["parent"] == 1


@pytest.mark.parametrize("tier", TIERS)
def test_doctor_names_tier_in_force(anybody: tuple[Path, Path], tmp_path: Path, tier: str) -> None:
    command = [str(anybody[0]), "-m", "runner.cli.app", "doctor", "--json", "--isolation", tier]
    folders = {"RUNNER_STATE_DIR": f"{tmp_path}/s", "RUNNER_STORE": f"file://{tmp_path}/t"}

    ended = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", **folders}, capture_output=True, timeout=180
    )

    assert json.loads(ended.stdout)["tier"] == tier
