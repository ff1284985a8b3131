"""No input of at most 1 MiB holds the event loop of a real server, whatever its entry point."""

import subprocess
import sys
from pathlib import Path

import pytest
from stall_probe import StallProbe

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]

LIMIT_S = 1.0
"""Ten times what a quiet machine shows: others use its caches. Each input that was found cost more."""

_HOST = """
import asyncio, hashlib, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from stall_probe import beat_into

def computes(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

async def main():
    for line in iter(lambda: None, 0):
        words = await asyncio.to_thread(sys.stdin.readline)
        if words == "loop\\n":
            computes(0.5)
        elif words == "thread\\n":
            await asyncio.to_thread(computes, 0.5)
        else:
            return
        print("done", flush=True)

beat_into(Path(sys.argv[2]))
asyncio.run(main())
"""


def test_probe_counts_the_loop_and_not_a_thread(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOST, str(Path(__file__).parent), str(tmp_path / "beats")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    found = {}
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for words in ("thread", "loop"):
            with StallProbe(tmp_path / "beats").watching() as longest:
                process.stdin.write(f"{words}\n")
                process.stdout.readline()
            found[words] = longest()
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)

    assert found["thread"] < 0.2
    assert 0.4 < found["loop"] < 2


@pytest.mark.parametrize("server", ["serve, HTTP", "serve, stdio", "proxy, stdio", "proxy, HTTP"])
def test_no_input_holds_the_event_loop(server: str, user: str, tmp_path: Path) -> None:
    # Its values take two seconds to make, which each collection would wait for.
    from stall_servers import SERVERS, measured

    start, rows = SERVERS[server]
    with start(tmp_path, user) as (client, probe):
        found = [
            (each.stall, each.row.entry, each.row.input, each.answer[:60])
            for each in measured(client, probe, rows)
        ]

    assert [each for each in found if "Session not found" in each[3] or each[3].startswith("closed")] == []
    assert [each for each in found if each[0] > LIMIT_S] == []
