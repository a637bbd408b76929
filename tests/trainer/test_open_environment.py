"""Environments are opened by name and options."""

from importlib.metadata import version

import pytest

from app.base.errors import InvalidError
from app.base.run_settings import MIN_SCENARIOS
from trainer.environment import open_environment
from trainer.evaluation.gate_decision import GateRules
from trainer.worker.launcher import installed_environments


def test_the_fewest_scenarios_that_a_run_accepts_are_those_that_the_gate_needs() -> None:
    assert GateRules().min_scenarios == MIN_SCENARIOS


def test_every_environment_that_is_listed_opens_under_its_name() -> None:
    assert [each.name for each in installed_environments()] == [
        "crud",
        "exam",
        "gym",
        "office",
        "openenv",
        "practice",
        "strangers",
    ]
    for each in installed_environments():
        if each.name not in ("exam", "openenv", "practice"):  # which need a project or a server
            assert open_environment(each.name).scenarios("train", 1, 0)
        assert each.version == version("sage-server")


def test_an_exam_has_tasks_only_in_a_run_of_its_project() -> None:
    with pytest.raises(InvalidError, match="an exam belongs to a project: name it in a training run"):
        open_environment("exam?name=own-work").scenarios("test", 1, 0)


def test_all_scenarios_take_place_at_the_named_site() -> None:
    scenarios = open_environment("office?site=7&busy=0.4").scenarios("test", 5, 1)
    assert all(task.variables["world"].split("-")[2] == "d7" for each in scenarios for task in each.tasks)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", "sage.environments has no '', it has agentdojo, "),
        ("shop", "sage.environments has no 'shop', it has agentdojo, "),
        ("office?size=3", "office has no option size; it has busy, names, site, wording"),
        ("office?busy=2", "office: busy=2: 2 is greater than the maximum of 0.9"),
        ("office?busy=often", "office: busy=often: 'often' is not of type 'number'"),
        ("gym?held_out=names", "gym: held_out=names: 'names' is not one of"),
        ("office?busy", r"write options as office\?option=value"),
    ],
)
def test_an_unknown_name_or_option_is_refused_with_the_known_ones(name: str, error: str) -> None:
    with pytest.raises(InvalidError, match=error):
        open_environment(name)
