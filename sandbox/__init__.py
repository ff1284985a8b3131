"""Confinement of a function in a process of its own, with a report of how it ended."""
