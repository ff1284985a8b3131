import pytest
from guard_world import World

from sandbox.outcome import Denial

# What is reported, an act on the folder `t` that goes around the patches, and the part of `t` it names.
ACTS = [
    ("open", "import builtins; builtins.open = open.__wrapped__; open(t / 'new', 'w').close()", "new"),
    ("open", "import io; io.FileIO(t / 'new', 'w').close()", "new"),
    ("open", "import _io; _io.open(t / 'file', 'r+').close()", "file"),
    ("open", "import os, posix; os.close(posix.open(t / 'new', os.O_WRONLY | os.O_CREAT))", "new"),
    ("os.mkdir", "import posix; posix.mkdir(t / 'new')", "new"),
    ("os.rmdir", "import posix; posix.rmdir(t / 'empty')", "empty"),
    ("os.remove", "import posix; posix.unlink(t / 'file')", "file"),
    ("os.rename", "import posix; posix.rename(t / 'file', home / 'moved')", "file"),
    ("os.rename", "import posix; posix.replace(home / 'file', t / 'moved')", "moved"),
    ("os.link", "import posix; posix.link(home / 'file', t / 'linked')", "linked"),
    ("os.symlink", "import posix; posix.symlink('file', t / 'linked')", "linked"),
    ("os.truncate", "import posix; posix.truncate(t / 'file', 1)", "file"),
    ("sqlite3.connect", "import sqlite3; sqlite3.connect(t / 'new.db').close()", "new.db"),
]


@pytest.mark.parametrize(("operation", "act", "named"), ACTS)
def test_change_bypassing_patches_is_explained_by_audit_hook(
    world: World, operation: str, act: str, named: str
) -> None:
    target = str(world.outside / named)

    report = world.run(f"""
        from guard_world import furnish
        original = open
        t = home / "inner"
        furnish(t)
        {act}
        value = "done inside the home"
        import builtins
        builtins.open = original
        furnish(home)
        t = outside
        {act}
    """)

    assert report.value == "done inside the home"
    assert report.error is not None, report.error
    assert (report.error.guard, report.error.filename) == (True, target)
    assert report.denials == (Denial(operation=operation, path=target),)


def test_read_bypassing_patches_is_explained_in_other_home_only(world: World) -> None:
    report = world.run("""
        import io
        for folder in (home, outside):
            io.FileIO(folder / "file").close()
        value = "read at home and outside"
        io.FileIO(other / "file")
    """)

    assert report.value == "read at home and outside"
    assert report.error is not None
    assert (report.error.guard, report.error.filename) == (True, str(world.other / "file"))


def test_audit_hook_resolves_dir_fd_when_event_has_it(world: World) -> None:
    report = world.run("""
        import os, posix
        inner, outer = (os.open(folder, os.O_RDONLY) for folder in (home, outside))
        posix.mkdir("made", dir_fd=inner)
        # Of `open` the event does not tell, and a wrong denial is worse than none.
        os.close(posix.open("file", os.O_RDWR, dir_fd=outer))
        value = "made at home"
        posix.mkdir("made", dir_fd=outer)
    """)

    assert report.value == "made at home"
    assert report.error is not None
    assert (report.error.guard, report.error.filename) == (True, str(world.outside / "made"))


def test_read_only_database_is_left_to_sqlite(world: World) -> None:
    report = world.run("""
        import sqlite3
        sqlite3.connect(home / "made.db").execute("CREATE TABLE t (x)").connection.close()
        sqlite3.connect(":memory:").close()
        sqlite3.connect("").close()
        sqlite3.connect(f"file:{home}/made.db?mode=ro", uri=True).close()
        (home / "made.db").rename(home / "plain")
        sqlite3.connect(outside / "file").close()
    """)

    assert report.error is None, report.error
    assert report.denials == ()


def test_a_denied_database_is_also_the_error_of_sqlite(world: World) -> None:
    report = world.run("""
        import sqlite3
        try:
            sqlite3.connect(outside / "new.db")
        except sqlite3.OperationalError as error:
            value = [isinstance(error, PermissionError), error.filename]
    """)

    assert report.value == [True, str(world.outside / "new.db")]


def test_an_address_is_reported_and_left_to_the_kernel(world: World) -> None:
    report = world.run("""
        import socket
        value = socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)[0][4]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.connect(("127.0.0.1", 9))
            sender.sendto(b"", ("127.0.0.1", 9))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_INET6) as probe:
            try:
                # As urllib3 asks at its import whether there is IPv6.
                probe.bind(("::1", 0))
            except OSError:
                pass
        with socket.socket(socket.AF_UNIX) as local:
            try:
                local.connect(str(home / "nobody.sock"))
            except FileNotFoundError:
                pass
    """)

    assert report.error is None, report.error
    assert report.value == ["127.0.0.1", 80]
    assert report.denials == (
        Denial(operation="socket.getaddrinfo", path="127.0.0.1:80"),
        Denial(operation="socket.connect", path="127.0.0.1:9"),
        Denial(operation="socket.sendto", path="127.0.0.1:9"),
        Denial(operation="socket.bind", path="127.0.0.1:0"),
        Denial(operation="socket.connect", path=f"{world.home}/nobody.sock"),
    )


def test_a_socket_pair_names_no_address(world: World) -> None:
    report = world.run("""
        import asyncio, socket
        left, right = socket.socketpair()
        left.sendmsg([b"x"])
        value = right.recv(1).decode()
        left.close(), right.close()
        asyncio.run(asyncio.sleep(0))
    """)

    assert report.error is None, report.error
    assert report.value == "x"
    assert report.denials == ()


def test_import_from_unwritable_folder_records_no_denial(world: World) -> None:
    (world.outside / "authors_module.py").write_text("ANSWER = 42\n")

    report = world.run("""
        import sys
        sys.dont_write_bytecode = False
        sys.path.insert(0, str(outside))
        import authors_module
        value = authors_module.ANSWER
    """)

    assert report.error is None, report.error
    assert report.value == 42
    assert report.denials == ()
    assert not (world.outside / "__pycache__").exists()
