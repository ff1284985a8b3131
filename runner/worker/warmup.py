"""Warm-up in a zygote, so that no call is the first to use a library.

The first use of a library costs more than all later ones: modules are imported late, tables are built, code
runs for the first time. Each worker would pay for that in its first call; without reuse, each call would.
Therefore the libraries that tool files commonly import are used once on data of ours, after the load and
before the first fork. Authors can register further functions with `runner.author.warm_up`.

Each warm-up is first tried in a fork of the zygote. If it fails there, takes too long, or starts a thread, it
is skipped: a zygote with a second thread cannot be forked.
"""

import contextlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

from runner.author import WARM_UPS
from sandbox.outcome import describe_status

__all__ = ["Warmups"]

_LONGEST_S = 20
_REASON_BYTES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warmup:
    """One warm-up.

    Attributes:
        act: The function. It must have no effect except that later calls are faster.
        name: Its name for the author.
        needs: The module that must have been imported for it.
        in_workers: Whether it is short enough to run in each parked worker too, where it triggers
            copy-on-write of pages that a call will write.
        is_authors: Whether it is the author's, who is then informed if it is skipped.
    """

    act: Callable[[], Any]
    name: str
    needs: str | None = None
    in_workers: bool = False
    is_authors: bool = False


class Warmups:
    """The warm-ups of one tool file."""

    def __init__(self) -> None:
        self._repeated: list[_Warmup] = []

    def run(self) -> None:
        """Run all that can run, in a zygote; write a line for each skipped function of the author."""
        for warmup in (*_KNOWN, *map(_of_author, WARM_UPS)):
            if warmup.needs is not None and warmup.needs not in sys.modules:
                continue
            fault = _fault(warmup)
            if fault is None:
                _do(warmup)
                if warmup.in_workers:
                    self._repeated.append(warmup)
            elif warmup.is_authors:
                # The host logs the output of a zygote.
                sys.stderr.write(f"warm-up {warmup.name} was left out: {fault}\n")

    def repeat(self) -> None:
        """Run the short ones again, in a worker that has no call yet."""
        for warmup in self._repeated:
            # A worker has limits that its zygote lacks; if they are too low, the call reports it.
            with contextlib.suppress(Exception):
                _do(warmup)


def _of_author(act: Callable[[], Any]) -> _Warmup:
    return _Warmup(act=act, name=getattr(act, "__qualname__", repr(act)), is_authors=True)


def _do(warmup: _Warmup) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warmup.act()


def _fault(warmup: _Warmup) -> str | None:
    """Try a warm-up in a fork, which exits afterwards; return the reason to skip it, if any."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _try(warmup, writer)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    # Not read to end of file: an orphan of the warm-up could keep the pipe open.
    os.set_blocking(reader, False)
    with open(reader, "rb", buffering=0) as pipe:
        reason = (pipe.read(_REASON_BYTES) or b"").decode(errors="replace")
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) == signal.SIGALRM:
            return f"it took longer than {_LONGEST_S} seconds"
        return f"it ended its process with {describe_status(status).removeprefix('signal ')}"
    return None if os.WEXITSTATUS(status) == 0 else reason or "it ended its process"


def _try(warmup: _Warmup, writer: int) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LONGEST_S)
        _do(warmup)
        if _threads() == 1:
            status = 0
        else:
            os.write(writer, b"it starts threads, which a fork would not have; start them in the tool")
    except BaseException as error:  # noqa: BLE001 - whatever it was, this process is for finding out
        os.write(writer, f"{type(error).__name__}: {error}".encode(errors="backslashreplace")[:_REASON_BYTES])
    finally:
        os._exit(status)


def _threads() -> int:
    """Count the threads of this process by the links of their folder: stat(2) is all that Landlock leaves."""
    return os.stat("/proc/self/task").st_nlink - 2


def _pandas() -> None:
    pandas: Any = sys.modules["pandas"]
    frame = pandas.DataFrame({"key": ["a", "b", "a"], "number": [1, 2, 3], "share": [0.5, 0.25, 0.25]})
    frame.groupby("key")["number"].sum().to_dict()
    frame[frame["number"] > 1].sort_values("share").head(2).to_json()


def _more_pandas() -> None:
    pandas: Any = sys.modules["pandas"]
    frame = pandas.read_csv(io.StringIO("day,key,number\n2024-01-31,a,1\n2024-02-29,b,2.5\n"))
    frame["month"] = pandas.to_datetime(frame["day"]).dt.strftime("%Y-%m")
    frame.merge(frame, on="key").describe()
    frame.pivot_table(index="key", columns="month", values="number").fillna(0).to_csv()
    pandas.concat([frame, frame]).drop_duplicates().to_dict("records")
    frame["number"].nlargest(1).idxmax()


def _matplotlib() -> None:
    # The usual backend, which a file that imports Figure will need.
    backend: Any = import_module("matplotlib.backends.backend_agg")
    figure: Any = sys.modules["matplotlib.figure"].Figure()
    canvas = backend.FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([1, 2, 3], [2, 1, 3], label="line")
    axes.bar(["a", "b"], [1, 2])
    axes.set_title("Title")
    axes.legend()
    canvas.print_png(io.BytesIO())


_KNOWN = (
    _Warmup(act=_pandas, name="pandas", needs="pandas", in_workers=True),
    _Warmup(act=_more_pandas, name="more of pandas", needs="pandas"),
    _Warmup(act=_matplotlib, name="matplotlib", needs="matplotlib.figure"),
)
