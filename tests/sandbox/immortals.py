"""Detection of a Python build whose immortal objects `sandbox.inside.immortal` knows."""

import sys
import sysconfig

__all__ = ["HAS_IMMORTALS"]

_COUNTS_OTHERWISE = ("Py_GIL_DISABLED", "Py_DEBUG", "Py_TRACE_REFS")

HAS_IMMORTALS = (3, 12) <= sys.version_info < (3, 14) and not any(
    map(sysconfig.get_config_var, _COUNTS_OTHERWISE)
)
