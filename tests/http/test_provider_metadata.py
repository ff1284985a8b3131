"""Metadata of an OAuth provider that cannot be used: one sentence at the start."""

from pathlib import Path

import pytest
from site_support import Served
from test_identity_readiness import login_provider

from runner.errors import UsageError
from runner.settings.auth import Auth
from runner.settings.settings import Settings
from runner.users.identity import auth_provider


@pytest.mark.parametrize(
    ("published", "sentence"),
    [
        ({}, r"the metadata of auth\.issuer has no introspection_endpoint for oauth_proxy; .*auth\.audience"),
        ({"token_endpoint": "http://login.example.com/token"}, "keys, logins and tokens go over https only"),
        (
            {"revocation_endpoint": "http://login.example.com/revoke"},
            "has the revocation_endpoint http:",
        ),
        (
            {"issuer": "https://other.example.com"},
            r"is of the issuer https://other\.example",
        ),
        (None, r"^auth\.issuer \S+ publishes no metadata that can be used .*503.*; check the address"),
    ],
)
def test_provider_metadata_that_is_unusable_is_refused(
    published: dict[str, str] | None, sentence: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("of the client")
    with login_provider() as away:
        issuer = away.address if published is None else away.publish(**published)
        auth = Auth(kind="oauth_proxy", issuer=issuer, client_id="runner", client_secret_file=secret)
        settings = Settings(auth=auth, state_dir=tmp_path, public_url="http://127.0.0.1:8000")

        with pytest.raises(UsageError, match=sentence):
            auth_provider(settings)


@pytest.mark.parametrize("page", [[], "welcome", None])
def test_answer_that_is_no_metadata_is_passed_over(page: object, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("of the client")
    with login_provider() as away:
        issuer = away.publish(introspection_endpoint=f"{away.address}/introspect")
        (plain,) = away.answers
        away.answers["/.well-known/openid-configuration"] = away.answers[plain]
        away.answers[plain] = 200, page
        auth = Auth(kind="oauth_proxy", issuer=issuer, client_id="runner", client_secret_file=secret)
        settings = Settings(auth=auth, state_dir=tmp_path, public_url="http://127.0.0.1:8000")

        assert auth_provider(settings) is not None


@pytest.mark.parametrize(("redirects", "status"), [(20, 201), (1000, 413)])
def test_registration_of_client_is_bounded(redirects: int, status: int, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("of the client")
    with login_provider() as away:
        issuer = away.publish(introspection_endpoint=f"{away.address}/introspect")
        auth = Auth(kind="oauth_proxy", issuer=issuer, client_id="runner", client_secret_file=secret)
        served = Served.at(tmp_path, tokens=False, auth=auth, public_url="http://127.0.0.1:8000")
    client = {"redirect_uris": [f"http://localhost:{5000 + number}/" for number in range(redirects)]}

    answer = served.visitor().post("/register", json=client)

    assert answer.status_code == status, answer.text


def test_key_in_place_of_its_file_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give an https:// address, or the path of a file"):
        Auth(kind="jwt", keys="a-shared-secret", issuer="i", audience="a")

    auth = Auth(kind="jwt", keys=tmp_path / "a-shared-secret", issuer="i", audience="a")
    with pytest.raises(UsageError, match=r"auth\.keys names no file") as caught:
        auth_provider(Settings(auth=auth, state_dir=tmp_path))
    assert "a-shared-secret" not in str(caught.value)
