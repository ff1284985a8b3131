import base64
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from site_support import NOW, Served, run
from starlette.testclient import TestClient

DATA = bytes(range(256)) * 10_000 + b"+1"


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served.at(tmp_path)


@pytest.fixture
def ann(served: Served) -> Iterator[TestClient]:
    with served.visitor("ann") as client:
        yield client


def test_pages_list_each_file_once_during_changes(served: Served, ann: TestClient) -> None:
    for number in range(7):
        served.keep(b"%d" % number, f"m{number}.txt")
    first = ann.get("/api/files?limit=3").json()
    served.keep(b"before", "a.txt")
    served.keep(b"behind", "z.txt")
    ann.delete(f"/api/files/{first['files'][0]['key']}")

    second = ann.get(f"/api/files?limit=3&cursor={first['next']}").json()
    third = ann.get(f"/api/files?limit=3&cursor={second['next']}").json()

    names = [[file["filename"] for file in page["files"]] for page in (first, second, third)]
    assert names == [["m0.txt", "m1.txt", "m2.txt"], ["m3.txt", "m4.txt", "m5.txt"], ["m6.txt", "z.txt"]]
    assert third["next"] is None
    assert len(ann.get("/api/files").json()["files"]) == 8


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        f"limit={'9' * 5000}",
        "limit=00000001001",
        "limit=x",
        "limit=-1",
        "limit=",
        "cursor=x",
        "cursor=W10",
    ],
)
def test_impossible_page_refused_with_a_sentence(served: Served, ann: TestClient, query: str) -> None:
    served.keep(b"mine", "mine.txt")

    answer = ann.get(f"/api/files?{query}")

    assert answer.status_code == 400
    assert "page" in answer.text


@pytest.mark.parametrize("size", [0, 1, 2, 3, 786_432, 1_048_577, len(DATA)])
def test_file_as_json_complete_with_stated_length(served: Served, ann: TestClient, size: int) -> None:
    """Source: S0-54 and S0-75."""
    key = served.keep(DATA[:size], "table.csv").id

    answer = ann.get(f"/api/files/{key}")

    fields = answer.json()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.content))
    assert (fields["filename"], fields["content_type"]) == ("table.csv", "text/csv")
    assert base64.b64decode(fields["content_base64"], validate=True) == DATA[:size]


def test_list_has_own_files_with_known_facts(served: Served, ann: TestClient) -> None:
    """Source: S1-9 and S1-43."""
    mine = served.keep(b"mine", "mine.txt")
    served.keep(b"theirs", "theirs.txt", "bob")
    ann.post("/api/files?filename=up.html", content=b"<p>")

    files = ann.get("/api/files").json()["files"]

    assert [(file["filename"], file["origin"]) for file in files] == [
        ("mine.txt", "generated"),
        ("up.html", "uploaded"),
    ]
    assert files[0] == {
        "key": mine.id,
        "filename": "mine.txt",
        "content_type": "text/plain",
        "size": 4,
        "sha256": mine.sha256,
        "origin": "generated",
        "created": mine.created.isoformat(),
        "expires_at": None,
        "uri": f"artifact://{mine.id}",
        "pending": False,
    }
    assert datetime.fromisoformat(files[0]["created"]).tzinfo is not None


def test_list_request_restarts_session_idle_time(tmp_path: Path) -> None:
    served = Served.at(tmp_path, persist_files_across_sessions=False)
    served.keep(b"mine", "mine.txt", session="one")
    served.keep(b"other", "other.txt", session="two")
    for note in (tmp_path / "state" / "sessions").iterdir():
        os.utime(note, (0, 0))

    with served.visitor("ann", session="one") as client:
        listed = client.get("/api/files").json()["files"]
    ended = run(served.site.library.end_idle_sessions(60))

    assert [file["filename"] for file in listed] == ["mine.txt"]
    assert ended == 1
    assert (served.contents(session="one"), served.contents(session="two")) == ({"mine.txt": b"mine"}, {})


