"""A value in pieces is the value, and no piece is large."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from result_fakes import contract_keys, contract_like

from runner.formats.json_pieces import PIECE_CHARS, json_pieces


@given(st.dictionaries(contract_keys, contract_like))
def test_the_pieces_are_what_json_itself_writes(value: dict[str, Any]) -> None:
    assert "".join(json_pieces(value)) == json.dumps(value, ensure_ascii=False)


def test_large_file_is_split_into_bounded_pieces() -> None:
    content = 'ü"\\\n' * PIECE_CHARS
    value = {"results": 1, "artifacts": [{"name": "a", "b64": content}]}

    pieces = list(json_pieces(value))

    assert json.loads("".join(pieces)) == value
    assert max(map(len, pieces)) <= 2 * PIECE_CHARS
