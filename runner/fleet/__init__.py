"""Calls that worker nodes on any machine execute, over pydocket and Redis: the third executor."""
