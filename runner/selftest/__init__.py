"""`runner selftest`: attempts to get out of the sandbox, and their report."""
