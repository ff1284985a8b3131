import ast
import os
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_the_tool_file_in_the_readme_is_the_sample() -> None:
    assert code_blocks("python") == [(ROOT / "sample_tools" / "hello.py").read_text()]


def test_the_first_command_installs_and_calls_a_tool_that_exists_on_data_that_exist() -> None:
    make, install, call = (shlex.split(part) for part in code_blocks("sh")[0].split("&&"))

    runner, verb, tool_file, tool, argument = call
    functions = {
        node.name: [arg.arg for arg in node.args.args]
        for node in ast.parse((ROOT / tool_file).read_text()).body
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)
    }
    name, _, data = argument.partition("=@")

    assert make == ["python3", "-m", "venv", "v"]
    assert install == ["v/bin/pip", "install", "."]
    assert (runner, verb) == ("v/bin/runner", "call")
    assert name in functions[tool]
    assert (ROOT / data).is_file()


def test_the_second_command_is_a_script_that_can_be_run() -> None:
    script = ROOT / code_blocks("sh")[1].strip()

    assert os.access(script, os.X_OK)


def test_the_readme_says_how_many_rows_the_sample_data_have() -> None:
    rows = len((ROOT / "sample_tools" / "data" / "sales.csv").read_text().splitlines()) - 1

    assert f"{rows:,} sales" in README


def test_what_a_tool_can_and_cannot_do_has_six_rows() -> None:
    section = README.split("## What a tool can and cannot do")[1].split("\n## ")[0]

    assert len([line for line in section.splitlines() if line.startswith("| ")]) == 2 + 6
