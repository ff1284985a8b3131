"""Denials in errors of libraries and programs that a tool handles: recorded where Python tells of those."""

import sys

import pytest
from guard_world import World

# Older interpreters tell nobody of errors that are handled; what is denied stays denied.
TOLD = sys.version_info >= (3, 12)

# Each raises what a library in C, or one that runs programs, makes of what the kernel answered.
ACTS = {
    "arrow": "raise PermissionError(f\"Failed to open local file '{path}'. Detail: [errno 13]\")",
    "rust": 'raise PermissionError(f"Permission denied (os error 13): {path}")',
    "program": 'subprocess.run(["sh", "-c", f"echo \'touch: {path}: Permission denied\' >&2; exit 1"], '
    "check=True, capture_output=True)",
    "numbered": "raise PermissionError(13, 'Permission denied', str(path))",
}


def attempt(act: str, path: str) -> str:
    return f"""
        import contextlib, subprocess
        path = {path}
        with contextlib.suppress(Exception):
            {act}
        try:
            {act}
        except (OSError, subprocess.CalledProcessError):
            value = "kept quiet"
    """


@pytest.mark.parametrize("name", ACTS)
def test_denial_inside_library_is_recorded_if_tool_handles_error(world: World, name: str) -> None:
    """Source: S1-102."""
    report = world.run(attempt(ACTS[name], "outside / 'new.txt'"))

    assert report.value == "kept quiet"
    recorded = [(denial.path, denial.layer) for denial in report.denials]
    assert recorded == ([(str(world.outside / "new.txt"), "kernel")] if TOLD else [])


@pytest.mark.parametrize("path", ["home / 'new.txt'", "'/sys/kernel/notes'"])
def test_handled_error_in_home_or_proc_records_no_denial(world: World, path: str) -> None:
    report = world.run(attempt(ACTS["arrow"], path))

    assert (report.value, report.denials) == ("kept quiet", ())


def test_other_errors_and_missing_files_are_not_denials(world: World) -> None:
    report = world.run("""
        for error in (ValueError("Permission denied: /etc/x"), FileNotFoundError(2, "none", "/etc/none")):
            try:
                raise error
            except type(error):
                value = "kept quiet"
    """)

    assert (report.value, report.denials) == ("kept quiet", ())


def test_program_using_every_tool_id_is_served(world: World) -> None:
    report = world.run("""
        import sys
        from sandbox.denials.handled import _FREE_IDS
        from sandbox.denials.install import install_guard
        from sandbox.denials.paths import PathRules
        for number in _FREE_IDS if sys.version_info >= (3, 12) else ():
            if sys.monitoring.get_tool(number) is None:
                sys.monitoring.use_tool_id(number, "somebody else")
        install_guard(PathRules(home=home, homes=(home.parent,)))
        value = "installed"
    """)

    assert (report.error, report.value) == (None, "installed")
