"""A tool file that is warmed up, and says what came of it."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fastmcp import FastMCP

from runner.author import warm_up

mcp = FastMCP("warms-up")
seen: list[tuple[str, int]] = []


@warm_up
def usual() -> None:
    seen.append(("usual", os.getpid()))


@warm_up
def broken() -> None:
    seen.append(("broken", os.getpid()))
    raise ValueError("no model here")


@warm_up
def threaded() -> None:
    seen.append(("threaded", os.getpid()))
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


@warm_up
def burglar() -> None:
    Path("/tmp/toolcell-burglar").write_text("was here")


@mcp.tool
async def report() -> dict[str, Any]:
    """Return the functions called so far, the processes they ran in, and this process."""
    return {"seen": seen, "pid": os.getpid(), "parent": os.getppid()}


@mcp.tool
async def late_imports() -> list[str]:
    """Use pandas and matplotlib as tools do, and return the modules that imported."""
    import pandas as pd
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    before = set(sys.modules)
    frame = pd.DataFrame({"a": ["x", "y", "x"], "n": [1, 2, 3]})
    sums = frame.groupby("a")["n"].sum()
    figure = Figure()
    figure.add_subplot().bar(list(sums.index), list(sums))
    FigureCanvasAgg(figure).print_png(open(os.devnull, "wb"))  # noqa: SIM115
    return sorted(set(sys.modules) - before)
