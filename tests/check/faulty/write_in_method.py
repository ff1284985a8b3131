"""Writes in a method of a class of the file."""

import io

from fastmcp import FastMCP

mcp = FastMCP("small")


class Diary:
    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, text: str) -> None:
        with io.open(f"{self.name}.txt", "a+") as file:  # expect: write-without-username
            file.write(text)


@mcp.tool
def note(text: str) -> str:
    """Keep a note."""
    diary = Diary("today")
    diary.add(text)
    return "kept"
