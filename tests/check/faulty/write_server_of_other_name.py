"""The server has another name, and an alias registers the tool."""

from fastmcp import FastMCP as Server

notes: Server = Server("notes")
tool = notes.tool


@tool
def note(text: str) -> str:
    """Keep a note."""
    with open("note.txt", "wb") as file:  # expect: write-without-username
        file.write(text.encode())
    return "kept"
