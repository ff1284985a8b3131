"""Names of the variables that hand a planted secret to the process from which all workers are forked."""

__all__ = ["SECRET_FILE", "SECRET_WORD"]

SECRET_FILE = "TOOLCELL_SELFTEST_FILE"  # noqa: S105 - the name of a variable, no secret
"""Names a file that the process opens and forgets to close."""

SECRET_WORD = "TOOLCELL_SELFTEST_WORD"  # noqa: S105 - as above
"""Holds the secret itself."""
