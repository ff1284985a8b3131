"""The option for a folder that a command behind the proxy names."""

from pathlib import Path

import pytest

from runner.proxy.hints import folder_hint


@pytest.mark.parametrize(
    "words", [("run", "--directory", "{}", "server"), ("run", "--directory={}"), ("{}",)]
)
def test_ungranted_folder_named_with_its_option(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path
    named = [word.format(folder) for word in words]

    hint = folder_hint(named, (), Path("/nowhere/homes"))

    assert hint == f"its command names {folder}, which --allow-read={folder} lends to be read"
    assert folder_hint(named, (folder,), Path("/nowhere/homes")) is None
    assert folder_hint(named, (folder.parent,), Path("/nowhere/homes")) is None


@pytest.mark.parametrize("word", ["relative", "--verbose", "/gone/folder", "/usr/bin"])
def test_other_words_give_no_hint(word: str) -> None:
    assert folder_hint([word], (), Path("/tmp")) is None
