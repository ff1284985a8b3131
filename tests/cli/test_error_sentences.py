"""The sentence that a command prints for an error."""

import errno
import json
import tempfile
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from runner.cli.app import app
from runner.cli.exits import EXIT_FAULT, end_with
from runner.errors import StartError, UsageError


def test_missing_temporary_folder_names_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    def command() -> int:
        return len(tempfile.gettempdir())

    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(typer.Exit) as ended:
        end_with(command)

    assert ended.value.exit_code == EXIT_FAULT
    printed = capsys.readouterr().err
    assert "mount a writable /tmp, or set TMPDIR" in printed
    assert "fault of the runner" not in printed


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (UsageError("no such file"), "E_INVALID_ARGUMENT", 2),
        (StartError("no Landlock"), "E_ISOLATION", 5),
        (KeyError("of ours"), "E_INTERNAL", 1),
    ],
    ids=["usage", "isolation", "unexpected"],
)
def test_error_of_a_command_with_json_is_one_document(
    error: Exception, code: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        raise error

    with pytest.raises(typer.Exit) as ended:
        end_with(command, as_json=True)

    assert ended.value.exit_code == status
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert str(error) in document["results"]["error"]
    assert document["meta_data"]["error_code"] == code
    assert printed.err == f"runner: {document['results']['error']}\n"


def test_digest_refuses_a_missing_log_before_it_reads(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["audit", "digest", str(tmp_path / "none")], input="no JSON")

    assert refused.exit_code == 2
    assert "there is no audit log in" in refused.stderr
