"""Adapter from the input of a conformance case to the project's public functions.

`README.md` beside this file defines the operations. There is no logic here that the project lacks: only
the translation of a case into calls, and of what came of them into an observation.
"""

from collections.abc import Callable, Mapping
from typing import Any

import conformance_path  # noqa: F401  (the modules below it share code with other tests)

# isort: split
import conformance_arguments
import conformance_calls
import conformance_guard
import conformance_http
import conformance_pages
import conformance_resources
import conformance_results
import conformance_stores
import conformance_widgets
import conformance_widgets_ui

__all__ = ["OPERATIONS", "observe"]

OPERATIONS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    **conformance_arguments.OPERATIONS,
    **conformance_results.OPERATIONS,
    **conformance_calls.OPERATIONS,
    **conformance_guard.OPERATIONS,
    **conformance_resources.OPERATIONS,
    **conformance_http.OPERATIONS,
    **conformance_stores.OPERATIONS,
    **conformance_widgets.OPERATIONS,
    **conformance_widgets_ui.OPERATIONS,
    **conformance_pages.OPERATIONS,
}


def observe(case_input: dict[str, Any]) -> dict[str, Any]:
    """Return what the project did with one case.

    Raises:
        NotImplementedError: The project does not have the operation yet.
    """
    operation = OPERATIONS.get(case_input["op"])
    if operation is None:
        raise NotImplementedError(case_input["op"])
    return operation(case_input)
