import pytest
from guard_world import World

from sandbox.outcome import Denial

pytestmark = pytest.mark.needs_npm

# What is reported, the act on the folder `t`, and the part of `t` that is named.
ACTS = [
    ("open", "open(t / 'new', 'w').close()", "new"),
    ("open", "open(str(t / 'new'), 'a').close()", "new"),
    ("open", "open(file=t / 'new', mode='x').close()", "new"),
    ("open", "open(t / 'file', 'r+').close()", "file"),
    ("open", "open(bytes(t / 'new'), 'wb').close()", "new"),
    ("open", "import io; io.open(t / 'new', 'w').close()", "new"),
    ("open", "import codecs; codecs.open(t / 'new', 'w').close()", "new"),
    ("os.open", "import os; os.close(os.open(t / 'new', os.O_WRONLY | os.O_CREAT))", "new"),
    ("os.open", "import os; os.close(os.open(t / 'file', os.O_RDWR))", "file"),
    ("os.open", "import os; os.close(os.open(t / 'file', os.O_TRUNC))", "file"),
    ("os.open", "import os; os.close(os.open(path=t, flags=os.O_RDWR | os.O_TMPFILE))", ""),
    ("os.mkdir", "import os; os.mkdir(t / 'new')", "new"),
    ("os.mkdir", "import os; os.mkdir(path=bytes(t / 'new'))", "new"),
    ("os.makedirs", "import os; os.makedirs(t / 'new' / 'newer')", "new/newer"),
    ("os.rmdir", "import os; os.rmdir(t / 'empty')", "empty"),
    ("os.remove", "import os; os.remove(t / 'file')", "file"),
    ("os.unlink", "import os; os.unlink(t / 'link')", "link"),
    ("os.rename", "import os; os.rename(t / 'file', home / 'moved')", "file"),
    ("os.rename", "import os; os.rename(home / 'file', t / 'moved')", "moved"),
    ("os.replace", "import os; os.replace(src=home / 'file', dst=t / 'file')", "file"),
    ("os.link", "import os; os.link(home / 'file', t / 'linked')", "linked"),
    ("os.symlink", "import os; os.symlink('file', t / 'linked')", "linked"),
    ("os.truncate", "import os; os.truncate(t / 'file', 1)", "file"),
    ("os.mkfifo", "import os; os.mkfifo(t / 'fifo')", "fifo"),
    ("os.mknod", "import os; os.mknod(t / 'node')", "node"),
    ("open", "(t / 'new').write_text('text')", "new"),
    ("open", "(t / 'new').write_bytes(b'bytes')", "new"),
    ("open", "(t / 'new').open('w').close()", "new"),
    ("os.open", "(t / 'new').touch()", "new"),
    ("os.mkdir", "(t / 'new').mkdir()", "new"),
    ("os.rmdir", "(t / 'empty').rmdir()", "empty"),
    ("os.unlink", "(t / 'file').unlink()", "file"),
    ("os.rename", "(home / 'file').rename(t / 'moved')", "moved"),
    ("os.replace", "(home / 'file').replace(t / 'moved')", "moved"),
    ("os.symlink", "(t / 'linked').symlink_to('file')", "linked"),
    ("os.link", "(t / 'linked').hardlink_to(home / 'file')", "linked"),
    ("open", "import shutil; shutil.copy(home / 'file', t / 'copied')", "copied"),
    ("os.makedirs", "import shutil; shutil.copytree(home / 'empty', t / 'copied')", "copied"),
    ("open", "import logging; logging.FileHandler(t / 'new').close()", "new"),
    ("open", "import zipfile; zipfile.ZipFile(t / 'new', 'w').close()", "new"),
]


@pytest.mark.parametrize(("operation", "act", "named"), ACTS)
def test_change_outside_home_is_explained_by_the_given_path(
    world: World, operation: str, act: str, named: str
) -> None:
    """Source: S1-54 and S1-100."""
    target = str(world.outside / named)

    report = world.run(f"""
        from guard_world import furnish
        t = home / "inner"
        furnish(t)
        {act}
        value = "done inside the home"
        furnish(home)
        t = outside
        {act}
    """)

    assert report.value == "done inside the home"
    assert report.error is not None
    assert (report.error.guard, report.error.filename) == (True, target)
    assert report.denials == (Denial(operation=operation, path=target),)
