"""Functions that no tool reaches may do as they like."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("Untouched")


class Registry:
    def tool(self, function):
        return function


plugins = Registry()


@plugins.tool
def plugin(text):
    Path("/var/out.txt").write_text(text)


def export(text: str) -> None:
    with open("/data/export.txt", "w") as file:
        file.write(text)


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()


def main() -> None:
    export("all")
    print("exported")


if __name__ == "__main__":
    main()
