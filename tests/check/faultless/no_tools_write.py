"""Functions that no tool reaches may do as they like."""

from fastmcp import FastMCP

mcp = FastMCP("Untouched")


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
