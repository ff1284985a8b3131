from runner.settings.effective import EffectiveToolSettings
from runner.settings.model import Settings, ToolSettings
from runner.settings.rights import Rights
from sandbox.deadlines import Deadlines


def test_a_tool_with_values_of_its_own_has_these_and_shares_the_rest() -> None:
    own = ToolSettings(total_timeout_s=900, calls_per_minute=3, deny_run=True)
    settings = Settings(idle_timeout_s=20, tools={"slow": own})

    assert EffectiveToolSettings.of(settings, "slow") == EffectiveToolSettings(
        deadlines=Deadlines(idle_s=20, total_s=900),
        limits=settings.limits(),
        rights=Rights(may_run=False),
        keeps_worker=True,
        lets_go_on=False,
        calls_per_minute=3,
    )


def test_what_a_tool_may_do_is_told_only_where_it_is_not_what_all_may() -> None:
    settings = Settings(deny_run=True, tools={"same": ToolSettings(deny_run=True)})

    assert EffectiveToolSettings.of(settings, None).rights is None
    assert EffectiveToolSettings.of(settings, "same").rights is None
