import pytest

from runner.store.protocol import Scope
from runner.store.s3.keys import Marker, keys_of

KEYS = keys_of("files/", Scope(user_id="alice"))
ID = "art_" + "a" * 64


def test_the_key_of_a_marker_says_which_upload_has_which_content() -> None:
    key = KEYS.marker(Marker(id=ID, token="t1", name="a/b.txt"))

    assert KEYS.content_of(key) == ("t1", ID[-64:])


@pytest.mark.parametrize("folder", ["", "x", "x/", "x/y", "x/y/t1"])
def test_a_folder_that_a_server_lists_is_no_marker(folder: str) -> None:
    assert KEYS.content_of(KEYS.all_ids + folder) is None
