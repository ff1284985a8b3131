"""What it calls at import prints."""

import argparse

from fastmcp import FastMCP

mcp = FastMCP("small")


parser = argparse.ArgumentParser(prog="small")
parser.print_usage()  # expect: print-to-stdout


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()
