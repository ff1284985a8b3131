import pytest
from guard_world import World

from sandbox.outcome import Denial

# What is reported, the act on the folder `t`, and the part of `t` that is named.
ACTS = [
    ("open", "open(t / 'file').close()", "file"),
    ("open", "open(t / 'link', 'rb').close()", "link"),
    ("open", "(t / 'file').read_text()", "file"),
    ("os.open", "os.close(os.open(t / 'file', os.O_RDONLY))", "file"),
    ("os.listdir", "os.listdir(t)", ""),
    ("os.scandir", "os.scandir(t).close()", ""),
    ("open", "import shutil; shutil.copy(t / 'file', home / 'copied')", "file"),
]


@pytest.mark.parametrize(("operation", "act", "named"), ACTS)
def test_read_of_other_home_is_explained_and_elsewhere_is_not(
    world: World, operation: str, act: str, named: str
) -> None:
    target = str(world.other / named)

    report = world.run(f"""
        import os
        for t in (home, outside):
            {act}
        value = "read at home and outside"
        t = other
        {act}
    """)

    assert report.value == "read at home and outside"
    assert report.error is not None
    assert (report.error.guard, report.error.filename) == (True, target.rstrip("/"))
    assert report.denials == (Denial(operation=operation, path=target.rstrip("/")),)


def test_missing_file_in_other_home_is_reported_missing(world: World) -> None:
    report = world.run("open(other / 'missing').close()")

    assert report.error is not None
    assert report.error.kind == "FileNotFoundError"
    assert report.denials == ()


def test_reading_the_current_folder_needs_no_path(world: World) -> None:
    report = world.run("import os; value = [sorted(os.listdir()), sorted(e.name for e in os.scandir())]")

    assert report.value == [["empty", "file", "link"], ["empty", "file", "link"]]


def test_link_in_home_to_other_users_file_is_explained(world: World) -> None:
    report = world.run("""
        (home / "to_bob").symlink_to(other / "file")
        open("to_bob").close()
    """)

    assert report.error is not None
    assert (report.error.guard, report.error.filename) == (True, "to_bob")
    assert report.denials == (Denial(operation="open", path="to_bob"),)
