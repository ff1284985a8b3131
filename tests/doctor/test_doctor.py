import json
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from certificates import DAY, Authority, Pair, here, tls_folder

from runner.doctor.report import SUPPORTED, DoctorLine, DoctorReport, Level, reflinks, report
from runner.settings.auth import Auth
from runner.settings.isolation import in_force
from runner.settings.settings import Settings
from sandbox.probe.machine import probe

pytestmark = pytest.mark.release


def settings(folder: Path, **changes: object) -> Settings:
    homes = folder / "homes"
    homes.mkdir(exist_ok=True)
    values = {"homes": homes, "state_dir": folder / "state", "store": (folder / "store").as_uri(), **changes}
    return Settings.model_validate(values)


def lines(found: DoctorReport, section: str) -> dict[str, DoctorLine]:
    return {line.name: line for line in found.lines if line.section == section}


def test_a_machine_that_has_everything_passes_and_says_its_tier(tmp_path: Path) -> None:
    found = report(settings(tmp_path))

    assert [line for line in found.lines if line.level is Level.MISSING] == []
    assert (found.exit_status, found.tier) == (0, in_force(settings(tmp_path)).value)
    assert found.tier is not None
    assert lines(found, "tiers")[found.tier].detail == "in force"
    assert {"landlock", "seccomp"} <= set(lines(found, "layers"))


def test_a_secret_that_cannot_be_had_fails_with_its_cure(tmp_path: Path) -> None:
    secret = {"file": tmp_path / "gone", "tools": ["fetch"]}
    there = {"command": ["echo", "a-value-of-length"], "tools": ["fetch"]}

    missing = lines(report(settings(tmp_path, secrets={"API_KEY": secret})), "configuration")["secret"]
    had = lines(report(settings(tmp_path, secrets={"API_KEY": there})), "configuration")["secret"]

    assert missing.level is Level.MISSING
    assert f"{tmp_path}/gone does not exist" in missing.detail
    assert missing.cure == ("the server does not start without it; fix it, or take [secrets.API_KEY] out")
    # The command itself is for the server to run.
    detail = "API_KEY, for fetch: its program is there; a server runs it"
    assert (had.level, had.detail) == (Level.OK, detail)


