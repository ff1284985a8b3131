"""Every way to write, all of them into the home."""

import os
import shutil
import sqlite3
import tempfile
import zipfile
from pathlib import Path

import pandas as pd
from fastmcp import FastMCP

mcp = FastMCP("Writes")


def home_of(username: str) -> Path:
    return Path(f"/tmp/{username}")


@mcp.tool
def write_all(username: str) -> dict[str, object]:
    """Write in many ways."""
    home = home_of(username)
    os.makedirs(os.path.join("/tmp", username, "deep"), exist_ok=True)
    with open(f"/tmp/{username}/deep/a.txt", "w") as file:
        file.write("a")
    (home / "b.txt").write_text("b")
    Path("relative.txt").write_text("begins in the home")
    (Path.home() / "c.txt").touch()
    pd.DataFrame({"n": [1]}).to_csv("/tmp/{}/table.csv".format(username))
    shutil.copy(home / "b.txt", home / "d.txt")
    with zipfile.ZipFile(home / "all.zip", "w") as archive:
        archive.write(home / "d.txt", "d.txt")
    with sqlite3.connect("/tmp/" + username + "/data.db") as connection:
        connection.execute("create table t (n integer)")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "inner").write_text("inner")
    os.replace(home / "d.txt", home / "e.txt")
    names = ["deep/a.txt", "b.txt", "relative.txt", "table.csv", "all.zip", "e.txt"]
    return {"results": len(names), "artifacts": [{"name": name, "path": str(home / name)} for name in names]}
