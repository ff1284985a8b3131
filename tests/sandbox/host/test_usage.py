"""Measurements of a call's processes, memory and home: real processes, real files."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.host import usage as usage_module
from sandbox.host.home_usage import OpenFiles, measure, open_files
from sandbox.host.usage import memory_of, oom_kills, processes_of, read_process, socket_bytes

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[3]
MIB = 1024 * 1024
NOBODY = 65534

FAMILY = """
import ctypes, json, os, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
def stay():
    sys.stdin.read()
    os._exit(0)
def lead(act):
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        act()
        stay()
    return pid
read, write = os.pipe()
def leave_two():
    hear, say = os.pipe()
    child = os.fork()
    if child == 0:
        stay()
    between = os.fork()
    if between == 0:
        if os.fork() == 0:
            while os.getppid() != zygote:
                time.sleep(0.001)
            os.write(say, str(os.getpid()).encode())
            stay()
        os._exit(0)
    os.waitpid(between, 0)
    os.write(write, json.dumps([child, int(os.read(hear, 100))]).encode())
zygote = os.getpid()
worker = lead(leave_two)
other = lead(lambda: None)
child, orphan = json.loads(os.read(read, 100))
print(json.dumps({"worker": worker, "other": other, "child": child, "orphan": orphan}), flush=True)
stay()
"""

SHARING = """
import mmap, os, sys
shared = mmap.mmap(-1, 64 << 20)
shared.write(b"x" * (64 << 20))
read, write = os.pipe()
child = os.fork()
if child == 0:
    hash(shared[:])
    os.write(write, b"x")
    sys.stdin.read()
    os._exit(0)
os.read(read, 1)
print(child, flush=True)
sys.stdin.read()
"""


@contextmanager
def running(code: str, *words: object, **options: object) -> Iterator[tuple[int, str]]:
    """Run Python code; yield its process id and the line that it says. It stays until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    with process:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline()


def test_call_processes_are_its_worker_descendants_and_orphans() -> None:
    with running(FAMILY) as (zygote, lines):
        family = json.loads(lines)

        found = set(processes_of(family["worker"], zygote))

    assert found == {family["worker"], family["child"], family["orphan"]}
    assert family["other"] not in found


def test_ended_process_reads_as_none() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert read_process(ended.pid) is None
    assert read_process(os.getpid()) is not None


def test_the_numbers_of_a_process_are_those_of_the_kernel() -> None:
    start = "import threading; b = b'x' * (32 << 20); threading.Thread(target=input).start()"
    code = f"{start}; print(len(b), flush=True)"
    with running(code) as (pid, _):
        process = read_process(pid)

    assert process is not None
    assert (process.pid, process.tasks) == (pid, 2)
    assert process.resident_bytes > process.private_bytes > 32 * MIB
    assert process.cpu_s > 0


PAGE_TABLES = """
import mmap, sys
MAP_NORESERVE = 0x4000
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
sparse = mmap.mmap(-1, 16 << 30, flags=flags, prot=mmap.PROT_READ)
sparse.madvise(mmap.MADV_NOHUGEPAGE)
print(sum(sparse[at] for at in range(0, 16 << 30, 2 << 20)), flush=True)
sys.stdin.read()
"""


def test_page_tables_count_as_memory_of_a_call() -> None:
    with running(PAGE_TABLES) as (pid, _):
        process = read_process(pid)
        assert process is not None
        memory = memory_of([process], interesting_bytes=0, zygote=os.getpid())

    assert min(process.table_bytes, process.private_bytes, memory) > 32 * MIB


