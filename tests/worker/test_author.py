"""`runner.author` where no runner is behind it."""

import hashlib
import logging
from pathlib import Path

import pytest

from runner.author import Artifacts

pytestmark = pytest.mark.anyio


async def test_reference_without_runner_warns_nothing_was_stored(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    artifacts = Artifacts()
    file = tmp_path / "a.txt"
    file.write_bytes(b"text")

    with caplog.at_level(logging.WARNING):
        refs = [
            await artifacts.put_bytes(b"text", mime_type="text/plain", filename="a.txt"),
            await artifacts.put_text("text", filename="a.txt"),
            await artifacts.put_file(file, mime_type="text/plain"),
        ]

    digest = hashlib.sha256(b"text").hexdigest()
    for ref in refs:
        assert (ref.id, ref.sha256, ref.size_bytes) == (f"art_{digest[:12]}", digest, 4)
        assert ref.source == {"truncated": True, "original_size": 4}
        assert (ref.filename, ref.mime_type) == ("a.txt", "text/plain")
    assert len(caplog.records) == 1
    assert "No ArtifactStore configured" in caplog.text
