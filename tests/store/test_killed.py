"""A process killed before any call that changes something: an act has happened with all bytes, or has not."""

from pathlib import Path

import pytest
from disks import small_disk
from old_stores import make_version_3
from store_world import run

pytestmark = [pytest.mark.needs_root, pytest.mark.release]

ACTS = {
    "put": 'await keep(store, b"new" * 1000, "new.txt")',
    "put of equal content": 'await keep(store, b"first", "again.txt")',
    "put again": 'await keep(store, b"first", "first.txt", facts={"rows": 1})',
    "put for another user": 'await keep(store, b"first", "first.txt", scope=BOB)',
    "delete": """
    (record,) = [each for each in await store.list(scope=ALICE) if each.name == "ends.txt"]
    await store.delete(record.id, scope=ALICE)
""",
    "delete of shared content": """
    (record,) = [each for each in await store.list(scope=ALICE) if each.name == "shared.txt"]
    await store.delete(record.id, scope=ALICE, name="shared.txt")
""",
    "expire": """
    store.clock = lambda: datetime.now(UTC) + timedelta(hours=2)
    await store.sweep()
""",
}

_KILLED = """
import asyncio, os, shutil, signal, sys, threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from store_world import ALICE, BOB, content_of, keep
from runner.store.local.blobs import LocalBlobs
from runner.store.store import BlobStore

base = Path(sys.argv[1])
CHANGING = set(
    "fsync ftruncate link mkdir rename replace rmdir unlink utime write flock sync execute".split()
)

def in_a_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work())
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

async def before():
    store = BlobStore(LocalBlobs(base / "first"))
    await keep(store, b"first", "first.txt")
    await keep(store, b"first", "shared.txt")
    await keep(store, b"only", "only.txt")
    await keep(store, b"ends", "ends.txt", expires_at=datetime.now(UTC) + timedelta(hours=1))

def killed_at(number):
    left = number
    def count(frame, event, called):
        nonlocal left
        if event == "c_call" and getattr(called, "__name__", "") in CHANGING:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    threading.setprofile(count)

async def act(store):
    ACT

async def state(store):
    found = {}
    for scope in (ALICE, BOB):
        for record in await store.list(scope=scope):
            content = await content_of(store, record)
            known, ends = bool(record.metadata.facts), bool(record.expires_at)
            found[scope.user_id, record.name] = (content, known, ends)
    return found

async def look(root):
    store = BlobStore(LocalBlobs(root))
    found = await state(store)
    swept = await store.sweep()
    assert await state(store) == found
    assert list(store.missing()) == [], store.missing()
    assert {each.reason.name for each in swept} <= {"LEFT_BEHIND"}, swept
    objects = {path.read_bytes() for path in root.glob("*/*/objects/**/*") if path.is_file()}
    assert {content for content, *_ in found.values()} == objects, (found, objects)
    assert store.orphans() == [] and store.unread() == []
    left = [*root.glob("*/*/incoming/*"), *root.glob("*/*/removed/*")]
    assert left == [], left
    (base / "state").write_text(repr(sorted(found.items())))

if not (base / "first").exists():
    assert in_a_child(before) == 0
states, number, ended = set(), 0, None
while ended != 0:
    number += 1
    root = base / "store"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(base / "first", root)
    async def work():
        killed_at(number)
        await act(BlobStore(LocalBlobs(root)))
    ended = in_a_child(work)
    assert ended in (0, -9), ended
    assert in_a_child(lambda: look(root)) == 0, number
    states.add((base / "state").read_text())
print(number, len(states))
"""


@pytest.mark.parametrize("act", ACTS)
def test_kill_before_any_call_leaves_old_state_or_new(tmp_path: Path, act: str) -> None:
    code = _KILLED.replace("    ACT\n", f"    {ACTS[act].strip()}\n")

    # In memory: what a kill leaves is the same there, and nothing waits.
    with small_disk(tmp_path / "disk", mib=64) as disk:
        points, states = map(int, run(code, disk, timeout=200).split())

    assert points > 5
    assert states == 2


def test_kill_before_any_call_of_a_conversion_loses_no_file(tmp_path: Path) -> None:
    code = _KILLED.replace("    ACT\n", "    await store.list(scope=ALICE)\n")

    with small_disk(tmp_path / "disk", mib=64) as disk:
        make_version_3(disk / "first")
        points, states = map(int, run(code, disk, timeout=200).split())

    assert points > 20
    assert states == 1
