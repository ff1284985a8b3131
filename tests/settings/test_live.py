"""Settings that a running server takes over when it reads its configuration again."""

from typing import Any

from runner.settings.live import changes, same_limits, with_live
from runner.settings.resource_limits import LIMITS
from runner.settings.settings import Settings

ONE_MORE = {facts.setting: 2 * Settings.model_fields[facts.setting].default for facts in LIMITS.values()}


def settings(**values: Any) -> Settings:
    return Settings(**values)


def test_every_call_limit_is_taken_over_and_reported() -> None:
    now, then = settings(), settings(**ONE_MORE, port=1)

    live = with_live(now, then)

    assert set(changes(now, live)) == set(ONE_MORE)
    assert set(changes(live, then)) == {"port"}
    assert not same_limits(now, live)
    assert same_limits(live, then)


def test_reload_changes_limits_of_a_tool_but_not_its_rights() -> None:
    now = settings(tools={"plot": {"memory_mb": 100}})
    then = settings(tools={"plot": {"memory_mb": 200, "allow_run": ["git"]}, "draw": {"cpu_s": 3}})

    live = with_live(now, then)

    assert live.limits("plot").memory_bytes == then.limits("plot").memory_bytes
    assert live.limits("draw").cpu_s == 3
    assert live.rights("plot") == now.rights("plot") != then.rights("plot")
    assert not same_limits(now, live)
    assert list(changes(live, then)) == ["tools.plot.allow_run"]


def test_changed_deadlines_leave_resource_limits_equal() -> None:
    now, then = settings(tools={"plot": {"memory_mb": 100}}), settings(idle_timeout_s=7, max_calls=3)
    then = then.model_copy(update={"tools": now.tools})

    assert same_limits(now, with_live(now, then))


def test_another_order_of_patterns_is_not_taken_over_and_said() -> None:
    wide, narrow = {"memory_mb": 100}, {"memory_mb": 200}
    now = settings(tools={"a*": wide})
    then = settings(tools={"ab*": narrow, "a*": wide})

    live = with_live(now, then)

    assert live.limits("abc") == now.limits("abc") != then.limits("abc")
    assert changes(now, live) == {}
    assert changes(live, then)["tools"] == "patterns of tools in their order: ab*, a*; were a*"
    turned = settings(tools={"a*": wide, "ab*": narrow})
    assert list(changes(turned, then)) == ["tools"]
