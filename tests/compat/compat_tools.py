"""Acts of honest tools, one act a tool; each checks for itself that it worked, as far as a tool can see."""

import asyncio
import concurrent.futures
import ctypes
import fcntl
import getpass
import json
import locale
import logging
import mmap
import multiprocessing
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from datetime import datetime
from multiprocessing import shared_memory
from pathlib import Path
from zoneinfo import ZoneInfo

from fastmcp import FastMCP

mcp = FastMCP("compatibility")


def check(is_so: bool, what: object = None) -> None:
    if not is_so:
        raise AssertionError(f"not as expected: {what!r}")


@mcp.tool
def numpy(username: str) -> None:
    import numpy as np

    numbers = np.random.default_rng(1).normal(size=(500, 500))
    np.save(Path.home() / "n.npy", numbers)
    np.savez_compressed(Path.home() / "n.npz", numbers=numbers)
    mapped = np.memmap(Path.home() / "n.map", dtype="float64", mode="w+", shape=numbers.shape)
    mapped[:] = np.linalg.inv(numbers) @ numbers
    mapped.flush()
    check(np.allclose(np.load(Path.home() / "n.npy"), numbers))
    check(np.allclose(mapped, np.eye(500), atol=1e-6))


@mcp.tool
def pandas(username: str) -> None:
    import pandas as pd

    days = pd.date_range("2024-01-01", periods=1000, tz="Europe/Berlin")
    frame = pd.DataFrame({"a": range(1000), "b": days})
    frame.to_csv(Path.home() / "p.csv", index=False)
    frame.to_parquet(Path.home() / "p.parquet")
    frame.to_json(Path.home() / "p.json")
    frame.to_pickle(Path.home() / "p.pickle")
    with sqlite3.connect(Path.home() / "p.db") as database:
        frame.to_sql("t", database, index=False)
        check(len(pd.read_sql("select * from t", database)) == 1000)
    check(len(pd.read_csv(Path.home() / "p.csv")) == 1000)
    check(pd.read_parquet(Path.home() / "p.parquet").equals(frame))


@mcp.tool
def matplotlib(username: str) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots()
    axes.plot([1, 2, 3], label="Ünïcode $x^2$")
    axes.legend()
    for kind in ("png", "pdf", "svg"):
        figure.savefig(Path.home() / f"m.{kind}")
        check((Path.home() / f"m.{kind}").stat().st_size > 1000)


@mcp.tool
def pyarrow(username: str) -> None:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    table = pa.table({"n": list(range(10_000)), "k": [n % 3 for n in range(10_000)]})
    pq.write_table(table, Path.home() / "a.parquet")
    ds.write_dataset(table, Path.home() / "dataset", format="parquet", partitioning=["k"])
    check(pq.read_table(Path.home() / "a.parquet", memory_map=True).num_rows == 10_000)
    check(ds.dataset(Path.home() / "dataset", format="parquet", partitioning=["k"]).count_rows() == 10_000)


@mcp.tool
def polars(username: str) -> None:
    import polars as pl

    frame = pl.DataFrame({"n": range(10_000), "k": [n % 3 for n in range(10_000)]})
    frame.write_parquet(Path.home() / "pl.parquet")
    frame.write_csv(Path.home() / "pl.csv")
    grouped = pl.scan_parquet(Path.home() / "pl.parquet").group_by("k").agg(pl.col("n").sum()).collect()
    check(grouped["n"].sum() == sum(range(10_000)))


@mcp.tool
def sklearn(username: str) -> None:
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    samples, classes = make_classification(200, random_state=1)
    forest = RandomForestClassifier(10, n_jobs=2, random_state=1).fit(samples, classes)
    check(forest.score(samples, classes) > 0.8)


@mcp.tool
def joblib(username: str) -> None:
    import warnings

    from joblib import Parallel, delayed

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        squares = Parallel(n_jobs=2)(delayed(square)(n) for n in range(8))
    check(squares == [n * n for n in range(8)])


@mcp.tool
def pillow(username: str) -> None:
    from PIL import Image, ImageDraw, ImageFilter

    image = Image.new("RGB", (200, 100), "white")
    ImageDraw.Draw(image).text((10, 10), "text", fill="black")
    for kind in ("png", "jpeg", "gif", "webp", "tiff"):
        image.filter(ImageFilter.BLUR).save(Path.home() / f"i.{kind}")
        check(Image.open(Path.home() / f"i.{kind}").size == (200, 100))


