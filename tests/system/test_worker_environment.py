"""Variables of the host that its workers get."""

from runner.system.worker_environment import framework_environment


def test_environment_has_two_settings_of_fastmcp_and_no_secret() -> None:
    settings = {"FASTMCP_MASK_ERROR_DETAILS": "true", "FASTMCP_STRICT_INPUT_VALIDATION": "true"}
    host = {**settings, "FASTMCP_SERVER_AUTH_JWT_PUBLIC_KEY": "key", "API_KEY": "key"}

    environment = framework_environment(host, ())

    assert {name: environment[name] for name in settings} == settings
    assert "key" not in environment.values()
