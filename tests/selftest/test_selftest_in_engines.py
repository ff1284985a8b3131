"""`runner selftest` where an engine refuses kernel keys to everybody, as Docker's default profile does."""

import json
import subprocess
import sys

# Loads a filter that answers add_key and keyctl with EPERM, as an engine does, and becomes the command.
REFUSING = """
import ctypes, os, struct, sys
numbers = (248, 250) if os.uname().machine == "x86_64" else (217, 219)
load = [(0x20, 0, 0, 0)]
tests = [(0x15, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
lines = [*load, *tests, (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0, ctypes.get_errno()
assert libc.syscall(numbers[0], 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1
os.execv(sys.argv[1], sys.argv[1:])
"""


def tried(*before: str) -> dict[str, str]:
    only = [
        word
        for name in ("other-key", "survive-key", "tamper-keyctl", "write-open")
        for word in ("--only", name)
    ]
    command = [*before, sys.executable, "-m", "runner", "selftest", "--json", "--isolation", "process"]
    done = subprocess.run(
        [*command, "--reuse", "call", *only], capture_output=True, text=True, check=False, timeout=200
    )
    assert "fault of the runner" not in done.stderr
    return {one["id"]: one["verdict"] for one in json.loads(done.stdout)["attempts"]}


def test_attempts_denied_by_engine_are_not_provable_others_run() -> None:
    free = tried()
    refused = tried(sys.executable, "-c", REFUSING)

    assert "not_provable" not in free.values()
    keys = {name for name in free if "key" in name}
    assert len(keys) == 3
    assert {refused[name] for name in keys} == {"not_provable"}
    assert {name: refused[name] for name in free.keys() - keys} == {
        name: free[name] for name in free.keys() - keys
    }
