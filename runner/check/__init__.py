"""Checks of a tool file by `runner check`, in its text and in the sandbox."""
