"""Consistency of a scope's area with `Scope.admits`."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from runner.store.blobs import MemoryBlobs
from runner.store.entries import place_of, places_for
from runner.store.protocol import Origin, Put, Scope
from runner.store.store import BlobStore

names = st.sampled_from([None, "a", "b", "", "users/a", '["a", null]', "a\0"])
users = st.sampled_from([None, "a", "b", "a/../b", "Ünï", "a\0"])
scopes = st.builds(Scope, tenant_id=names, user_id=users, session_id=names, trace_id=names)


@given(artifact=scopes, caller=scopes)
def test_caller_reaches_exactly_the_areas_it_may_access(artifact: Scope, caller: Scope) -> None:
    reached = place_of(artifact) in places_for(caller)

    allowed = artifact.admits(caller) or (artifact.is_nobodys and caller.is_nobodys)
    assert reached == allowed


@given(one=scopes, other=scopes)
def test_two_owners_share_a_place_only_if_they_are_one(one: Scope, other: Scope) -> None:
    assert (place_of(one) == place_of(other)) == (one.owner == other.owner)


@given(scope=scopes)
def test_a_place_is_a_folder_below_the_store(scope: Scope) -> None:
    top, name = place_of(scope).area.split("/")

    assert top in ("users", "scopes")
    assert name not in ("", ".", "..")
    assert "\0" not in name


@given(scope=scopes)
def test_an_owner_comes_first_among_the_places_it_may_reach(scope: Scope) -> None:
    assert next(iter(places_for(scope))) == place_of(scope)


class Counting(MemoryBlobs):
    """Blobs that count reads."""

    reads = 0

    def get(self, key: str) -> tuple[bytes, str] | None:
        self.reads += 1
        return super().get(key)


def test_many_records_of_one_user_displace_none_of_another() -> None:
    blobs = Counting()
    store = BlobStore(blobs, most_remembered=50)

    async def put(user: str, count: int) -> None:
        for number in range(count):
            about = Put(name=f"f{number}.txt", origin=Origin.UPLOADED)
            await store.put_bytes(b"x", about, scope=Scope(user_id=user))

    async def reads_of(user: str) -> int:
        before = blobs.reads
        await store.list(scope=Scope(user_id=user))
        return blobs.reads - before

    async def listed() -> list[int]:
        await put("bob", 20)
        await put("ann", 60)
        await reads_of("bob")
        return [await reads_of("ann"), await reads_of("bob")]

    assert asyncio.run(listed()) == [60, 0]
