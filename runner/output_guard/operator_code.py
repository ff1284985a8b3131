"""The operator's own code: functions that runner.toml names as `module:function`.

A module is looked for beside the configuration file first, then among what is installed. It is imported into
the host, unconfined, when the server starts: it is the operator's, never an author's.

Source: document 004, section 3.6; requirements S4-39 and S4-61.
"""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from runner.errors import UsageError

__all__ = ["function_name", "load_function"]

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def function_name(named: str) -> str:
    """Return the name of a function as it was given.

    Raises:
        ValueError: It is not written as `module:function`.
    """
    if not _NAME.fullmatch(named):
        raise ValueError(f"{named!r} names no function; write module:function, such as my_outputs:shorten")
    return named


def load_function(named: str, *, folder: Path | None, arguments: int) -> Callable[..., Any]:
    """Import the function that `module:function` names.

    Args:
        named: Its name, as `function_name` returns it.
        folder: Where the configuration file is, if there is one.
        arguments: How many it will be called with.

    Raises:
        UsageError: There is no such function, its module cannot be imported, or it takes other arguments.
    """
    module_name, _, name = named.partition(":")
    try:
        module = _module(module_name, folder)
    except UsageError as error:
        raise UsageError(f"{named}: {error}") from None
    except (Exception, SystemExit) as error:  # the operator's code: whatever it raises is said in a sentence
        raise UsageError(
            f"{named}: the module {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None or not callable(function):
        raise UsageError(f"{named}: the module {module_name} has no function {name!r}")
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        wanted = "(tool_name, result, ctx)" if arguments == 3 else f"{arguments} arguments"
        raise UsageError(f"{named}: {name} must take {wanted}") from None
    except ValueError:
        # Some functions written in C do not tell.
        pass
    return function


def _module(name: str, folder: Path | None) -> ModuleType:
    beside = None if folder is None else folder.joinpath(*name.split(".")).with_suffix(".py")
    if beside is None or not beside.is_file():
        return _installed(name, folder)
    # A name of its own: one like `json` must not stand for the library's in the host.
    spec = importlib.util.spec_from_file_location(f"runner_operator_{name.replace('.', '_')}", beside)
    if spec is None or spec.loader is None:
        raise UsageError(f"{beside} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _installed(name: str, folder: Path | None) -> ModuleType:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        places = f"beside {folder / 'runner.toml'} nor" if folder else "beside a configuration file nor"
        raise UsageError(f"there is no module {name}, neither {places} among what is installed")
    return importlib.import_module(name)
