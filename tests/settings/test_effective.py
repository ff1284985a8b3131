from runner.settings.execution import EffectiveToolSettings, ToolSettings
from runner.settings.rights import Rights
from runner.settings.settings import Settings
from sandbox.deadlines import Deadlines


def test_tool_overrides_general_settings_and_inherits_the_rest() -> None:
    own = ToolSettings(total_timeout_s=900, allow_run=())
    settings = Settings(idle_timeout_s=20, tools={"slow": own})

    assert EffectiveToolSettings.of(settings, "slow") == EffectiveToolSettings(
        deadlines=Deadlines(idle_s=20, total_s=900),
        limits=settings.limits(),
        rights=Rights(may_run=False),
        keeps_worker=True,
        shares_worker=False,
        may_share_worker=True,
        lets_go_on=False,
    )


def test_rights_are_none_where_they_equal_those_of_all_tools() -> None:
    settings = Settings(allow_run=(), tools={"same": ToolSettings(allow_run=())})

    assert EffectiveToolSettings.of(settings, None).rights is None
    assert EffectiveToolSettings.of(settings, "same").rights is None


def test_tool_name_beats_pattern_which_beats_general_setting() -> None:
    settings = Settings(
        memory_mb=100,
        tools={
            "sales_*": ToolSettings(memory_mb=300, max_home_bytes=1000, scopes=("sales",)),
            "*": ToolSettings(memory_mb=250),
            "sales_report": ToolSettings(memory_mb=400),
        },
    )

    memory = {tool: settings.limits(tool).memory_bytes for tool in ("sales_report", "sales_a", "other")}

    assert memory == {"sales_report": 400 << 20, "sales_a": 300 << 20, "other": 250 << 20}
    assert settings.limits().memory_bytes == 100 << 20
    assert [settings.limits(tool).home_bytes for tool in ("sales_a", "sales_report")] == [1000, 1000]
    assert settings.limits("other").home_bytes == settings.limits().home_bytes
    assert settings.scopes("sales_report") == settings.scopes("sales_a") == ("sales",)
    assert settings.scopes("other") == ()
    assert settings.scopes(None) == ("sales",)
    # Processes are made with limits that no tool's exceed.
    assert settings.widest_limits().memory_bytes == 400 << 20