def test_other_users_files_answer_as_missing(served: Served, ann: TestClient) -> None:
    mine, theirs = served.keep(b"mine", "a.txt").id, served.keep(b"theirs", "b.txt", "bob").id

    def answers(key: str) -> list[int]:
        return [
            ann.get(f"/api/files/{key}").status_code,
            ann.get(f"/artifacts/{key}", headers={"mcp-session-id": "one"}).status_code,
            ann.post(f"/api/files/{key}/link", json={}).status_code,
            ann.delete(f"/api/files/{key}").status_code,
        ]

    foreign, missing, own = answers(theirs), answers("art_000000000000"), answers(mine)

    assert own == [200, 200, 201, 204]
    assert foreign == missing == [404, 404, 404, 404]
    assert served.contents("bob") == {"b.txt": b"theirs"}


def test_removed_file_is_gone(served: Served, ann: TestClient) -> None:
    key = served.keep(b"content", "a.txt").id
    link = ann.post(f"/api/files/{key}/link", json={}).json()["url"]
    assert ann.get(link).status_code == 200

    removed = ann.delete(f"/api/files/{key}")

    assert (removed.status_code, removed.content) == (204, b"")
    assert [ann.get(url).status_code for url in (f"/api/files/{key}", link)] == [404, 404]
    assert ann.delete(f"/api/files/{key}").status_code == 404


def test_deferred_file_read_by_id_not_listed_or_removed(served: Served, ann: TestClient) -> None:
    key = served.keep(b"taken out", "a.txt", temporary=True).id

    read, removed = ann.get(f"/api/files/{key}"), ann.delete(f"/api/files/{key}")

    assert (read.status_code, removed.status_code) == (200, 404)
    assert ann.get("/api/files").json() == {"files": []}


def test_removing_deferred_file_keeps_file_of_same_name(served: Served, ann: TestClient) -> None:
    served.keep(b"mine", "a.txt")
    key = served.keep(b"taken out", "a.txt", temporary=True).id

    removed = ann.delete(f"/api/files/{key}")

    assert removed.status_code == 404
    assert served.contents() == {"a.txt": b"mine"}


def test_equal_content_under_two_names_resolves_by_name(served: Served, ann: TestClient) -> None:
    key = served.keep(b"same", "a.txt").id
    served.keep(b"same", "b.txt")
    served.keep(b"other", "c.txt")

    read = [ann.get(f"/api/files/{key}?filename={name}") for name in ("a.txt", "b.txt")]
    other = ann.delete(f"/api/files/{key}?filename=c.txt")
    removed = ann.delete(f"/api/files/{key}?filename=a.txt")

    assert [answer.json()["filename"] for answer in read] == ["a.txt", "b.txt"]
    assert (other.status_code, removed.status_code) == (404, 204)
    assert served.contents() == {"b.txt": b"same", "c.txt": b"other"}


@pytest.mark.parametrize("key", ["..%2F..%2Fetc%2Fpasswd", "%00", "%ff", "a%0d%0ax-evil:1", "art_\u00e9"])
def test_malformed_key_not_found(ann: TestClient, key: str) -> None:
    answers = [ann.get(f"/api/files/{key}"), ann.get(f"/artifacts/{key}", headers={"mcp-session-id": "s"})]

    assert [answer.status_code for answer in answers] == [404, 404]
    assert all("x-evil" not in answer.headers for answer in answers)


def test_link_opens_file_for_any_holder_until_expiry(served: Served, ann: TestClient) -> None:
    key = served.keep(DATA, "a.bin").id
    answer = ann.post(f"/api/files/{key}/link", json={"ttl_s": 60})
    url = answer.json()["url"]

    with served.visitor() as anybody:
        fresh = anybody.get(url)
        served.now[0] = NOW + 61
        late = anybody.get(url)

    assert answer.json() == {"url": url, "single_use": False, "ttl_s": 60.0}
    assert (fresh.status_code, fresh.content) == (200, DATA)
    assert (late.status_code, "expired" in late.json()["error"]) == (403, True)


def test_link_keeps_the_name_it_was_ordered_with(served: Served, ann: TestClient) -> None:
    key = served.keep(b"content", "a.txt").id
    served.keep(b"content", "b.txt")
    url, latest = (
        ann.post(f"/api/files/{key}/link{query}", json={}).json()["url"] for query in ("?filename=a.txt", "")
    )

    with served.visitor() as anybody:
        names = [anybody.get(each).headers["content-disposition"] for each in (url, latest)]

    assert names == ['attachment; filename="a.txt"', 'attachment; filename="b.txt"']


