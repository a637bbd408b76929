"""What a run may be asked for: every wrong setting is named."""

from typing import Any

import pytest

from app.base.errors import InvalidError
from app.base.run_settings import RunSettings, check_runnable, read_settings


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"learning_rate": 1}, "no setting learning_rate; did you mean lr?"),
        ({"staleness_max": 1}, r"no setting staleness_max; did you mean max_staleness\?"),
        ({"pears": 1}, r"no setting pears; did you mean pairs\?"),
        ({"zeal": 1}, "no setting zeal; it has kind, hours, start"),
        ({"group": 1}, r"group"),
        ({"seed": -1}, r"seed"),
        ({"seed": 2**32}, r"seed"),
        ({"seed": "1" + "0" * 30}, r"seed"),
        ({"since": "2026-01-01T00:00:00"}, r"timezone.*since"),
        ({"until": "yesterday"}, r"until"),
    ],
)
def test_a_setting_that_is_unknown_or_does_not_fit_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidError, match=named):
        read_settings(given)


def test_a_canary_that_nobody_gets_can_decide_nothing() -> None:
    with pytest.raises(InvalidError, match="gate=canary needs canary_percent above 0"):
        read_settings({"gate": "canary", "canary_percent": 0})


def test_a_canary_that_everybody_gets_can_decide_nothing() -> None:
    with pytest.raises(
        InvalidError, match=r"canary_percent=100 leaves that one no tasks: set canary_percent to 50"
    ):
        check_runnable(read_settings({"gate": "canary", "canary_percent": 100}))
    check_runnable(read_settings({"canary_percent": 100}))


def test_either_live_tasks_decide_or_a_person() -> None:
    settings = read_settings({"gate": "canary", "promote": False})
    with pytest.raises(InvalidError, match=r"gate=canary lets live tasks decide .* promote=false a person"):
        check_runnable(settings)


def test_text_is_read_as_what_the_setting_is() -> None:
    assert read_settings({"steps": "7", "skills": "false"}) == RunSettings(steps=7, skills=False)
