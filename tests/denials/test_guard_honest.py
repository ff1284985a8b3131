from guard_world import World


def test_everyday_libraries_work_in_the_home(world: World) -> None:
    report = world.run("""
        import csv, json, logging, shelve, shutil, sqlite3, subprocess, tarfile, tempfile, zipfile
        from pathlib import Path

        with tempfile.NamedTemporaryFile("w") as file:
            file.write("x")
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
        with tempfile.TemporaryDirectory() as folder:
            assert Path(folder).parent == home
        logger = logging.FileHandler(home / "log.txt")
        logger.emit(logging.makeLogRecord({"msg": "hello"}))
        logger.close()
        with sqlite3.connect(home / "data.db") as database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("CREATE TABLE t (x)")
        database.close()
        with zipfile.ZipFile(home / "data.zip", "w") as archive:
            archive.write(home / "file", "file")
        with zipfile.ZipFile(home / "data.zip") as archive:
            archive.extractall(home / "unzipped")
        with tarfile.open(home / "data.tar.gz", "w:gz") as archive:
            archive.add(home / "unzipped", "unzipped")
        shutil.copytree(home / "unzipped", home / "copied")
        shutil.move(home / "copied", home / "moved")
        shutil.make_archive(str(home / "made"), "zip", home / "moved")
        shutil.rmtree(home / "moved")
        with shelve.open(str(home / "shelf")) as shelf:
            shelf["key"] = "value"
        with (home / "a.json").open("w") as file:
            json.dump([1], file)
        with open("relative.csv", "w", newline="") as file:
            csv.writer(file).writerow([1, 2])
        subprocess.run(["true"], check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        deep = home / "deep" / "er"
        deep.mkdir(parents=True)
        (deep / "x").touch()
        (deep / "x").rename(deep / "y")
        (deep / "z").symlink_to("y")
        (deep / "w").hardlink_to(deep / "y")
        value = sorted(path.name for path in deep.iterdir())
    """)

    assert report.error is None, report.error
    assert report.value == ["w", "y", "z"]
    assert report.denials == ()


def test_pandas_and_matplotlib_work_in_the_home(world: World) -> None:
    report = world.run("""
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        import pandas as pd

        frame = pd.DataFrame({"x": [1, 2, 3], "y": [3, 1, 2]})
        frame.to_csv(home / "table.csv", index=False)
        frame.to_parquet(home / "table.parquet")
        frame.plot(x="x", y="y").figure.savefig(home / "chart.png")
        value = [pd.read_csv("table.csv").shape, pd.read_parquet(home / "table.parquet").shape]
    """)

    assert report.error is None, report.error
    assert report.value == [[3, 2], [3, 2]]
    assert (world.home / "chart.png").stat().st_size > 0
    assert report.denials == ()


def test_pandas_outside_the_home_is_explained_by_the_path(world: World) -> None:
    report = world.run("""
        import pandas as pd

        frame = pd.DataFrame({"x": [1]})
        frame.to_csv(home / "table.csv")
        value = "written at home"
        frame.to_csv(outside / "table.csv")
    """)

    assert report.value == "written at home"
    assert report.error is not None
    assert (report.error.guard, report.error.filename) == (True, str(world.outside / "table.csv"))


def test_standard_output_may_be_opened_by_name(world: World) -> None:
    report = world.run("""
        for name in ("/dev/stdout", "/dev/null", "/proc/self/fd/2"):
            with open(name, "w") as file:
                file.write("x")
        value = "written"
    """)

    assert report.error is None, report.error
    assert report.value == "written"
    assert report.denials == ()
