"""The command `runner`: options read from the shell, reports written to it."""
