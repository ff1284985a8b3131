import errno

from guard_world import World

from sandbox.outcome import Denial


def test_guard_error_states_what_is_allowed_as_permission_error(world: World) -> None:
    """Source: S1-54 and S1-100."""
    report = world.run("""
        try:
            open(outside / "new", "w")
        except PermissionError as error:
            value = [error.errno, error.strerror, error.filename]
    """)

    sentence = f"File operation outside allowed directory: allowed is {world.home}/"
    assert report.value == [errno.EACCES, sentence, str(world.outside / "new")]


def test_guard_error_without_home_states_no_reads_or_writes(world: World) -> None:
    report = world.run(
        """
        value = []
        open("/dev/null", "w").close()
        for mode in ("w", "r"):
            try:
                open(other / "file", mode)
            except PermissionError as error:
                value.append(error.strerror)
        """,
        bound=False,
    )

    assert report.value == [
        "File operation outside allowed directory: this call may not write files",
        "File operation outside allowed directory: this call may not read the files of users",
    ]


def test_swallowed_denial_is_recorded(world: World) -> None:
    report = world.run("""
        try:
            open(outside / "new", "w")
        except OSError:
            value = "went on"
    """)

    assert report.value == "went on"
    assert report.error is None
    assert report.denials == (Denial(operation="open", path=str(world.outside / "new")),)


def test_an_undecodable_path_is_reported_in_printable_form(world: World) -> None:
    report = world.run("""
        try:
            open(bytes(outside) + b"/\\xff", "w")
        except PermissionError as error:
            value = ascii(error.filename)
    """)

    assert report.value == repr(f"{world.outside}/\udcff")
    assert report.denials == (Denial(operation="open", path=f"{world.outside}/\\udcff"),)


def test_patched_open_serves_both_modules_like_builtin(world: World) -> None:
    report = world.run("""
        import builtins, copy, inspect, io, pickle
        original = open.__wrapped__
        value = {
            "same": io.open is builtins.open is open,
            "name": open.__name__,
            "signature": inspect.signature(open) == inspect.signature(original),
            "wrapped": original is not open and inspect.isbuiltin(original),
            "pickled": pickle.loads(pickle.dumps(open)) is open,
            "copied": copy.deepcopy(open) is open,
            "callable": callable(open),
        }
    """)

    assert report.value == {
        "same": True,
        "name": "open",
        "signature": True,
        "wrapped": True,
        "pickled": True,
        "copied": True,
        "callable": True,
    }


def test_functions_of_os_pickle_and_show_their_signatures(world: World) -> None:
    report = world.run("""
        import inspect, os, pickle
        names = ["open", "mkdir", "makedirs", "rename", "replace", "link", "symlink", "remove", "unlink",
                 "rmdir", "truncate", "mkfifo", "mknod", "listdir", "scandir"]
        value = []
        for name in names:
            patched = getattr(os, name)
            same = inspect.signature(patched) == inspect.signature(patched.__wrapped__)
            if not same or pickle.loads(pickle.dumps(patched)) is not patched or patched.__name__ != name:
                value.append(name)
    """)

    assert report.value == []


def test_open_as_a_class_attribute_does_not_bind(world: World) -> None:
    report = world.run("""
        class Reader:
            opener = open
        with Reader().opener(home / "file") as file:
            value = file.read()
    """)

    assert report.error is None, report.error
    assert report.value == "text"


def test_capabilities_of_os_functions_are_still_listed(world: World) -> None:
    report = world.run("""
        import os
        value = [
            {os.open, os.unlink, os.rmdir, os.mkdir, os.rename, os.link, os.symlink} <= os.supports_dir_fd,
            {os.listdir, os.scandir, os.truncate} <= os.supports_fd,
            os.link in os.supports_follow_symlinks,
        ]
        import shutil
        value.append(shutil.rmtree.avoids_symlink_attacks)
    """)

    assert report.value == [True, True, True, True]


def test_descriptors_are_never_judged(world: World) -> None:
    report = world.run("""
        import os
        read, write = os.pipe()
        with open(write, "w") as sender:
            sender.write("through a pipe")
        with open(read) as receiver:
            value = [receiver.read()]
        folder = os.open(outside, os.O_RDONLY)
        value.append(sorted(os.listdir(folder)))
        file = os.open(home / "file", os.O_RDWR)
        os.truncate(file, 2)
        os.close(file)
    """)

    assert report.error is None, report.error
    assert report.value == ["through a pipe", ["empty", "file", "link"]]
    assert report.denials == ()


