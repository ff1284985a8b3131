"""The edge to FastMCP and the SDK, with the newest versions published and the oldest that we allow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.release, pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("version", ["newest", "oldest"])
def test_edge_tests_pass_with_another_sdk_version(version: str) -> None:
    options = ["--oldest"] if version == "oldest" else []
    ran = subprocess.run(
        ["scripts/check-versions", *options, "--quick"],
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=1400,
    )

    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert f"tried: fastmcp {'4.1.' if version == 'oldest' else ''}" in ran.stdout
