"""Every attempt that needs nothing but the sandbox, in the order in which it is told of.

Not among them, because the control would do harm: stopping or rebooting the machine, setting its clock or
name, loading modules and kernels, swap and quotas, kill(2) of all processes.
"""

from sandbox.selftest.attempt import Attempt
from sandbox.selftest.memory import MEMORY
from sandbox.selftest.reaching import REACHING
from sandbox.selftest.reading import READING
from sandbox.selftest.resources import RESOURCES
from sandbox.selftest.rights import RIGHTS
from sandbox.selftest.strangers import STRANGERS
from sandbox.selftest.surviving import SURVIVING
from sandbox.selftest.writing import WRITING

__all__ = ["ATTEMPTS"]

ATTEMPTS: tuple[Attempt, ...] = (
    *WRITING,
    *READING,
    *SURVIVING,
    *MEMORY,
    *RESOURCES,
    *STRANGERS,
    *REACHING,
    *RIGHTS,
)
