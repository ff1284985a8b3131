"""A tool file whose tools take as much of something as they are told, and hold it."""

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import shutil
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("limits")

MIB = 1024 * 1024


def hold(seconds: float) -> None:
    """Stay as it is, long enough for an observer."""
    time.sleep(seconds)


def child(act: Callable[[], object]) -> int:
    """Do something in a process of its own, and stay there."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
            time.sleep(3600)
        finally:
            os._exit(0)
    return pid


@mcp.tool
def fine() -> str:
    """Answer."""
    return "fine"


@mcp.tool
def eats(mib: int) -> int:
    """Take memory of its own."""
    return len(bytearray(mib * MIB)) // MIB


@mcp.tool
def eats_and_goes_on(mib: int) -> str:
    """Take memory of its own, or do without."""
    try:
        return str(len(bytearray(mib * MIB)) // MIB)
    except MemoryError:
        return "without"


@mcp.tool
def eat_together(mib: int, children: int, seconds: float) -> str:
    """Take memory in several processes."""
    blocks = []
    for _ in range(children):
        child(lambda: blocks.append(bytearray(b"x") * (mib * MIB)))
    hold(seconds)
    return "ate"


@mcp.tool
def shares(mib: int, children: int, seconds: float) -> str:
    """Take memory once, and see it in several processes."""
    shared = mmap.mmap(-1, mib * MIB)
    for _ in range(mib):
        shared.write(b"x" * MIB)
    for _ in range(children):
        child(lambda: [hash(shared[start : start + MIB]) for start in range(0, mib * MIB, MIB)])
    hold(seconds)
    return "shared"


@mcp.tool
def forks(count: int, seconds: float) -> str:
    """Start processes."""
    for _ in range(count):
        child(lambda: None)
    hold(seconds)
    return "forked"


@mcp.tool
def starts_threads(count: int, seconds: float) -> str:
    """Start threads."""
    threading.stack_size(256 * 1024)
    for _ in range(count):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    hold(seconds)
    return "started"


@mcp.tool
def opens(count: int) -> int:
    """Open files."""
    return len([os.open("/dev/null", os.O_RDONLY) for _ in range(count)])


@mcp.tool
def reads_nothing() -> str:
    """Read from a pipe that has nothing to read yet, which is an error that limits have too."""
    read, _write = os.pipe()
    os.set_blocking(read, False)
    return os.read(read, 1).decode()


@mcp.tool
async def burns(seconds: float, ignoring: bool = False) -> str:
    """Use processor time, in the one thread that may say what signals do."""
    if ignoring:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while time.process_time() < seconds:
        pass
    return "burnt"


@mcp.tool
def writes(username: str, mib: int) -> str:
    """Write one file."""
    with Path(f"/tmp/{username}/long").open("wb") as file:
        for _ in range(mib):
            file.write(bytes(MIB))
    return "written"


@mcp.tool
async def dies_of_writing(username: str, mib: int) -> str:
    """Write one file, with the signal that Python ignores."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    return writes(username, mib)


@mcp.tool
def fills(username: str, mib: int, name: str = "part", seconds: float = 0) -> str:
    """Write many files, none of them long."""
    for number in range(mib):
        Path(f"/tmp/{username}/{name}-{number}").write_bytes(os.urandom(MIB))
    hold(seconds)
    return "filled"


@mcp.tool
def overfills(username: str, mib: int) -> str:
    """Write many files, with a limit of its own."""
    return fills(username, mib)


@mcp.tool
def fills_disk(username: str, mib: int) -> str:
    """Write many files where the home is."""
    for number in range(mib):
        Path(os.environ["HOME"], f"part-{number}").write_bytes(os.urandom(MIB))
    for path in Path(os.environ["HOME"]).glob("part-*"):
        path.unlink()
    return "filled"


@mcp.tool
def empties(username: str) -> str:
    """Remove what lies in the home."""
    for path in Path(os.environ["HOME"]).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return "emptied"


@mcp.tool
def counts(username: str) -> int:
    """Return the number of entries in the home, beside what is always made there."""
    return len(set(os.listdir(os.environ["HOME"])) - {".tmp", "input_files"})


