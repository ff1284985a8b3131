"""The wording check: each kind of fault is found, and correct wording is not."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "words"


@pytest.fixture(scope="module")
def words() -> ModuleType:
    loader = SourceFileLoader("words_script", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def findings(words: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "faulty.py").write_text(
        '"""What is wrong."""\n\n\ndef said(good: str) -> None:\n    """Return text."""\n'
        '    log.info("the worker that was told of it is gone now")\n'
    )
    (tmp_path / "tests" / "test_long.py").write_text(f"def test_{'x' * 60}() -> None: ...\n")
    found = [*words.in_python(tmp_path / "faulty.py"), *words.in_python(tmp_path / "tests" / "test_long.py")]
    return dict(found)


def test_faults_in_python_are_found_by_kind(findings: dict[str, str]) -> None:
    assert findings == {
        "docstring_openings": "faulty.py:1: What is wrong.",
        "participle_names": "faulty.py:4: said",
        "long_log_events": "faulty.py:6: the worker that was told of it is gone now",
        "long_test_names": f"tests/test_long.py:1: test_{'x' * 60}",
    }


def test_published_key_is_allowed_in_its_file_only(
    words: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "runner" / "homes").mkdir(parents=True)
    files = [tmp_path / "runner" / "homes" / name for name in ("notes.py", "homes.py")]
    for file in files:
        file.write_text("kept_until = 0\n")

    assert [len(list(words.in_python(file))) for file in files] == [0, 1]


@pytest.mark.parametrize(
    ("text", "faulty"),
    [
        # Apart, so that this file has none of them.
        (("as", "ever"), True),
        (("that", "is", "no", "file"), True),
        (("there", "is", "no", "file"), False),
        (("it", "is", "no", "longer", "open"), False),
        (("the", "client", "that", "connects"), False),
    ],
)
def test_phrases_out_of_use_are_found(words: ModuleType, text: tuple[str, ...], faulty: bool) -> None:
    assert bool(words.PHRASES.search(" ".join(text))) == faulty


@pytest.mark.parametrize(("count", "faulty"), [(25, False), (26, True)])
def test_sentence_length_is_counted_by_words(
    words: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, faulty: bool
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{'word ' * (count - 1)}`a b c`.\n\n```text\n{'word ' * 40}\n```\n")

    assert len(list(words.long_sentences(page))) == int(faulty)
