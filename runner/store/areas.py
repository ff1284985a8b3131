"""Places of artifacts: an area for each tenant and user, and in it a part for each session.

Bytes are shared within an area and never between two. Pure; nothing here looks at a file system.

Source: rules ST1, SC1 and SC2 of the conformance cases; architecture, decision "Usernames".
"""

import hashlib
import itertools
import json
from typing import NamedTuple

from runner.store.protocol import Scope
from runner.users.usernames import home_segment

__all__ = ["OwnerPlace", "place_of", "places_for"]


class OwnerPlace(NamedTuple):
    """The place of an owner's artifacts.

    Attributes:
        area: Folder of the bytes, relative to the store's: `users/{segment}` or `scopes/{digest}`.
        session: The session, marked by a `:` in front of it; nothing where they are bound to none.
    """

    area: str
    session: str


def place_of(scope: Scope) -> OwnerPlace:
    """Return the prefix of artifacts of exactly this owner.

    Raises:
        ValueError: The user's name cannot name a folder.
    """
    session = "" if scope.session_id is None else f":{scope.session_id}"
    if scope.user_id is not None and scope.tenant_id is None:
        return OwnerPlace(f"users/{home_segment(scope.user_id)}", session)
    # Without a user a session is on its own: two of them may be two people's.
    owner = [scope.tenant_id, scope.user_id, scope.session_id if scope.user_id is None else None]
    return OwnerPlace(f"scopes/{hashlib.sha256(json.dumps(owner).encode()).hexdigest()}", session)


def places_for(caller: Scope) -> dict[OwnerPlace, Scope]:
    """Return every place whose artifacts a caller may have, with its owner; the caller's own comes first.

    These are the owners that name nothing but what the caller names too: the rule of `Scope.admits`.

    Raises:
        ValueError: The user's name cannot name a folder.
    """
    if caller.is_nobodys:
        return {place_of(Scope()): Scope()}
    tenants = dict.fromkeys((caller.tenant_id, None))
    users = dict.fromkeys((caller.user_id, None))
    sessions = dict.fromkeys((caller.session_id, None))
    owners = (
        Scope(tenant_id=tenant, user_id=user, session_id=session)
        for tenant, user, session in itertools.product(tenants, users, sessions)
    )
    return {place_of(owner): owner for owner in owners if not owner.is_nobodys}
