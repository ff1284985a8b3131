"""Calls that worker nodes on any machine execute, over streams of Redis: the third executor."""
