"""Consistency of a scope's area with `Scope.admits`."""

from hypothesis import given
from hypothesis import strategies as st

from runner.store.areas import place_of, places_for
from runner.store.protocol import Scope

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
