"""Units and compose files of `runner up`: every text is read back as it was given, whatever is in it."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec.models import ComposeSpecification
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.up.compose import compose_text
from runner.up.units import DROP_IN, unit_files
from runner.up.users_file import UserServer, planned

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
HOSTILE = "a\" ' \\ ; $HOME ${PATH} %h %% ../x\n[Service]\nExecStart=/bin/evil\r\t\u2028 # é\U0001f600"
DEPLOY = Path(__file__).parents[2] / "deploy"


def servers(folder: Path, name: str, text: str) -> list[UserServer]:
    users = {name: {"environment": {"A": text, "B": "plain"}}, "other": {"proxy": ["program", text]}}
    path = folder / "users.json"
    path.write_text(json.dumps({"ports": "9000-9009", "defaults": {"tools": ["json"]}, "users": users}))
    return planned(path, {})


def words_of(line: str) -> list[str]:
    """Read the words of a line as systemd.syntax(7) has them: double quotes, C escapes, then `%%`."""
    words = []
    while line:
        found = re.match(r'"([ -!#-~]*)"(?: |$)', line)
        assert found is not None, line
        # Whatever is not an escape of two digits stands for itself.
        raw = re.sub(r"\\x([0-9a-f]{2})", lambda escape: chr(int(escape[1], 16)), found[1])
        assert "%" not in found[1].replace("%%", "")
        assert "\\" not in re.sub(r"\\x[0-9a-f]{2}", "", found[1])
        words.append(raw.encode("latin-1").decode().replace("%%", "%"))
        line = line[found.end() :]
    return words


def lines_of(text: str, key: str) -> list[list[str]]:
    return [words_of(line.partition("=")[2]) for line in text.splitlines() if line.startswith(f"{key}=")]


@given(name=TEXTS, text=TEXTS)
@settings(max_examples=40, deadline=None)
def test_unit_gives_back_every_text(tmp_path_factory: pytest.TempPathFactory, name: str, text: str) -> None:
    first, other = servers(tmp_path_factory.getbasetemp(), name, text)
    units = unit_files([first, other])
    mine, proxied = (units[DROP_IN.format(one.unit)] for one in (first, other))

    # `$$` is a dollar sign in a command, and stands for itself in a variable.
    reset, command = lines_of(mine, "ExecStart")
    assert reset == []
    assert command[command.index("--user") + 1].replace("$$", "$") == name
    assert "$" not in "".join(command).replace("$$", "")
    assert lines_of(mine, "Environment") == [[f"A={text}"], ["B=plain"]]
    assert [word.replace("$$", "$") for word in lines_of(proxied, "ExecStart")[1]][-3:] == [
        "--",
        "program",
        text,
    ]


@given(name=TEXTS, text=TEXTS)
@settings(max_examples=40, deadline=None)
def test_compose_gives_back_every_text(
    tmp_path_factory: pytest.TempPathFactory, name: str, text: str
) -> None:
    first, other = servers(tmp_path_factory.getbasetemp(), name, text)

    found = yaml.safe_load(compose_text([first, other]))["services"]

    assert set(found) == {first.unit, other.unit}
    values = [
        *found[first.unit]["command"],
        *found[other.unit]["command"],
        found[first.unit]["environment"]["A"],
    ]
    assert not [one for one in values if "$" in one.replace("$$", "")]
    plain = [one.replace("$$", "$") for one in values]
    assert plain[plain.index("--user") + 1] == name
    assert plain[-2:] == [text, text]


def test_systemd_accepts_units_of_hostile_users(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze is missing: apt-get install systemd"
    hostile, _ = servers(tmp_path, HOSTILE, HOSTILE)

    def complaints(text: str) -> list[str]:
        for name, unit in {**unit_files([hostile]), DROP_IN.format(hostile.unit): text}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(unit)
        ran = subprocess.run(
            [analyze, "verify", f"toolcell@{hostile.unit}.service"],
            env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
            capture_output=True,
            text=True,
            check=False,
        )
        return [line for line in ran.stderr.splitlines() if "up.conf" in line or "evil" in line]

    written = unit_files([hostile])[DROP_IN.format(hostile.unit)]

    assert complaints(written) == []
    assert complaints(written.replace('"--user"', f'"--user" {HOSTILE}')) != []


def test_compose_service_is_confined_like_the_one_in_deploy(tmp_path: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(compose_text(servers(tmp_path, "ann", "x")))
    ours = document["services"]["ann"]
    model = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["toolcell"]

    ComposeSpecification.model_validate(document)
    alike = (
        "image",
        "user",
        "read_only",
        "cap_drop",
        "security_opt",
        "mem_limit",
        "memswap_limit",
        "pids_limit",
    )
    more = ("healthcheck", "stop_grace_period", "restart")
    expected = {key: model[key] for key in (*alike, *more)} | {"mem_limit": "4096m", "memswap_limit": "4096m"}
    assert {key: ours[key] for key in expected} == expected
    assert ours["ports"] == [{"host_ip": "127.0.0.1", "published": "9000", "target": 8000}]


def test_bounds_of_the_users_file_are_in_the_files(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    bounds = {"memory_mb": 512, "processes": 64, "cpus": 1.5}
    path.write_text(json.dumps({"stop_s": 50, "users": {"ann": {"port": 9000, "tools": ["json"], **bounds}}}))
    found = planned(path, {})

    unit = unit_files(found)[DROP_IN.format("ann")].splitlines()
    service = yaml.safe_load(compose_text(found))["services"]["ann"]

    assert {"MemoryMax=512M", "TasksMax=64", "CPUQuota=150%", "TimeoutStopSec=50"} <= set(unit)
    assert [service[key] for key in ("mem_limit", "pids_limit", "cpus")] == ["512m", 64, 1.5]
    assert service["stop_grace_period"] == "50s"
