"""Fills a database."""

import sqlite3

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def remember(word: str) -> int:
    """Keep a word in a database."""
    with sqlite3.connect("words.db") as connection:  # expect: write-without-username
        connection.execute("create table if not exists words (word text)")
        connection.execute("insert into words values (?)", (word,))
        return connection.execute("select count(*) from words").fetchone()[0]