@mcp.tool
def hides(username: str, mib: int, seconds: float, mapped: bool = False) -> str:
    """Write a file that has no name any more, and hold it open or mapped."""
    hidden = os.path.join(os.environ["HOME"], "hidden")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT, 0o600)
    os.unlink(hidden)
    for _ in range(mib):
        os.write(descriptor, os.urandom(MIB))
    view = mmap.mmap(descriptor, mib * MIB) if mapped else None
    if mapped:
        os.close(descriptor)
        # The map object has a descriptor of its own, which is not what is meant here.
        for number in range(3, 256):
            with contextlib.suppress(OSError):
                if os.fstat(number).st_nlink == 0 and os.fstat(number).st_size == mib * MIB:
                    os.close(number)
    hold(seconds)
    return "hidden" if view is None else "mapped"


def without_first_thread(act: Callable[[], object]) -> None:
    """Do something in a second thread, and end the first one."""

    def stay() -> None:
        value = act()
        time.sleep(3600)
        del value

    threading.Thread(target=stay).start()
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)


def unnamed(mib: int) -> int:
    """Write a file that has no name."""
    descriptor = os.open(os.environ["HOME"], os.O_RDWR | os.O_TMPFILE, 0o600)
    for _ in range(mib):
        os.write(descriptor, os.urandom(MIB))
    return descriptor


def in_a_socket(*files: int) -> list[socket.socket]:
    """Put files in flight in a socket pair, and close them everywhere else."""
    pair = list(socket.socketpair())
    socket.send_fds(pair[0], [b"x"], list(files))
    for file in files:
        os.close(file)
    return pair


@mcp.tool
def hides_well(username: str, mib: int, seconds: float, way: str) -> str:
    """Write files that have no name, a few MiB each, and keep them where they are not looked for first."""
    hide = {
        "a second thread": lambda: child(lambda: without_first_thread(lambda: unnamed(4))),
        "a socket": lambda: in_a_socket(unnamed(4)),
        "a socket in a socket": lambda: in_a_socket(*(each.detach() for each in in_a_socket(unnamed(4)))),
        "part of a map": lambda: map_one_page(unnamed(4)),
    }[way]
    blocks = [hide() for _ in range(mib // 4)]
    hold(seconds)
    return f"{len(blocks)} files hidden"


def map_one_page(descriptor: int) -> None:
    """Map the first page of a file for good, and close it."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_size_t(mmap.PAGESIZE), 1, 1, descriptor, ctypes.c_long(0))
    assert address != ctypes.c_void_p(-1).value, "not mapped"
    os.close(descriptor)


@mcp.tool
def eats_without_first_threads(mib: int, children: int, seconds: float) -> str:
    """Take memory in several processes whose first threads have ended."""
    for _ in range(children):
        child(lambda: without_first_thread(lambda: bytearray(b"x") * (mib * MIB)))
    hold(seconds)
    return "ate"


@mcp.tool
def litters(username: str, count: int, seconds: float, closed: bool = False) -> str:
    """Make many files that hold nothing, perhaps in a folder that cannot be listed."""
    folder = f"/tmp/{username}/{uuid.uuid4().hex}"
    os.mkdir(folder, 0o300 if closed else 0o700)
    for number in range(count):
        os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))
    hold(seconds)
    return "littered"


@mcp.tool
def digs(username: str, depth: int, seconds: float) -> str:
    """Make folders in folders, deeper than a path can name."""
    top = f"/tmp/{username}/{uuid.uuid4().hex}"
    os.mkdir(top)
    os.chdir(top)
    for _ in range(depth):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    hold(seconds)
    return "dug"


@mcp.tool
def answers(size: int) -> str:
    """Answer at length."""
    return "x" * size


@mcp.tool
def prints_and_dies(size: int) -> str:
    """Print at length, and end."""
    sys.stdout.write("x" * size + "end")
    sys.stdout.flush()
    os._exit(3)


@mcp.tool
def limits() -> dict[str, int]:
    """Return the resource limits of this process."""
    names = ("CPU", "FSIZE", "NOFILE")
    return {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in names}


@mcp.tool
def sends_descriptors(seconds: float) -> str:
    """Put as many descriptors in flight to itself as the kernel allows; return the error."""
    held, message = [], ""
    try:
        while True:
            held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            socket.send_fds(held[-1][0], [b"x"], [0] * 253)
    except OSError as error:
        message = errno.errorcode[error.errno or 0]
    hold(seconds)
    return message


@mcp.tool
def eats_freely(mib: int) -> int:
    """Take memory of its own, and use it."""
    return len(b"x" * (mib * MIB)) // MIB


@mcp.tool
def forks_freely(count: int, seconds: float) -> str:
    """Start processes."""
    return forks(count, seconds)
