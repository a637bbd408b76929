"""Practice environments by name."""

import pytest

from app.errors import InvalidError
from app.run_settings import ENVIRONMENTS, LEAST_SCENARIOS
from trainer.environment import open_environment
from trainer.evaluation.gate_decision import GateRules


def test_what_a_run_may_be_asked_for_is_what_the_trainer_has() -> None:
    for name in ENVIRONMENTS:
        open_environment(name)
    with pytest.raises(InvalidError, match=f"there are {', '.join(ENVIRONMENTS)}"):
        open_environment("another")
    assert GateRules().min_scenarios == LEAST_SCENARIOS


def test_a_site_that_is_named_is_where_all_scenarios_are_set() -> None:
    scenarios = open_environment("office?site=7&busy=0.4").scenarios("test", 5, 1)
    assert all(task.variables["world"].split("-")[2] == "d7" for each in scenarios for task in each.tasks)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "no environments part is named '': there are office"),
        ("shop", "there are office"),
        ("office?size=3", "office has no option size; it has site, busy"),
        ("office?busy=2", "office: busy=2: 2 is greater than the maximum of 0.9"),
        ("office?busy=often", "office: busy=often: 'often' is not of type 'number'"),
        ("office?busy", r"write options as office\?option=value"),
    ],
)
def test_a_name_that_does_not_fit_is_refused_with_what_there_is(name: str, said: str) -> None:
    with pytest.raises(InvalidError, match=said):
        open_environment(name)
