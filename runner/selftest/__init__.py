"""`runner selftest`: attempts to escape the sandbox, and their report."""
