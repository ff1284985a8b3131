"""`runner selftest` where an engine refuses kernel objects to everybody, as Docker's profile does keys."""

import json
import platform
import subprocess
import sys

# Loads a filter that answers these calls with EPERM, as an engine does, and becomes the command.
REFUSED = {"add_key": (248, 217), "keyctl": (250, 219), "msgget": (68, 186), "semget": (64, 190)}
REFUSED |= {"shmget": (29, 194), "mq_open": (240, 180)}
REFUSING = """
import ctypes, json, os, struct, sys
numbers = json.loads(sys.argv[1])
load = [(0x20, 0, 0, 0)]
tests = [(0x15, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
lines = [*load, *tests, (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0, ctypes.get_errno()
assert libc.syscall(numbers[0], 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1
os.execv(sys.argv[2], sys.argv[2:])
"""


HELD = ("write-open", "tamper-kill", "tamper-abstract")
OBJECTS = ("key", "msgrcv", "semctl", "shmat", "mq-receive")
NOT_PROVABLE = {
    *(f"other-{name}" for name in OBJECTS),
    *(f"survive-{name}" for name in ("key", "messages", "semaphore", "segment", "queue")),
    *(f"tamper-{name}" for name in ("keyctl", "msgsnd", "semop", "shmat", "mq-send")),
}


def tried(*before: str) -> dict[str, str]:
    only = [word for name in (*HELD, *NOT_PROVABLE) for word in ("--only", name)]
    command = [*before, sys.executable, "-m", "runner", "selftest", "--json", "--isolation", "process"]
    done = subprocess.run(
        [*command, "--reuse", "call", *only], capture_output=True, text=True, check=False, timeout=200
    )
    assert "fault of the runner" not in done.stderr
    return {one["id"]: one["verdict"] for one in json.loads(done.stdout)["attempts"]}


def test_attempts_denied_by_engine_are_not_provable_others_run() -> None:
    numbers = [each[platform.machine() != "x86_64"] for each in REFUSED.values()]

    free = tried()
    refused = tried(sys.executable, "-c", REFUSING, json.dumps(numbers))

    assert free == dict.fromkeys((*HELD, *NOT_PROVABLE), "held")
    assert refused == dict.fromkeys(HELD, "held") | dict.fromkeys(NOT_PROVABLE, "not_provable")
