"""Layer `environment`: exactly the variables named by the policy.

Source: environ(7), clearenv(3).
"""

import os
from collections.abc import Mapping

from sandbox.syscalls import clear_environment

__all__ = ["apply"]


def apply(environment: Mapping[str, str]) -> None:
    """Replace the environment of this process, for Python and for C code alike."""
    os.environ.clear()
    # Python knows only the variables at its start; a C library may have set more since.
    clear_environment()
    os.environ.update(environment)
