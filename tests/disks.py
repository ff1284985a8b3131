"""Small file systems for a test to fill, mounted by root."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["fill", "mounted", "read_only", "small_disk", "thin_image"]

_STEP_BYTES = (1024 * 1024, 4096, 1)


@contextlib.contextmanager
def small_disk(folder: Path, mib: int = 16, *, kind: str = "tmpfs", options: str = "") -> Iterator[Path]:
    """Mount a file system of `mib` MiB until the block ends."""
    assert os.geteuid() == 0, "only root mounts file systems; run these tests as root"
    folder.mkdir(parents=True)
    if kind == "tmpfs":
        arguments = [
            "-t",
            "tmpfs",
            "-o",
            ",".join([f"size={mib}m", "mode=700", *filter(None, [options])]),
            "disk",
        ]
    else:
        image = folder.with_name(f"{folder.name}.image")
        with image.open("wb") as file:
            file.truncate(mib * 1024 * 1024)
        subprocess.run([f"mkfs.{kind}", "-q", "-m", "0", str(image)], check=True)
        arguments = ["-o", "loop", str(image)]
    subprocess.run(["mount", *arguments, str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def thin_image(path: Path) -> Path:
    """Create a sparse image of an 8 MiB disk, whose data blocks take space only once they are written.

    If the disk that holds the image is full by then, the kernel loses the data at writeback.
    """
    with path.open("wb") as file:
        # The metadata of the file system is at the beginning, and its space is allocated now.
        file.write(b"\xff" * (1024 * 1024))
        file.truncate(8 * 1024 * 1024)
    options = ["-b", "4096", "-N", "64", "-m", "0", "-E", "nodiscard,lazy_itable_init=0"]
    subprocess.run(["mkfs.ext2", "-q", *options, str(path)], check=True)
    return path


@contextlib.contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """Mount an image until the block ends, without cached data from an earlier mount."""
    assert os.geteuid() == 0, "only root mounts file systems; run these tests as root"
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill all free space, to the last byte, with one file; return its path."""
    path = folder / "everything"
    with path.open("ab", buffering=0) as file:
        for step in _STEP_BYTES:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(step))
    more = folder / "one more"
    with pytest.raises(OSError, match="No space left"):
        more.write_bytes(bytes(4096))
    more.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Remount a disk read-only until the block ends, as the kernel does after file system errors."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
