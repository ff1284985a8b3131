"""The address of the S3 server, from the variables of AWS."""

import pytest

from runner.errors import UsageError
from runner.settings.settings import Settings
from runner.store.s3.bucket import s3_address
from runner.store.s3.health import fault_of


@pytest.mark.parametrize(
    ("variable", "address"),
    [
        ("AWS_ENDPOINT_URL_S3", "https://s3.example.com"),
        ("AWS_ENDPOINT_URL", "http://MINIO:9000/"),
        ("AWS_ENDPOINT_URL_S3", "http://[::1]:9000"),
    ],
)
def test_s3_endpoint_is_that_of_aws_variables(
    variable: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings(store="s3://bucket/prefix")
    assert s3_address(settings).endpoint is None

    monkeypatch.setenv(variable, address)

    assert s3_address(settings).endpoint == address


@pytest.mark.parametrize("address", ["http://my_minio:9000", "http://a..b", "http://bad host", "minio:9000"])
def test_s3_endpoint_that_is_malformed_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)

    with pytest.raises(UsageError, match=r"AWS_ENDPOINT_URL_S3, .* write it as https://HOST:PORT"):
        s3_address(Settings(store="s3://bucket"))
    fault = fault_of(Settings(store="s3://bucket"))
    assert fault is not None
    assert fault.cure.startswith("write it as https://HOST:PORT")


def test_s3_endpoint_is_found_without_whole_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "half")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://s3.example.com")

    assert s3_address(Settings(store="s3://bucket")).endpoint == "https://s3.example.com"