@mcp.tool
def sqlite(username: str) -> None:
    first = sqlite3.connect(Path.home() / "s.db")
    check(first.execute("pragma journal_mode=wal").fetchone() == ("wal",))
    first.execute("create table t (n integer)")
    first.executemany("insert into t values (?)", [(n,) for n in range(1000)])
    first.commit()
    second = sqlite3.connect(f"file:{Path.home() / 's.db'}?mode=ro", uri=True)
    check(second.execute("select sum(n) from t").fetchone() == (499500,))
    first.execute("vacuum")
    for connection in (second, first):
        connection.close()


@mcp.tool
def git(username: str) -> None:
    def run(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout

    run("init", "-q", "repo")
    Path("repo/file").write_text("one\n")
    run("-C", "repo", "config", "user.email", "a@example.com")
    run("-C", "repo", "config", "user.name", "a")
    run("-C", "repo", "add", ".")
    run("-C", "repo", "commit", "-qm", "one")
    run("clone", "-q", "repo", "copy")
    Path("copy/file").write_text("two\n")
    check("+two" in run("-C", "copy", "diff"))
    run("-C", "copy", "gc", "-q")
    check(run("-C", "copy", "log", "--oneline").count("\n") == 1)


@mcp.tool
def programs(username: str) -> None:
    """As ffmpeg is used: bytes in by a pipe, bytes out by a pipe and into a file, several at once, a kill."""
    plain = os.urandom(1_000_000)
    packed = subprocess.run(["gzip", "-c"], input=plain, capture_output=True, check=True).stdout
    check(subprocess.run(["gzip", "-dc"], input=packed, capture_output=True, check=True).stdout == plain)
    Path("plain").write_bytes(plain)
    piped = "tar cf - plain | gzip > plain.tgz && tar xzf plain.tgz -O | cmp - plain"
    subprocess.run(piped, shell=True, check=True)
    completed = subprocess.run(
        [sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True
    )
    check(completed.stdout == "42\n")
    with subprocess.Popen(["sleep", "600"]) as sleeping:
        sleeping.kill()
    check(sleeping.returncode == -9, sleeping.returncode)


@mcp.tool
def threads(username: str) -> None:
    done: list[int] = []
    started = [threading.Thread(target=done.append, args=(n,)) for n in range(20)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    check(sorted(done) == list(range(20)))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        check(list(pool.map(square, range(8))) == [n * n for n in range(8)])


@mcp.tool
async def tasks(username: str) -> None:
    check(await asyncio.gather(*(asyncio.to_thread(square, n) for n in range(4))) == [0, 1, 4, 9])
    process = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    check(output == b"hi\n")
    left, right = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=left)
    right.sendall(b"over a pair\n")
    check(await reader.readline() == b"over a pair\n")
    writer.close()
    right.close()


def square(number: int) -> int:
    return number * number


@mcp.tool
def pool(username: str) -> None:
    with multiprocessing.Pool(2) as workers:
        check(workers.map(square, range(100)) == [n * n for n in range(100)])
        check(sorted(workers.imap_unordered(square, range(4))) == [0, 1, 4, 9])


@mcp.tool
def pool_without_home() -> None:
    with multiprocessing.Pool(2) as workers:
        check(workers.map(square, range(10)) == [n * n for n in range(10)])


@mcp.tool
def executor(username: str) -> None:
    with concurrent.futures.ProcessPoolExecutor(2) as workers:
        check(list(workers.map(square, range(100))) == [n * n for n in range(100)])
        check(workers.submit(square, 5).result(30) == 25)


@mcp.tool
def spawned(username: str) -> None:
    # By name: the file of a tool is not a module that a new interpreter could import.
    with multiprocessing.get_context("spawn").Pool(2) as workers:
        check(workers.map(abs, [-1, -2]) == [1, 2])


def _fills(name: str, queue: "multiprocessing.Queue[str]", ready: object) -> None:
    memory = shared_memory.SharedMemory(name=name)
    memory.buf[:4] = b"told"
    memory.close()
    queue.put("filled")
    ready.set()  # type: ignore[attr-defined]


@mcp.tool
def shared(username: str) -> None:
    memory = shared_memory.SharedMemory(create=True, size=1_000_000)
    queue, ready = multiprocessing.Queue(), multiprocessing.Event()
    child = multiprocessing.Process(target=_fills, args=(memory.name, queue, ready))
    child.start()
    check(queue.get(timeout=120) == "filled")
    check(ready.wait(30))
    child.join()
    check(bytes(memory.buf[:4]) == b"told")
    memory.close()
    memory.unlink()


def _adds(total: object) -> None:
    for _ in range(100):
        with total.get_lock():  # type: ignore[attr-defined]
            total.value += 1  # type: ignore[attr-defined]


@mcp.tool
def locks(username: str) -> None:
    total = multiprocessing.Value("i", 0)
    children = [multiprocessing.Process(target=_adds, args=(total,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    check(total.value == 300, total.value)
    check(not multiprocessing.Semaphore(0).acquire(timeout=0.01))


@mcp.tool
def manager(username: str) -> None:
    with multiprocessing.Manager() as served:
        check(len(served.dict(a=1)) == 1)


@mcp.tool
def temporary(username: str) -> None:
    with tempfile.TemporaryFile() as unnamed:
        unnamed.write(b"x")
    with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
        check(file.name.startswith(f"{Path.home()}/"))
        (Path(folder) / "x").touch()
    with tempfile.SpooledTemporaryFile(10) as spooled:
        spooled.write(b"x" * 100)
    made, path = tempfile.mkstemp()
    os.close(made)
    os.unlink(path)


@mcp.tool
def archives(username: str) -> None:
    Path("packed").mkdir()
    Path("packed/one.txt").write_text("1")
    with zipfile.ZipFile("a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write("packed/one.txt")
    with tarfile.open("a.tar.xz", "w:xz") as packed_too:
        packed_too.add("packed")
    for archive in ("a.zip", "a.tar.xz"):
        shutil.unpack_archive(archive, f"un-{archive}")
        check(Path(f"un-{archive}/packed/one.txt").read_text() == "1")
    shutil.make_archive("b", "gztar", "packed")
    shutil.copytree("packed", "copied")
    shutil.move("copied", "moved")
    shutil.rmtree("moved")


@mcp.tool
def files(username: str) -> None:
    Path("a").write_text("a")
    Path("link").symlink_to("a")
    os.link("a", "hard")
    os.replace("hard", "b")
    with Path("a").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX)
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0:1] = b"A"
    check(Path("link").read_text() == Path("b").read_text() == "A")
    check({entry.name for entry in os.scandir(".")} >= {"a", "b", "link"})
    logging.FileHandler("x.log").close()


@mcp.tool
def modes(username: str) -> None:
    Path("run.sh").write_text("#!/bin/sh\necho ran\n")
    os.chmod("run.sh", 0o755)
    check(os.stat("run.sh").st_mode & 0o777 == 0o755, oct(os.stat("run.sh").st_mode))


@mcp.tool
def times(username: str) -> None:
    Path("a").write_text("a")
    os.utime("a", (1_000_000_000, 1_000_000_000))
    shutil.copy2("a", "b")
    check(os.stat("b").st_mtime == 1_000_000_000)


@mcp.tool
def own_programs(username: str) -> None:
    shutil.copy("/bin/true", "true")
    subprocess.run([Path.home() / "true"], check=True)


@mcp.tool
def surroundings(username: str) -> None:
    check(getpass.getuser() == username, getpass.getuser())
    check(Path.home() == Path.cwd() == Path(f"/tmp/{username}"))
    check(Path("~").expanduser() == Path.home())
    check((os.cpu_count() or 0) > 0 and len(os.sched_getaffinity(0)) > 0)
    check(os.environ["USER"] == username)


@mcp.tool
def languages(username: str) -> None:
    check(locale.getpreferredencoding() == "UTF-8", locale.getpreferredencoding())
    check(sys.getfilesystemencoding() == "utf-8")
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    Path("ünï-文").write_text("ß")
    check("ünï-文" in os.listdir("."))
    check(sorted(["ä", "z", "a"], key=locale.strxfrm)[0] == "a")


@mcp.tool
def zones(username: str) -> None:
    summer = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    check(summer.isoformat() == "2026-07-01T12:00:00+02:00")
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    check(time.strftime("%z") == "+0900", time.strftime("%z"))


@mcp.tool
def foreign_functions(username: str) -> None:
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    numbers = (ctypes.c_int * 4)(3, 1, 2, 0)
    ctypes.CDLL(None).qsort(numbers, 4, ctypes.sizeof(ctypes.c_int), compare(lambda a, b: a[0] - b[0]))
    check(list(numbers) == [0, 1, 2, 3])


@mcp.tool
def processes(username: str) -> None:
    listed = subprocess.run(["ps", "-e"], capture_output=True, text=True)
    check(listed.returncode == 0, listed.stderr)


@mcp.tool
def root_folder(username: str) -> None:
    check("usr" in os.listdir("/"))


@mcp.tool
def listens(username: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


@mcp.tool
def configuration(username: str) -> None:
    check(len(Path("/etc/os-release").read_text()) > 0)
    check("MemTotal" in Path("/proc/meminfo").read_text())
    code = "import json, sys; print(json.dumps(sys.path))"
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    check(len(json.loads(completed)) > 0)
