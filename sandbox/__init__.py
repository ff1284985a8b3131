"""Confine one function in a process of its own and report how it ended."""
