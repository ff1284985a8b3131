"""A home among other folders, full of links and odd files; and the kernel's word on where a path leads."""

import atexit
import errno
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st
from result_fakes import FakeHome

SECRET = b"of somebody else"

_LINKS = {
    "to_bob": "../bob",
    "to_secret": "../bob/secret",
    "to_self": "to_self",
    "to_sub": "sub",
    "to_file": "file",
    "to_nothing": "nothing",
    "to_nothing_outside": "../bob/nothing",
    "to_home": ".",
    "to_above": "..",
    "to_root": "/",
    "to_null": "/dev/null",
    "to_link": "to_secret",
    "to_descriptor": "/proc/self/fd/0",
    "sub/up": "../..",
    "sub/back": "../../alice/file",
}


@dataclass(frozen=True)
class Tree:
    """A folder of homes, with a home that may be written and one that may not."""

    top: Path
    home: FakeHome

    @property
    def bob(self) -> Path:
        return self.top / "bob"


def plant() -> Tree:
    """Make the tree; it stays until the process ends."""
    top = Path(os.path.realpath(tempfile.mkdtemp(prefix="toolcell-fuzz-")))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    alice, bob = top / "alice", top / "bob"
    for folder in (alice / "sub" / "deep", bob / "sub", top / "alice2"):
        folder.mkdir(parents=True)
    for secret in (bob / "secret", bob / "file", bob / "sub" / "file", top / "file", top / "alice2" / "file"):
        secret.write_bytes(SECRET)
    for own in (alice / "file", alice / "sub" / "file", alice / "sub" / "deep" / "file", alice / "new\nline"):
        own.write_bytes(b"mine")
    for name, target in _LINKS.items():
        (alice / name).symlink_to(target)
    (alice / "hard").hardlink_to(bob / "secret")
    os.mkfifo(alice / "fifo")
    (alice / ("n" * 255)).write_bytes(b"mine")
    (alice / "sparse").touch()
    os.truncate(alice / "sparse", 1 << 40)
    return Tree(top, FakeHome(alice, os.open(alice, os.O_PATH | os.O_DIRECTORY)))


def where(path: str, *, follow: bool, hops: int = 40) -> str | None:
    """Return where the kernel goes for `path`, which need not exist; None if it goes nowhere.

    Asked by opening: what the descriptor then is called is what was reached.
    """
    try:
        found = os.open(path, os.O_PATH | (0 if follow else os.O_NOFOLLOW))
    except ValueError:
        return None
    except OSError as error:
        return _made(path, follow=follow, hops=hops) if error.errno == errno.ENOENT else None
    try:
        return os.readlink(f"/proc/self/fd/{found}")
    finally:
        os.close(found)


def _made(path: str, *, follow: bool, hops: int) -> str | None:
    """Return where a file is made by a path that names none yet."""
    folder, name = os.path.split(path)
    if name in ("", ".", "..") or hops == 0:
        return None
    try:
        above = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        here = os.readlink(f"/proc/self/fd/{above}")
        if follow and os.path.islink(path):
            target = os.readlink(name, dir_fd=above)
            return where(os.path.join(here, target), follow=True, hops=hops - 1)
        return os.path.join(here, name)
    finally:
        os.close(above)


_segments = st.sampled_from(
    (
        *(
            "..",
            ".",
            "",
            "alice",
            "bob",
            "alice2",
            "file",
            "secret",
            "sub",
            "deep",
            "nothing",
            "hard",
            "fifo",
        ),
        *(
            *_LINKS,
            "up",
            "back",
            "new\nline",
            "n" * 255,
            "n" * 256,
            "sparse",
            "\udcff",
            "\ud800",
            "a\0b",
            "~",
        ),
        *("input_files", "dev", "null", "proc", "self", "fd", "0", "cwd", "root"),
    )
)
_joined = st.lists(_segments, min_size=1, max_size=7).map("/".join)


def paths(tree: Tree) -> st.SearchStrategy[str]:
    """Paths that a tool may name: below the home, beside it, anywhere; text other than a path, too."""
    starts = (
        f"{tree.home.path}/",
        f"{tree.top}/",
        "",
        "/",
        "//",
        f"/{tree.home.path}//",
        f"{tree.home.path}",
    )
    led = st.tuples(st.sampled_from(starts), _joined).map("".join)
    return led | led | _joined | st.text(st.characters(), max_size=20)
