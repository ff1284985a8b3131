"""`runner config --tool NAME` says which rules apply to a tool, where each was given, and why."""

import json
import subprocess
import sys
from pathlib import Path

TOML = """\
[output_guard]
max_inline_size = 5000

[output_guard.tool_fields]
"$preset" = ["tableau"]
"files.export" = [{field_path = "a.b", content_type = "text", only_large = true}]

[output_guard.tools."files.*"]
max_observation_chars = 9000

[output_guard.tools.export]
max_observation_chars = 800
"""


def explained(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    file = folder / "runner.toml"
    file.write_text(TOML)
    command = [sys.executable, "-m", "runner", "config", "--config", str(file), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)


def test_tool_rules_are_explained_with_file_and_reason(tmp_path: Path) -> None:
    done = explained(tmp_path, "--tool", "files_export", "--server", "files", "--json")

    rules = {rule.pop("name"): tuple(rule.values()) for rule in json.loads(done.stdout)}
    assert rules == {
        "max_observation_chars": (800, "runner.toml", "key 'export' of tools"),
        "max_inline_size": (5000, "runner.toml", "general"),
        "output_transformer": (None, "default", "general"),
        "field a.b": (
            "text, where it is large: Downloaded {content_type} ({size} bytes)",
            "runner.toml",
            "key 'files.export' of tool_fields",
        ),
    }


def test_applied_preset_is_named(tmp_path: Path) -> None:
    done = explained(tmp_path, "--tool", "prod_download_workbook")

    assert "(preset tableau, runner.toml; key 'download_workbook' of tool_fields)" in done.stdout
    assert "field content = pdf: Downloaded workbook" in done.stdout


def test_tool_without_fields_is_reported_without_fields(tmp_path: Path) -> None:
    done = explained(tmp_path, "--tool", "other")

    assert "max_observation_chars = 50000  (default; general)" in done.stdout
    assert "no field of this tool" in done.stdout
