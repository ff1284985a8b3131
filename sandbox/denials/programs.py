"""Denial of a program, if a policy allows only named programs or none.

Source: Python documentation, module `subprocess`; execve(2).
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from types import TracebackType

from sandbox.denials.paths import PathRules
from sandbox.outcome import Denial

__all__ = ["RUN", "denied_program", "may_run"]

RUN = "run"


def may_run(program: str, rules: PathRules) -> bool:
    """Return whether the rules let a program be run; the kernel rejects files that are not programs."""
    if rules.programs and not rules.run:
        return True
    found = program if "/" in program else shutil.which(program)
    if found is None or not os.access(found, os.F_OK) or not os.stat(found).st_mode & 0o111:
        return True
    return rules.programs and os.path.realpath(found) in {str(path) for path in rules.run}


def denied_program(error: BaseException, rules: PathRules) -> Denial | None:
    """Return the denial of a program that an error itself represents."""
    if not isinstance(error, OSError) or error.errno != errno.EACCES or error.filename is None:
        return None
    if (subprocess.__file__, "_execute_child") not in _places(error.__traceback__):
        return None
    name = os.fsdecode(error.filename)
    return None if may_run(name, rules) else Denial(operation=RUN, path=name, layer="kernel")


def _places(traceback: TracebackType | None) -> Iterator[tuple[str, str]]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield os.path.abspath(code.co_filename), code.co_name
        traceback = traceback.tb_next