SOCKETS = """
import os, socket, sys
pairs = [socket.socketpair() for _ in range(100)]
for each in (each for pair in pairs for each in pair):
    each.setblocking(False)
    while True:
        try:
            each.send(bytes(1 << 16))
        except BlockingIOError:
            break
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""


def test_buffers_of_sockets_count_as_memory_of_a_call() -> None:
    with running(SOCKETS) as (pid, child):
        both = [process for number in (pid, int(child)) if (process := read_process(number))]
        resident = sum(process.resident_bytes for process in both)
        alone, buffers = socket_bytes(both[:1]), socket_bytes(both)
        rough = memory_of(both, interesting_bytes=resident + buffers, zygote=os.getpid())
        exact = memory_of(both, interesting_bytes=0, zygote=os.getpid())

    assert 32 * MIB < alone == buffers
    assert rough == resident + buffers
    assert exact > buffers


UNNAMED = """
import os, sys, tempfile
unnamed = tempfile.TemporaryFile(dir=sys.argv[1])
unnamed.write(b"x" * (2 << 20))
unnamed.flush()
more = [os.dup(0) for _ in range(30)]
print(len(os.listdir("/proc/self/fd")) - 1, flush=True)
sys.stdin.read()
"""


def test_open_descriptors_and_unnamed_files_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, listed = tmp_path.stat().st_dev, list[str]()
    listdir = os.listdir

    def counting(path: str) -> list[str]:
        listed.append(path)
        return listdir(path)

    with running(UNNAMED, tmp_path) as (pid, descriptors):
        before = open_files(pid, None)
        monkeypatch.setattr("sandbox.host.home_usage.os.listdir", counting)
        found = open_files(pid, device)

    assert before == OpenFiles(descriptors=int(descriptors), unnamed_bytes=0)
    assert found == OpenFiles(descriptors=int(descriptors), unnamed_bytes=2 * MIB)
    assert listed == [f"/proc/{pid}/fd"]
    assert open_files(pid, device) == OpenFiles()


def test_memory_shared_by_two_processes_counts_once() -> None:
    with running(SHARING) as (pid, child):
        both = [process for number in (pid, int(child)) if (process := read_process(number))]

        exact = memory_of(both, interesting_bytes=0, zygote=os.getpid())
        rough = memory_of(both, interesting_bytes=10**12, zygote=os.getpid())

    assert 64 * MIB < exact < 120 * MIB
    assert rough > 128 * MIB


def test_shared_memory_counts_once_without_ptrace_right() -> None:
    assert os.geteuid() == 0, "this needs a process of another user id, which root alone can start"
    look = (
        "import sys; from sandbox.host.usage import *; "
        "both = [read_process(int(pid)) for pid in sys.argv[1:]]; "
        "print(memory_of(both, interesting_bytes=0, zygote=int(sys.argv[1])))"
    )
    without = "-sys_ptrace,-setuid,-setgid"
    weak = ["setpriv", "--bounding-set", without, "--inh-caps", without]
    code = f"import mmap, os, sys; os.setresgid(*[{NOBODY}] * 3); os.setresuid(*[{NOBODY}] * 3)\n{SHARING}"
    with running(code) as (pid, child):
        estimated = subprocess.run(
            [*weak, sys.executable, "-c", look, str(pid), child.strip()],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )

    assert 64 * MIB <= int(estimated.stdout) < 120 * MIB


def test_oom_kills_of_missing_group_is_zero() -> None:
    assert oom_kills(0) == 0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    (made / "folder").mkdir(parents=True)
    (made / "folder" / "file").write_bytes(os.urandom(MIB))
    os.link(made / "folder" / "file", made / "again")
    return made


def usage(home: Path, *, most: int = 1000, pids: tuple[int, ...] = ()) -> tuple[int, int]:
    fd = os.open(home, os.O_PATH)
    try:
        found = measure(fd, most_entries=most, processes=pids, origin=os.getpid())
    finally:
        os.close(fd)
    return found.entries, found.bytes // MIB


def test_a_home_is_measured_on_disk_and_a_file_of_two_names_once(home: Path) -> None:
    with (home / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)

    assert usage(home) == (4, 1)


def test_neither_links_nor_what_they_lead_to_are_measured(home: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(os.urandom(8 * MIB))
    (home / "out").symlink_to(tmp_path / "outside")
    (home / "up").symlink_to("..")

    assert usage(home) == (5, 1)


def test_measuring_ends_at_the_entry_limit(home: Path) -> None:
    for number in range(500):
        (home / "folder" / f"empty-{number}").touch()

    assert usage(home, most=1000)[0] == 503
    assert 100 < usage(home, most=100)[0] < 110


def test_folders_deeper_than_a_path_can_name_count_as_too_many(home: Path) -> None:
    def dig(levels: int) -> None:
        folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
        for _ in range(levels):
            os.mkdir("d" * 250, dir_fd=folder)
            inner = os.open("d" * 250, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = inner
        os.close(folder)

    dig(10)
    shallow = usage(home)[0]
    (home / ("d" * 250)).rename(home / "first")
    dig(20)

    assert shallow == 13
    assert usage(home)[0] > 1000


HOLDING = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.unlink(sys.argv[1])
os.write(descriptor, os.urandom(4 << 20))
if sys.argv[2] == "mapped":
    import ctypes
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap(None, ctypes.c_size_t(4 << 20), 1, 1, descriptor, ctypes.c_long(0))
    os.close(descriptor)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["open", "mapped"])
def test_a_file_without_a_name_counts_while_somebody_holds_it(home: Path, way: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(home / "hidden"), way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # By default a file without a name, in which pytest keeps what is written.
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        held, unasked = usage(home, pids=(process.pid,)), usage(home)

    assert held == (4, 5)
    assert unasked == (3, 1)
    assert usage(home, pids=(process.pid,)) == (3, 1)


def test_folder_unreadable_to_its_owner_is_listed(
    home: Path, unconfined: Callable[[Callable[[], object]], object]
) -> None:
    (home / "closed").mkdir()
    (home / "closed" / "file").write_bytes(os.urandom(MIB))
    (home / "closed").chmod(0o300)
    for path in (home, *home.rglob("*")):
        os.chown(path, NOBODY, NOBODY)

    def as_its_owner() -> object:
        home_fd = os.open(home, os.O_PATH)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        found = measure(home_fd, most_entries=1000)
        return [found.entries, found.bytes // MIB]

    assert unconfined(as_its_owner).value == [5, 2]  # type: ignore[attr-defined]


def group_of(folder: Path, most: str, used: str) -> tuple[tuple[str, str], ...]:
    (folder / "most").write_text(most)
    (folder / "used").write_text(used)
    return ((str(folder / "most"), str(folder / "used")), (str(folder / "missing"), str(folder / "missing")))


@pytest.mark.parametrize(
    ("most", "used", "spare"),
    [("1000\n", "900\n", True), ("1000\n", "901\n", False), ("max\n", "999999\n", True)],
)
def test_nearly_full_control_group_has_no_memory_to_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str, used: str, spare: bool
) -> None:
    monkeypatch.setattr(usage_module, "_GROUPS", group_of(tmp_path, most, used))

    assert usage_module.has_memory_to_spare() is spare


def test_nearly_full_machine_has_no_memory_to_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_module, "_GROUPS", ())
    (tmp_path / "meminfo").write_text("MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:  99 kB\n")
    today = usage_module.has_memory_to_spare()

    monkeypatch.setattr(usage_module, "_MEMINFO", str(tmp_path / "meminfo"))

    assert today
    assert not usage_module.has_memory_to_spare()
