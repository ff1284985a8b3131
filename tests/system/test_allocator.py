"""Freed memory that the C library retains, with and without our setting."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runner.system.allocator import ARENAS, keep_little

MIB = 1024 * 1024

# Twenty threads take memory at the same time, and so each from an arena of its own where it may have one.
BUSY = """
import ctypes, json, sys, threading
from pathlib import Path
from runner.cli.start import start_server
from runner.settings.sources import load
if sys.argv[1] == "as a server":
    folder = Path(sys.argv[2])
    (folder / "homes").mkdir(mode=0o700, exist_ok=True)
    store = (folder / "store").as_uri()
    start_server({"state_dir": folder / "state", "store": store, "homes": folder / "homes"}, None)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
together = threading.Barrier(20)
def take():
    together.wait()
    taken = [libc.malloc(600) for _ in range(200)]
    together.wait()
    for each in taken:
        libc.free(each)
threads = [threading.Thread(target=take) for _ in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

# glibc learns from the first block that is freed how much it may keep of those that come.
libc.free(libc.malloc(24 << 20))
blocks = [libc.malloc(1 << 20) for _ in range(16)]
for block in blocks:
    libc.free(block)

class Mallinfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
libc.mallinfo2.restype = Mallinfo
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
told = Path(sys.argv[2], "malloc_info")
file = ctypes.c_void_p(libc.fopen(bytes(told), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(json.dumps({"arenas": told.read_text().count("<heap "), "kept": libc.mallinfo2().keepcost}))
"""


def busy(how: str, folder: Path) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", BUSY, how, str(folder)],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    report: dict[str, int] = json.loads(done.stdout)
    return report


def test_server_has_few_arenas_and_returns_freed_memory(tmp_path: Path) -> None:
    # The control: what any other process does.
    usual = busy("as usual", tmp_path)
    served = busy("as a server", tmp_path)

    assert usual["arenas"] > ARENAS
    assert usual["kept"] > 8 * MIB
    assert served["arenas"] <= ARENAS
    assert served["kept"] < 2 * MIB


def test_missing_c_library_options_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.system.allocator.ctypes.CDLL", lambda _name: object())

    assert keep_little() is False
