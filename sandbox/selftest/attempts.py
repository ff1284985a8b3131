"""Every attempt that needs nothing but the sandbox, in the order of the report.

Not among them, because the control would do harm: stopping or rebooting the machine, setting its clock or
name, loading modules and kernels, swap and quotas, kill(2) of all processes.
"""

from sandbox.selftest.reading import READING
from sandbox.selftest.resources import RESOURCES
from sandbox.selftest.surviving import SURVIVING
from sandbox.selftest.tampering import TAMPERING
from sandbox.selftest.writing import WRITING

__all__ = ["ATTEMPTS"]

ATTEMPTS = (*WRITING, *READING, *SURVIVING, *RESOURCES, *TAMPERING)
