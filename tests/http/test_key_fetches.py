"""Fetches of an issuer's keys: by a task of the server, never by the request that waits for it."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from issuer import AUDIENCE, Issuer
from support import becomes

from runner.users.issuer_keys import KEPT_S, MAX_AGE_S, MOST_BYTES, IssuerKeys

pytestmark = pytest.mark.anyio


class Hanging(Issuer):
    """An issuer whose answers can be held back."""

    let_go: threading.Event

    @property
    def keys(self) -> bytes:
        self.let_go.wait(60)
        return super().keys


@pytest.fixture
def hanging(issuer: Issuer) -> Iterator[Hanging]:
    issuer.__class__ = Hanging
    assert isinstance(issuer, Hanging)
    issuer.let_go = threading.Event()
    yield issuer
    issuer.let_go.set()


def keys_of(issuer: Issuer, now: list[float]) -> IssuerKeys:
    address = f"{issuer.address}/jwks"
    options = {"jwks_uri": address, "issuer": issuer.address, "audience": AUDIENCE}
    return IssuerKeys(address, options, clock=lambda: now[0])


async def accepts(keys: IssuerKeys, token: str) -> bool:
    verifier = await keys.verifier_of(token)
    return verifier is not None and await verifier.load_access_token(token) is not None


async def test_cancelled_request_does_not_end_the_fetch_of_keys(hanging: Hanging) -> None:
    keys = keys_of(hanging, [1000.0])
    leaving = asyncio.create_task(accepts(keys, hanging.token(kid="unknown")))
    assert await becomes(lambda: hanging.fetches == 1)

    leaving.cancel()
    await asyncio.wait({leaving})
    hanging.let_go.set()

    assert leaving.cancelled()
    assert await accepts(keys, hanging.token("bob"))
    assert hanging.fetches == 1


async def test_old_keys_serve_while_a_fetch_hangs_then_go(hanging: Hanging) -> None:
    now = [1000.0]
    keys, old = keys_of(hanging, now), hanging.token()
    hanging.let_go.set()
    assert await accepts(keys, old)
    hanging.let_go.clear()
    del hanging.published["first"]
    hanging.add("second")

    now[0] += MAX_AGE_S + 1
    meanwhile = await accepts(keys, old)
    hanging.let_go.set()
    new = await accepts(keys, hanging.token())

    assert (meanwhile, new, await accepts(keys, old)) == (True, True, False)
    assert hanging.fetches == 2


async def test_withdrawn_key_refused_once_keys_are_old(issuer: Issuer) -> None:
    now = [1000.0]
    keys, old = keys_of(issuer, now), issuer.token()
    assert await accepts(keys, old)
    issuer.add("second")
    del issuer.published["first"]

    now[0] += MAX_AGE_S
    before = await accepts(keys, old)
    now[0] += 1

    assert (before, await accepts(keys, old), await accepts(keys, issuer.token())) == (True, False, True)


async def test_unfetchable_keys_stay_valid_for_an_hour(issuer: Issuer) -> None:
    now = [1000.0]
    keys, token = keys_of(issuer, now), issuer.token()
    assert await accepts(keys, token)
    issuer.status = 302

    now[0] += KEPT_S
    assert await accepts(keys, token)
    now[0] += 1

    assert not await accepts(keys, token)
    assert await keys.fault() == "status 302"


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"keys": 1}', b"no", b" " * (MOST_BYTES + 1)])
async def test_malformed_key_set_not_fetched(issuer: Issuer, content: bytes) -> None:
    class Odd(Issuer):
        keys = content

    issuer.__class__ = Odd
    keys = keys_of(issuer, [1000.0])

    assert not await accepts(keys, issuer.token())
    assert await keys.fault()
