"""Settings are read from the environment; an invalid one is named."""

import re
from pathlib import Path

import msgspec
import pytest

from app.base.errors import SettingError
from app.base.model_catalog import DEFAULT_MODEL, SEED
from app.base.settings import Settings
from tests.support.every_row import every_row


def test_without_variables_the_defaults_apply() -> None:
    assert Settings.from_env({}) == Settings()


def test_every_default_is_within_its_bounds() -> None:
    plain = {name: getattr(Settings(), name) for name in Settings.__struct_fields__ if name != "data_dir"}
    assert msgspec.convert(plain, Settings) == Settings()


def test_values_are_read_from_their_variables() -> None:
    settings = Settings.from_env(
        {
            "SAGE_DATA_DIR": "/srv/sage",
            "SAGE_PORT": "9000",
            "SAGE_DEMO_PORT": "0",
            "SAGE_TEMPERATURE": "0.7",
            "SAGE_RETRIEVAL": "scenario",
            "DATABASE_URL": "postgresql://db/sage",
            "PORT": "1",
        }
    )
    expected = Settings(
        data_dir=Path("/srv/sage"),
        port=9000,
        demo_port=0,
        temperature=0.7,
        retrieval="scenario",
        database_url="postgresql://db/sage",
    )
    assert settings == expected


def test_a_variable_that_resembles_a_setting_is_named_with_that_one() -> None:
    for variable, setting in (
        ("SAGE_TASK_MAX_SECONDS", "SAGE_MAX_TASK_SECONDS"),
        ("SAGE_DATABASE_URL", "DATABASE_URL"),
        ("SAGE_TEMPRATURE", "SAGE_TEMPERATURE"),
        ("SAGE_URLS_ENGINE", "ENGINE_URLS"),
    ):
        remark = f"{variable} is no setting, and is not read: did you mean {setting}?"
        assert Settings.misnamed({variable: "1"}) == [remark]
    for variable in ("SAGE_URL", "SAGE_KEY", "SAGE_PORT", "SAGE_ZEAL", "PATH"):
        assert Settings.misnamed({variable: "1"}) == [], variable


def test_urls_are_read_without_the_prefix() -> None:
    assert Settings.from_env({"SAGE_DATABASE_URL": "postgresql://elsewhere/x"}).database_url == ""


INVALID: list[tuple[str, str]] = [
    ("SAGE_PORT", "0"),
    ("SAGE_PORT", "65536"),
    ("SAGE_ENGINE_PORT", "http"),
    ("SAGE_DEMO_PORT", ""),
    ("SAGE_DATA_DIR", ""),
    ("SAGE_ALLOW_PRIVATE_HOSTS", "maybe"),
    ("SAGE_MAX_TASKS_IN_FLIGHT", "0"),
    ("SAGE_MAX_TASKS_IN_FLIGHT", "1.5"),
    ("SAGE_TEMPERATURE", "-0.1"),
    ("SAGE_TEMPERATURE", "nan"),
    ("SAGE_LEASE_SECONDS", "0"),
    ("SAGE_MAX_TASK_SECONDS", "inf"),
    ("SAGE_RUNNERS", "-1"),
    ("SAGE_RETRIEVAL", "best"),
    ("SAGE_CHAT_TEMPLATE_KWARGS", "enable_thinking=false"),
    ("SAGE_CHAT_TEMPLATE_KWARGS", "[]"),
    ("SAGE_CHAT_TEMPLATE_KWARGS", '{"messages": []}'),
    ("SAGE_LOG_LEVEL", "loud"),
    ("SAGE_ENGINE_DEVICE", "tpu"),
    ("ENGINE_URLS", "nonsense"),
    ("ENGINE_URLS", "gpu:8000"),
    ("ENGINE_URLS", "http://gpu:8000,gpu2:8000"),
    ("ENGINE_URLS", "http://gpu:8000 http://gpu2:8000"),
    ("ENGINE_URLS", "http://:8000"),
    ("ENGINE_URLS", "http://gpu:eight"),
    ("ENGINE_URLS", ","),
    ("SAGE_ENGINE_ROUTER_URL", "router"),
    ("ENGINE_URLS", "dns+https://pods"),
    ("ENGINE_URLS", "dns+pods:8000"),
    ("SAGE_ROLLOUT_ENGINE_URLS", "dns+http://pods"),
    ("SAGE_ROLLOUT_ENGINE_URLS", "ftp://gpu"),
    ("EMBEDDINGS_URL", "http://[::1"),
]


def test_an_invalid_value_is_refused_with_its_variable() -> None:
    with every_row() as row:
        for variable, value in INVALID:
            said = f"^{variable}={re.escape(repr(value))}: "
            with row(variable, value), pytest.raises(SettingError, match=said):
                Settings.from_env({variable: value})


@pytest.mark.parametrize(
    ("env", "setting"),
    [
        ({"ENGINE_URLS": "http://a", "SAGE_ENGINE_ROUTER_URL": "http://b,http://c"}, "SAGE_ENGINE_ROUTER_URL"),
        ({"SAGE_ENGINE_ROUTER_URL": "http://b"}, "SAGE_ENGINE_ROUTER_URL"),
        ({"ENGINE_URLS": "http://a,dns+http://b", "SAGE_ENGINE_SLEEP": "update"}, "SAGE_ENGINE_SLEEP"),
    ],
)
def test_settings_of_model_servers_that_exclude_each_other_are_refused(env: dict[str, str], setting: str) -> None:
    with pytest.raises(SettingError, match=f"^{setting}="):
        Settings.from_env(env)


def test_adapters_carry_the_name_of_the_model_unless_it_is_served_under_another() -> None:
    assert Settings.from_env({"SAGE_MODEL": "/models/x"}).served_model == "/models/x"
    assert Settings.from_env({"SAGE_MODEL": "/models/x", "SAGE_ENGINE_MODEL": "org/x"}).served_model == "org/x"


def test_several_model_servers_can_have_ports_and_paths() -> None:
    urls = "http://gpu:8000, https://[::1]:8000,http://gateway/vllm/"
    assert Settings.from_env({"ENGINE_URLS": urls, "EMBEDDINGS_URL": ""}).engine_urls == urls
    several = Settings.from_env({"ENGINE_URLS": "dns+http://pods:8000, https://gpu"})
    assert several.model_servers == ["http://pods:8000", "https://gpu"]


def test_the_model_is_the_default_or_the_one_that_is_named() -> None:
    assert Settings().model == DEFAULT_MODEL
    assert Settings(model=SEED).model_dir.name == "seed_policy"
    assert Settings(model="/models/x").model_dir == Path("/models/x")
