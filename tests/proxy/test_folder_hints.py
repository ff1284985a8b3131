"""The option for a folder that a command behind the proxy names."""

from pathlib import Path

import pytest
from support import settings_in

from runner.proxy.hints import folder_hint


@pytest.mark.parametrize(
    "words", [("run", "--directory", "{}", "server"), ("run", "--directory={}"), ("{}",)]
)
def test_ungranted_folder_named_with_its_option(words: tuple[str, ...], tmp_path: Path) -> None:
    folder, homes = tmp_path, Path("/nowhere/homes")
    named = [word.format(folder) for word in words]

    hint = folder_hint(named, settings_in(tmp_path, homes=homes))

    assert hint == f"its command names {folder}, which --allow-read={folder} lends to be read"
    for lent in (folder, folder.parent):
        assert folder_hint(named, settings_in(tmp_path, homes=homes, allow_read=(lent,))) is None


@pytest.mark.parametrize("word", ["relative", "--verbose", "/gone/folder", "/usr/bin"])
def test_other_words_give_no_hint(word: str, tmp_path: Path) -> None:
    assert folder_hint([word], settings_in(tmp_path)) is None