def test_refused_request_leaves_single_use_link_valid(served: Served, ann: TestClient) -> None:
    key = served.keep(b"content", "a.txt").id
    url = ann.post(f"/api/files/{key}/link", json={"single_use": True}).json()["url"]

    with served.visitor() as anybody:
        framed = anybody.get(url, headers={"sec-fetch-dest": "iframe"})
        past_end = anybody.get(url, headers={"range": "bytes=99-"})
        (stored,) = served.site.settings.store_path.glob("users/ann/objects/*")
        stored.write_bytes(b"damaged")
        damaged = anybody.get(url)
        stored.write_bytes(b"content")
        answers = [framed, past_end, damaged, anybody.get(url), anybody.get(url)]

    assert [answer.status_code for answer in answers] == [403, 416, 503, 200, 403]
    assert "single use" in answers[-1].json()["error"]


def test_link_reveals_neither_user_nor_file_name(served: Served, ann: TestClient) -> None:
    key = served.keep(b"content", "salary of bob.txt").id

    url = urlsplit(ann.post(f"/api/files/{key}/link", json={}).json()["url"])

    assert url.path == f"/api/files/download/{key}"
    claims = parse_qs(url.query)["token"][0].partition(".")[0]
    assert key.encode() not in base64.urlsafe_b64decode(claims + "==")
    assert "salary" not in url.geturl()


@pytest.mark.parametrize(
    "order",
    [
        [],
        {"ttl_s": 0},
        {"ttl_s": 1e9},
        {"ttl_s": True},
        {"ttl_s": "60"},
        {"single_use": 1},
        {"once": True},
        {"ttl_s": float("nan")},
    ],
)
def test_malformed_link_request_is_400(served: Served, ann: TestClient, order: object) -> None:
    key = served.keep(b"content", "a.txt").id
    body = str(order).replace("True", "true").replace("'", '"').replace("nan", "NaN")

    answer = ann.post(f"/api/files/{key}/link", content=body, headers={"content-type": "application/json"})

    assert answer.status_code == 400
    assert "ttl_s" in answer.json()["error"]


@pytest.mark.parametrize("name", ["page.html", "drawing.svg", "table.csv"])
def test_artifact_is_attachment_never_run_cached_or_sniffed(served: Served, name: str) -> None:
    record = served.keep(b"<svg onload='alert(1)'/>", name)

    with served.visitor("ann", session="one") as ann:
        headers = ann.get(f"/artifacts/{record.id}").headers

    assert headers["content-disposition"] == f'attachment; filename="{name}"'
    assert headers["content-length"] == str(record.size)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert (headers["cache-control"], headers["referrer-policy"]) == ("no-store", "no-referrer")


def test_artifact_served_to_owning_session_only(tmp_path: Path) -> None:
    """Source: S4-97."""
    served = Served.at(tmp_path, persist_files_across_sessions=False)
    key = served.keep(b"content", "a.txt", session="one").id

    statuses = []
    for user, session in [("ann", "one"), ("ann", "two"), ("bob", "one"), ("ann", None), (None, "one")]:
        with served.visitor(user, session=session) as visitor:
            statuses.append(visitor.get(f"/artifacts/{key}").status_code)

    assert statuses == [200, 404, 404, 401, 401]


def test_link_to_session_file_ends_with_session(tmp_path: Path) -> None:
    served = Served.at(tmp_path, persist_files_across_sessions=False)
    with served.visitor("ann", session="one") as ann:
        key = ann.post("/api/files?filename=a.txt", content=b"content").json()["key"]
        link = ann.post(f"/api/files/{key}/link", json={}).json()["url"]
        before = ann.get(link).status_code
        ended = ann.delete("/api/session")
        after = ann.get(link).status_code

    assert (before, ended.status_code, after) == (200, 204, 404)


def test_failing_store_is_503_with_message_without_traceback(
    served: Served, ann: TestClient, tmp_path: Path
) -> None:
    assert ann.get("/api/files").status_code == 200

    served.keep(b"content", "a.txt")
    users = tmp_path / "store" / "users"
    users.rename(tmp_path / "away")
    users.write_text("not a folder")
    answers = [ann.get("/api/files"), ann.post("/api/files?filename=b", content=b"x")]

    assert [answer.status_code for answer in answers] == [503, 503]
    assert all("My Files" in answer.json()["error"] for answer in answers)