@pytest.fixture
def _without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that allows none."""
    offered = replace(probe(), namespaces="namespaces are refused; allow them")
    monkeypatch.setattr("runner.doctor.report.probe", lambda **_: offered)


@pytest.mark.usefixtures("_without_namespaces")
def test_a_tier_asked_for_that_is_not_there_fails_with_its_cure(tmp_path: Path) -> None:
    found = report(settings(tmp_path, isolation="namespace"))

    line = lines(found, "tiers")["namespace"]
    assert (found.exit_status, found.tier, line.level) == (1, None, Level.MISSING)
    assert line.cure


@pytest.mark.usefixtures("_without_namespaces")
def test_a_tier_not_asked_for_is_a_note_with_its_reason(tmp_path: Path) -> None:
    line = lines(report(settings(tmp_path)), "tiers")["namespace"]

    assert line.level is Level.NOTE
    assert line.detail == "namespaces are refused; allow them"


def test_debian_12_kernel_report_names_no_requested_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = replace(probe(), kernel="6.1.0-50-amd64", landlock_abi=2)
    monkeypatch.setattr("runner.doctor.report.probe", lambda **_: offered)

    found = report(settings(tmp_path))

    line = lines(found, "tiers")["process"]
    assert (found.exit_status, found.tier, line.level) == (1, None, Level.MISSING)
    assert line.detail == "not available, and no other either"
    assert "kernel 6.1.0-50-amd64 offers 2; use Linux 6.2 or newer" in str(line.cure)
    chosen = report(settings(tmp_path, isolation="process"))
    assert lines(chosen, "tiers")["process"].detail == "asked for, not available"


def test_a_tier_that_is_there_is_said_to_be(tmp_path: Path) -> None:
    chosen = report(settings(tmp_path, isolation="process"))

    assert (chosen.tier, lines(chosen, "tiers")["process"].detail) == ("process", "in force")
    assert lines(chosen, "tiers")["namespace"].detail == "available"


def test_folders_that_are_not_there_yet_are_announced(tmp_path: Path) -> None:
    line = lines(report(settings(tmp_path)), "folders")["state"]

    assert line.level is Level.OK
    assert line.detail.startswith(f"{tmp_path / 'state'}: will be made in {tmp_path}")


def test_a_folder_that_cannot_be_made_is_not_said_to_be_about_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    line = lines(report(settings(tmp_path, state_dir=tmp_path / "file" / "state")), "folders")["state"]

    assert line.level is Level.MISSING
    assert (
        line.detail
        == f"{tmp_path}/file/state: is not there, and this user can make nothing in {tmp_path}/file"
    )
    assert str(line.cure).startswith("make it, as a folder of the user ")


def test_missing_homes_fail_with_the_command_that_makes_them(tmp_path: Path) -> None:
    found = report(settings(tmp_path, homes=tmp_path / "nowhere"))

    line = lines(found, "folders")["homes"]
    assert (found.exit_status, line.level) == (1, Level.MISSING)
    assert line.cure is not None
    assert line.cure.startswith(f"mkdir -m 1777 {tmp_path / 'nowhere'}")


def test_world_writable_homes_need_the_sticky_bit(tmp_path: Path) -> None:
    good = settings(tmp_path)
    good.homes.chmod(0o1777)
    with_bit = lines(report(good), "folders")["homes"]

    good.homes.chmod(0o777)
    without = lines(report(good), "folders")["homes"]

    assert with_bit.level is Level.OK
    assert without.level is Level.MISSING
    assert without.cure == f"chmod +t {good.homes}: without it anybody may replace a home"


def test_a_store_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")

    line = lines(report(settings(tmp_path)), "folders")["store"]

    assert line.level is Level.MISSING
    assert line.cure is not None
    assert "RUNNER_STORE" in line.cure


def test_a_state_folder_open_to_others_is_noted(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    closed = lines(report(settings(tmp_path)), "folders")["state"]

    (tmp_path / "state").chmod(0o755)
    opened = lines(report(settings(tmp_path)), "folders")["state"]

    assert closed.level is Level.OK
    assert (opened.level, opened.cure) == (Level.NOTE, f"chmod 700 {tmp_path / 'state'}")


def test_a_server_that_would_not_start_fails(tmp_path: Path) -> None:
    open_to_all = report(settings(tmp_path, transport="http", host="0.0.0.0"))
    no_tokens = report(settings(tmp_path, auth=Auth(kind="static", tokens_file=tmp_path / "none.json")))

    assert "reachable from other machines" in lines(open_to_all, "configuration")["auth"].detail
    no_key = report(
        settings(
            tmp_path,
            auth=Auth(
                kind="gateway",
                gateway_tls=tmp_path / "none",
                gateway_names=("gateway.example.com",),
            ),
        )
    )

    assert "does not exist" in lines(no_tokens, "configuration")["auth"].detail
    assert "auth.gateway_tls" in lines(no_key, "configuration")["auth"].detail
    assert (open_to_all.exit_status, no_tokens.exit_status, no_key.exit_status) == (1, 1, 1)


def test_invalid_gateway_certificate_is_noted_without_failing(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "keys")
    good, old = authority.signed("good", *here()), authority.signed("old", *here(), valid=(-2 * DAY, -DAY))

    def with_certificate(pair: Pair) -> DoctorReport:
        names, folder = ("gateway.example.com",), tls_folder(pair, authority.file)
        return report(settings(tmp_path, auth=Auth(kind="gateway", gateway_names=names, gateway_tls=folder)))

    valid, expired = with_certificate(good), with_certificate(old)

    lines = [line for line in expired.lines if line.section == "configuration" and line.name == "auth"]
    assert [line.level for line in lines] == [Level.OK, Level.NOTE]
    assert f"auth.gateway_tls {tmp_path}/keys/old.tls/tls.crt" in lines[1].detail
    assert "gateways will not connect until it is renewed" in lines[1].detail
    assert lines[1].cure == "renew it; new connections are made with it without a restart"
    assert [line.level for line in valid.lines if line.name == "auth"] == [Level.OK]
    assert (valid.exit_status, expired.exit_status) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({}, "stay with their user between calls (worker_reuse = user)"),
        ({"worker_reuse": "call"}, "serve one call each (worker_reuse = call)"),
        (
            {"tools": {"b": {"worker_reuse": "call"}, "a": {"worker_reuse": "call"}, "c": {}}},
            "stay with their user between calls (worker_reuse = user); not so for a, b",
        ),
    ],
    ids=["kept", "single", "by tool"],
)
def test_how_long_workers_live_is_said(tmp_path: Path, changes: dict[str, object], detail: str) -> None:
    assert lines(report(settings(tmp_path, **changes)), "configuration")["workers"].detail == detail


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({}, "nothing goes on between calls (background_jobs = false)"),
        (
            {"background_jobs": True, "tools": {"a": {"background_jobs": False}, "b": {}}},
            "go on between calls where a tool asks for it (background_jobs = true); not so for a",
        ),
        (
            {"background_jobs": True, "worker_reuse": "call"},
            "nothing goes on between calls (background_jobs = true)",
        ),
    ],
    ids=["refused", "allowed", "no worker stays"],
)
def test_whether_jobs_go_on_between_calls_is_said(
    tmp_path: Path, changes: dict[str, object], detail: str
) -> None:
    assert lines(report(settings(tmp_path, **changes)), "configuration")["jobs"].detail == detail


def test_reflinks_says_what_cp_says(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"bytes")
    copy = ["cp", "--reflink=always", str(tmp_path / "a"), str(tmp_path / "b")]
    possible = subprocess.run(copy, check=False, capture_output=True).returncode == 0

    assert reflinks(tmp_path, tmp_path) is possible


def test_the_supported_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    for name, (first, end) in SUPPORTED.items():
        wanted = f"{name}>={'.'.join(map(str, first))},<{'.'.join(map(str, end))}"
        assert wanted in project["dependencies"]


def test_a_missing_line_without_a_cure_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="needs its cure"):
        DoctorLine(section="s", name="n", level=Level.MISSING, detail="d")


def test_text_and_json_say_the_same() -> None:
    found = DoctorReport(
        tier=None,
        lines=(
            DoctorLine(section="machine", name="kernel", level=Level.OK, detail="Linux"),
            DoctorLine(
                section="folders", name="homes", level=Level.MISSING, detail="no folder", cure="make it"
            ),
        ),
    )

    text, data = found.text(), json.loads(json.dumps(found.to_json()))

    assert text.splitlines() == [
        "isolation: none, calls would be refused",
        "",
        "machine",
        "  ok       kernel Linux",
        "",
        "folders",
        "  missing  homes  no folder",
        "                  → make it",
    ]
    assert (data["ok"], data["tier"]) == (False, None)
    assert data["lines"][1] == {
        "section": "folders",
        "name": "homes",
        "level": "missing",
        "detail": "no folder",
        "cure": "make it",
    }