def test_path_with_dir_fd_is_judged_below_that_folder(world: World) -> None:
    report = world.run("""
        import os
        inner, outer = (os.open(folder, os.O_RDONLY) for folder in (home, outside))
        os.mkdir("made", dir_fd=inner)
        os.close(os.open("written", os.O_WRONLY | os.O_CREAT, dir_fd=inner))
        os.rename("written", "renamed", src_dir_fd=inner, dst_dir_fd=inner)
        value = []
        for act in (
            lambda: os.mkdir("made", dir_fd=outer),
            lambda: os.open("written", os.O_WRONLY | os.O_CREAT, dir_fd=outer),
            lambda: os.rename("renamed", "taken", src_dir_fd=inner, dst_dir_fd=outer),
        ):
            try:
                act()
            except GuardDenied as error:
                value.append(error.filename)
    """)

    assert report.error is None, report.error
    assert report.value == [str(world.outside / name) for name in ("made", "written", "taken")]


def test_opener_is_judged_by_the_path_it_opens(world: World) -> None:
    report = world.run("""
        import os
        inner, outer = (os.open(folder, os.O_RDONLY) for folder in (home, outside))
        # The name alone would be outside the home, and inside it in the second case.
        os.chdir(outside)
        open("new", "w", opener=lambda name, flags: os.open(name, flags, dir_fd=inner)).close()
        value = (home / "new").exists()
        os.chdir(home)
        open("newer", "w", opener=lambda name, flags: os.open(name, flags, dir_fd=outer))
    """)

    assert report.value is True
    assert report.error is not None
    assert (report.error.guard, report.error.filename) == (True, str(world.outside / "newer"))


def test_an_opener_does_not_hide_its_path(world: World) -> None:
    report = world.run("import os; open(outside / 'new', 'w', opener=os.open)")

    assert report.error is not None
    assert (report.error.guard, report.error.filename) == (True, str(world.outside / "new"))


def test_honest_code_gets_the_expected_error(world: World) -> None:
    report = world.run("""
        import os
        value = []
        for act in (
            lambda: os.mkdir(outside),
            lambda: os.mkdir(home),
            lambda: open(outside / "file", "x"),
            lambda: os.symlink("file", outside / "link"),
            lambda: os.unlink(outside / "missing"),
            lambda: os.rename(outside / "missing", home / "moved"),
            lambda: open(outside / "missing", "r+"),
            lambda: os.mkdir(outside / "a\\0b"),
            lambda: os.mkdir(),
            lambda: os.mkdir(1.5),
            lambda: open(home / "file", 7),
        ):
            try:
                act()
            except Exception as error:
                value.append(type(error).__name__)
        os.makedirs(outside, exist_ok=True)
        outside.mkdir(exist_ok=True)
        (outside / "missing").unlink(missing_ok=True)
    """)

    assert report.error is None, report.error
    assert report.value == [
        "FileExistsError",
        "FileExistsError",
        "FileExistsError",
        "FileExistsError",
        "FileNotFoundError",
        "FileNotFoundError",
        "FileNotFoundError",
        "ValueError",
        "TypeError",
        "TypeError",
        "TypeError",
    ]
    assert report.denials == ()


def test_hard_link_checks_target_and_leaves_source_to_kernel(world: World) -> None:
    report = world.run("""
        import os
        os.link(outside / "file", home / "linked")
        value = "linked into the home"
        os.link(home / "file", outside / "linked")
    """)

    assert report.value == "linked into the home"
    assert report.error is not None
    assert (report.error.guard, report.error.filename) == (True, str(world.outside / "linked"))


def test_deleting_a_tree_names_the_file_in_it(world: World) -> None:
    report = world.run("""
        import shutil
        shutil.copytree(outside, home / "copied")
        shutil.rmtree(home / "copied")
        value = "deleted at home"
        shutil.rmtree(outside)
    """)

    assert report.value == "deleted at home"
    assert report.error is not None
    assert report.error.guard
    # The denial, not the error: Python 3.13 renames the error to the tree.
    assert report.denials[0].path.startswith(f"{world.outside}/")
    assert (world.outside / "file").read_text() == "text"


def test_each_denial_is_forwarded_before_the_tool_knows(world: World) -> None:
    report = world.run("""
        try:
            open(outside / "new", "w")
        except PermissionError:
            value = [denial.path for denial in forwarded]
    """)

    assert report.value == [str(world.outside / "new")]


def test_guard_does_not_recurse_when_threads_import_and_open(world: World) -> None:
    report = world.run("""
        import threading

        def work(mine):
            import decimal, fractions, statistics, xml.dom.minidom
            for number in range(50):
                (home / f"{mine}-{number}").write_text("x")
                try:
                    open(outside / "new", "w")
                except PermissionError:
                    pass

        threads = [threading.Thread(target=work, args=(mine,)) for mine in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        value = len(list(home.iterdir()))
    """)

    assert report.error is None, report.error
    assert report.value == 8 * 50 + 3
    assert report.denials == (Denial(operation="open", path=str(world.outside / "new")),)
