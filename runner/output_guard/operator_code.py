"""The operator's own code: functions that runner.toml names as `module:function`.

A module is searched beside the configuration file first, then among installed packages. It is imported into
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
from runner.settings.trust import UnsafeFile, read_judged, read_trusted

__all__ = ["function_name", "load_function", "module_beside"]

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def function_name(named: str) -> str:
    """Return the name of a function as it was given.

    Raises:
        ValueError: It is not written as `module:function`.
    """
    if not _NAME.fullmatch(named):
        raise ValueError(f"{named!r} names no function; write module:function, such as my_outputs:shorten")
    return named


def load_function(
    named: str, *, folder: Path | None, arguments: int, named_config: bool = True
) -> Callable[..., Any]:
    """Import the function that `module:function` names.

    Args:
        named: Its name, as `function_name` returns it.
        folder: Where the configuration file is, if there is one.
        arguments: How many it will be called with.
        named_config: Whether the operator named that file; if not, a module beside it must be trustworthy.

    Raises:
        UsageError: There is no such function, its module cannot be imported, or it takes other arguments.
    """
    module_name, _, name = named.partition(":")
    try:
        module = _module(module_name, folder, named_config=named_config)
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
        # Some functions written in C have no signature.
        pass
    return function


def module_beside(name: str, folder: Path) -> Path | None:
    """Return the file of a module in the folder of a configuration file, if there is one."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    return file if file.is_file() else None


def _module(name: str, folder: Path | None, *, named_config: bool) -> ModuleType:
    beside = None if folder is None else module_beside(name, folder)
    if beside is None:
        return _installed(name, folder)
    try:
        source = read_judged(beside).content if named_config else read_trusted(beside, "output_transformer")
    except UnsafeFile as error:
        raise UsageError(f"{beside} is not imported: {error}") from None
    # A unique name: a module like `json` must not replace that of a library in the host.
    spec = importlib.util.spec_from_file_location(f"runner_operator_{name.replace('.', '_')}", beside)
    if spec is None:
        raise UsageError(f"{beside} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # From the source that was checked: cached bytecode beside it could be anybody's.
    exec(compile(source, beside, "exec"), module.__dict__)  # noqa: S102 - the operator's code
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
