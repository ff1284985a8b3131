"""Whatever one user has on a server is out of reach for everybody else, by every route and method there is.

What there is comes from a running server: the tables of its web servers, what it lists of tools, resources
and prompts, and what the SDK knows of methods. What has no row in `crossing_rows.py` fails here.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from crossing import (
    HANDSHAKE,
    NEWEST,
    Answer,
    Asked,
    Crowd,
    Server,
    Things,
    Visitor,
    cookie_of,
    crowd_at,
    server_of,
    strangers,
    things_of,
)
from crossing_rows import METHODS, MIDDLEWARE, PROMPTS, RESOURCES, ROUTES, TEMPLATES, TOOLS, Row, messages
from mcp_types.methods import CLIENT_REQUESTS

from runner.protocol.artifact_tools import READING

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel, pytest.mark.timeout(1800)]
KINDS = ["serve", "proxy"]
ABSENT = ("Method not found", '"code":-32601', '"code":-32021', "there is no task")
"""No such method; none for a client that has not said that it knows of tasks."""
PHASES = ("first", "main", "streams", "late", "last")
_CHANGING = re.compile(
    r"\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|[+-]\d\d:\d\d)?|[\w-]{20,}\.[\w.-]{20,}|\b[0-9a-f]{12,}\b|max-age=\d+"
    r'|expires=[^;]*|(?<="id":)\d+|: ping - |(?<="worker":)"\w+"|(?<=subscriptionId":)\d+'
    r'|(?<="taskId":)"[^"]+"',
    re.IGNORECASE,
)
"""Parts that differ in each answer: times, tokens, ids; and notices to clients that wait for long."""


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server_of(request.param, tmp_path_factory.mktemp("crossing")) as one:
        yield one


def rows_of(server: Server) -> list[Row]:
    """Return the rows of everything that a server says it has."""
    main = next(table for table in server.tables() if ("POST", "/mcp") in addresses(table))
    rows: list[Row] = []
    for method, path in sorted(addresses(main)):
        if method == "HEAD":
            rows += [
                headed(row)
                for row in ROUTES.get(("GET", path), ())
                if not row.request_of(NOBODY, NO_VISITOR).is_stream
            ]
        else:
            rows += ROUTES.get((method, path), ())
    for name in main["middleware"]:
        rows += MIDDLEWARE[name]
    return [
        *rows,
        *(replace(row, may_be_absent=True, shows=None) if has_no(server, row) else row for row in messages()),
    ]


def without_row(
    routes: Iterable[tuple[str, str]], rows: Mapping[tuple[str, str], tuple[Row, ...]] = ROUTES
) -> list[Asked]:
    """Return a request for each route that has no row, whatever stands in its path."""
    return [
        Asked(method="GET" if method == "*" else method, path=re.sub(r"\{[^}]*\}", "x", path), is_stream=True)
        for method, path in sorted(routes)
        if ("GET" if method == "HEAD" else method, path) not in rows
    ]


async def let_in(crowd: Crowd, request: Asked) -> list[str]:
    """Return those whom the server does not know, and who get something all the same."""
    answers = [
        (each.name, await crowd.ask(request, each.proves))
        for each in await strangers(crowd)
        if not each.is_known
    ]
    return [
        f"{request.method} {request.path}: {name}: is let in with {answer.status}"
        for name, answer in answers
        if answer.status not in (401, 403, 404)
    ]


def has_no(server: Server, row: Row) -> bool:
    """Return whether a server offers nothing of a kind: what stands behind the proxy here makes no tasks."""
    return server.kind == "proxy" and row.name.startswith(("tasks/", "resources/subscribe a memo"))


def addresses(table: dict[str, Any]) -> set[tuple[str, str]]:
    return {(method, path) for path, methods in table["routes"] for method in methods}


def headed(row: Row) -> Row:
    """Return the row of a question for the head of an answer, which has none of its text."""

    def request_of(things: Things, visitor: Visitor) -> Asked:
        return replace(row.request_of(things, visitor), method="HEAD")

    return replace(
        row, name=f"{row.name}, its head", request_of=request_of, owned=row.owned or row.request_of
    )


NOBODY = Things(**dict.fromkeys(Things.__dataclass_fields__, "x"))
NO_VISITOR = Visitor(name="", proves={})


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """All that was asked, and what came of it.

    Attributes:
        leaks: By row: for whom something got out, and what.
        owner: By row: what is wrong with the owner's own answer.
    """

    leaks: dict[str, list[str]]
    owner: dict[str, str]


async def matrix_of(server: Server, rows: list[Row]) -> Matrix:
    async with crowd_at(server) as crowd:
        await things_of(crowd, server.bob)
        things, cookie = await things_of(crowd, server.ann)
        visitors = await strangers(crowd)
        crossing = Crossing(crowd, things, things.like())
        leaks: dict[str, list[str]] = {row.name: [] for row in rows}
        for phase in PHASES:
            pairs = [(row, each) for row in rows if row.phase == phase for each in visitors]
            found = await asyncio.gather(*(crossing.faults(row, each) for row, each in pairs))
            for (row, _), faults in zip(pairs, found, strict=True):
                leaks[row.name] += faults
        owner = {}
        for row in sorted(rows, key=lambda row: PHASES.index(row.phase)):
            owner[row.name] = await owned(crowd, row, things, cookie)
    return Matrix(leaks=leaks, owner={name: fault for name, fault in owner.items() if fault})


@dataclass(frozen=True)
class Crossing:
    """Others ask for things of one user, and for things like them that nobody has."""

    crowd: Crowd
    things: Things
    like: Things
    refused: dict[tuple[str, str, str], Answer] = field(default_factory=dict)

    async def faults(self, row: Row, visitor: Visitor) -> list[str]:
        """Return what the answers tell apart or give away."""
        hers = row.request_of(self.things, visitor)
        got = await self.crowd.ask(hers, await self.proofs(row, visitor))
        faults = []
        sent = hers.text() + str(visitor.proves)
        marks = (*self.things.marks(), self.crowd.server.ann)
        leaks = [mark for mark in marks if mark not in sent and mark in got.shown()]
        if leaks:
            faults.append(f"{visitor.name}: gets {leaks}: {got.shown()[-300:]}")
        is_out = not visitor.is_known and got.status in (401, 403)
        nobody = await self.nobody(row, visitor, is_out=is_out)
        one, other = shown_in(got, self.things), shown_in(nobody, self.like)
        if one != other and not (row.is_public and is_out):
            at = next(at for at, pair in enumerate(zip_longest(one, other)) if pair[0] != pair[1])
            faults.append(
                f"{visitor.name}: learns that it is there: {one[:9]}…{one[at - 40 : at + 90]!r} / "
                f"{other[:9]}…{other[at - 40 : at + 90]!r}"
            )
        if not (row.is_public or visitor.is_known or got.status in (401, 403, 404)):
            faults.append(f"{visitor.name}: is let in with {got.status} {got.text[:200]}")
        return faults

    async def nobody(self, row: Row, visitor: Visitor, *, is_out: bool) -> Answer:
        """Return what is answered where nobody has what is asked for."""
        request = row.request_of(self.things if row.is_public else self.like, visitor)
        if row.is_public:
            return await self.crowd.ask(request, {})
        if not is_out:
            return await self.crowd.ask(request, await self.proofs(row, visitor))
        # A rejected client receives one answer on a path, whatever its message contains.
        key = (visitor.name, request.method, request.path)
        if key not in self.refused:
            self.refused[key] = await self.crowd.ask(request, visitor.proves)
        return self.refused[key]

    async def proofs(self, row: Row, visitor: Visitor) -> Mapping[str, str]:
        if row.phase == "last" and visitor.is_known and "cookie" in visitor.proves:
            # Its session ends by what is asked: one for each time.
            return await cookie_of(self.crowd, self.crowd.server.token(self.crowd.server.bob))
        return visitor.proves


def shown_in(answer: Answer, things: Things) -> str:
    """Return an answer without what is another in each."""
    return _CHANGING.sub("~", things.hidden(answer.shown())).replace("~~\r\n\r\n", "")


async def owned(crowd: Crowd, row: Row, things: Things, cookie: dict[str, str]) -> str:
    """Request as the owner; return the faults of the answer, if any."""
    server = crowd.server
    proves = {"token": server.token(server.ann), "cookie": cookie, "link": {}}[row.by]
    ann = Visitor(name="ann", proves=proves, session=things.session)
    answer = await crowd.ask((row.owned or row.request_of)(things, ann), proves)
    if row.may_be_absent and any(each in answer.text for each in ABSENT):
        return ""
    if not answer.is_good:
        return f"{answer.status} {answer.text[:300]}"
    if row.shows is not None and row.shows(things) not in answer.text:
        return f"does not show {row.shows(things)}: {answer.text[:300]}"
    return ""


def test_routes_of_every_web_server_have_rows(server: Server) -> None:
    tables = server.tables()
    main = [table for table in tables if ("POST", "/mcp") in addresses(table)]
    others = [table for table in tables if table not in main]

    assert len(main) == 1
    found = {("GET" if method == "HEAD" else method, path) for method, path in addresses(main[0])}
    assert found - set(ROUTES) == set(), "a route without a row: say who may ask for what there"
    assert set(main[0]["middleware"]) - set(MIDDLEWARE) == set(), "say which paths it answers itself, if any"
    # Two empty pages for what tools made, and numbers for the operator: neither knows users.
    assert sorted(path for table in others for path, _ in table["routes"]) == [
        "/metrics",
        "/still",
        "/widget",
    ]
    assert all(not table["middleware"] for table in others)


async def test_route_without_row_rejects_unknown_clients(server: Server) -> None:
    main = next(table for table in server.tables() if ("POST", "/mcp") in addresses(table))

    async with crowd_at(server) as crowd:
        found = [fault for request in without_row(addresses(main)) for fault in await let_in(crowd, request)]
        # As if these had none: two ask who comes, and one, the control, tells everybody the same.
        files, one, health = without_row(
            [("GET", "/api/files"), ("GET", "/api/files/{key}"), ("GET", "/healthz")], rows={}
        )
        assert await let_in(crowd, files) == await let_in(crowd, one) == []
        assert len(await let_in(crowd, health)) > 10

    assert found == []


async def test_methods_tools_resources_and_prompts_have_rows(server: Server) -> None:
    async with crowd_at(server) as crowd:
        proves = server.token(server.ann)
        lists = {
            "tools": await crowd.mcp(proves, "tools/list"),
            "resources": await crowd.mcp(proves, "resources/list"),
            "resourceTemplates": await crowd.mcp(proves, "resources/templates/list"),
            "prompts": await crowd.mcp(proves, "prompts/list"),
        }
    methods = {method for method, version in CLIENT_REQUESTS if version in (HANDSHAKE, NEWEST)}

    assert methods - set(METHODS) == set()
    assert {*(tool["name"] for tool in lists["tools"]["tools"]), *READING} - set(TOOLS) == set()
    assert {each["uri"] for each in lists["resources"]["resources"]} - set(RESOURCES) == set()
    assert {each["uriTemplate"] for each in lists["resourceTemplates"]["resourceTemplates"]} - set(
        TEMPLATES
    ) == set()
    assert {each["name"] for each in lists["prompts"]["prompts"]} - set(PROMPTS) == set()


async def test_no_user_data_reachable_for_others(server: Server) -> None:
    matrix = await matrix_of(server, rows_of(server))

    assert {name: faults for name, faults in matrix.leaks.items() if faults} == {}
    # The control: its owner reaches all of it, and afterwards, so nobody has taken anything away.
    assert matrix.owner == {}


@pytest.mark.parametrize("kind", KINDS)
async def test_matrix_without_guards_finds_every_row(kind: str, tmp_path: Path) -> None:
    with server_of(kind, tmp_path, GUARDS_OFF="{ann}") as open_server:
        rows = [row for row in rows_of(open_server) if not (row.is_public or row.may_be_absent)]
        matrix = await matrix_of(open_server, rows)

    assert [name for name, faults in matrix.leaks.items() if not faults] == []
