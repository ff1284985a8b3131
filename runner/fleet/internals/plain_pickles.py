"""Read what pydocket has pickled, and nothing that could run code.

pydocket keeps the arguments of a task as a pickle, and loads it before any code of ours has seen it. Ours are
one text, which a pickle holds without naming anything to import. So one that names something is refused:
an attacker who writes to Redis can put garbage there, but not run code on the machines that read it.

Source: pickle, "Restricting Globals"; pydocket 0.27, `execution.py`, `strikelist.py`.
"""

import io
import pickle
from typing import Any

import docket.execution
import docket.strikelist

__all__ = ["read_plain_pickles_only"]


class _Plain(pickle.Unpickler):
    """Loads texts, numbers, lists and the like."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse whatever would have to be imported.

        Raises:
            UnpicklingError: Always.
        """
        raise pickle.UnpicklingError(f"a record in Redis names {module}.{name}, which is not loaded")


class _PlainPickles:
    """Stands in for the module by which pydocket pickles."""

    @staticmethod
    def dumps(value: object) -> bytes:
        """Return a value as a pickle."""
        return pickle.dumps(value)

    @staticmethod
    def loads(text: bytes) -> Any:
        """Return a plain value from its pickle.

        Raises:
            UnpicklingError: It names something to import.
        """
        return _Plain(io.BytesIO(text)).load()


def read_plain_pickles_only() -> None:
    """Make pydocket load plain values only, in this process, from now on."""
    for module in (docket.execution, docket.strikelist):
        vars(module)["cloudpickle"] = _PlainPickles
