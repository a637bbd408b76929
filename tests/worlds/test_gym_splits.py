"""What a split of the gym holds out never occurs in training, and the rest is as in training."""

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations

import pytest
from msgspec.structs import astuple

from tests.support.gym_rollouts import plan
from trainer.environment import Split
from trainer.lessons.phrases import CONDITIONS, GYM_FRAMES
from trainer.worlds.generated.apis import GYM, GymApi
from trainer.worlds.generated.gym import (
    FORMS,
    GOALS,
    SELECTIONS,
    GymAsk,
    GymEnvironment,
    GymKey,
    GymPlan,
    HeldOut,
    forms_of,
)
from trainer.worlds.generated.gym_expert import ProgramStyle, write_program
from trainer.worlds.generated.words import Pool

AXES = GymKey.axes
COUNT = 400
POOLS: tuple[Pool, ...] = ("train", "validation", "test")


def plans(split: Split, axis: HeldOut, count: int = COUNT) -> list[GymPlan]:
    return [plan(each) for each in GymEnvironment(axis).scenarios(split, count, seed=3)]


def words_of(chosen: GymPlan) -> set[str]:
    """Names of apps and people, and all words of domains: nouns, fields, verbs, labels, states, distractors."""
    words = {name for crowd in chosen.people for name in crowd} | {api.name for api in chosen.apis}
    for domain in (api.domain for api in chosen.apis):
        words |= {word for value in astuple(domain) for word in ([value] if isinstance(value, str) else value)}
        words |= {word for verb in domain.verbs for word in astuple(verb)}
    return words


@pytest.fixture(scope="module")
def trained() -> list[GymPlan]:
    return plans("train", "domains", 2000)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_domains_share_no_word_with_training(trained: list[GymPlan], split: Split) -> None:
    taught = set().union(*map(words_of, trained))
    assert len(taught) > 5000  # people and projects by the thousand
    held_out = set().union(*map(words_of, plans(split, "domains")))
    assert held_out.isdisjoint(taught), held_out & taught


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_shapes_combine_values_that_never_meet_in_training(trained: list[GymPlan], split: Split) -> None:
    taught = {api.shape for each in trained for api in each.apis}
    met = {pair for shape in taught for pair in pairs(shape)}
    for each in plans(split, "shapes"):
        assert any(pair not in met for pair in pairs(each.main.shape))
        assert GYM.pool_of(each.main.shape) == split
        assert any(
            all(is_met(each, value) for value in pair.values())
            for pair in GYM.held_out_pairs(each.main.shape, split)
        )
    for axis, values in GYM.axes.items():
        assert {getattr(shape, axis) for shape in taught} == set(values)


def is_met(chosen: GymPlan, value: str) -> bool:
    """Whether the program that solves the tasks is another one where the API has another value on that axis."""

    def program(api: GymApi) -> str:
        ask = GymAsk(form=chosen.form, main=api, joined=chosen.ask.joined, verbs=chosen.ask.verbs)
        return write_program(ask, ProgramStyle()).function

    (axis,) = (axis for axis in GYM.axes if getattr(chosen.main.shape, axis) == value)
    others = [chosen.main.in_shape(axis, other) for other in GYM.axes[axis]]
    return any(program(other) != program(chosen.main) for other in others if other.shape.is_possible)


def pairs(shape: object) -> Iterable[tuple[tuple[str, str], ...]]:
    return combinations([(axis, getattr(shape, axis)) for axis in GYM.axes], 2)


def test_every_form_belongs_to_one_pool_and_training_has_each_goal_and_selection() -> None:
    pools = [forms_of(pool) for pool in POOLS]
    assert sorted(form.name for forms in pools for form in forms) == sorted(form.name for form in FORMS)
    assert [len(forms) for forms in pools[1:]] == [12, 28]
    assert {form.goal for form in pools[0]} == set(GOALS)
    assert {form.selection for form in pools[0]} == set(SELECTIONS)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_compositions_are_not_trained(trained: list[GymPlan], split: Split) -> None:
    taught = {each.form for each in trained}
    assert taught == set(forms_of("train"))
    assert taught.isdisjoint(each.form for each in plans(split, "compositions"))


def test_no_two_pools_share_a_wording() -> None:
    pools: dict[str, set[str]] = defaultdict(set)
    for pool in POOLS:
        for phrases in [*GYM_FRAMES[pool].values(), *CONDITIONS[pool].values()]:
            for phrase in phrases:
                pools[re.sub(r"\W+", " ", phrase.lower()).strip()].add(pool)
    assert [phrase for phrase, found in pools.items() if len(found) > 1] == []
    for goal in GOALS:
        assert len(GYM_FRAMES["train"][goal]) >= 5


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("split", ["validation", "test"])
def test_an_exam_holds_out_one_thing_only(trained: list[GymPlan], split: Split, axis: HeldOut) -> None:
    """The rest comes from the pool of training."""
    forms, chosen = set(forms_of("train")), plans(split, axis, 60)
    nouns = {api.domain.noun for each in trained for api in each.apis}
    assert all(each.key.pool(other) == "train" for each in chosen for other in AXES if other != axis)
    assert (axis == "compositions") != all(each.form in forms for each in chosen)
    assert (axis == "domains") != all(each.main.domain.noun in nouns for each in chosen)
    assert (axis == "shapes") != all(GYM.pool_of(each.main.shape) == "train" for each in chosen)


def test_all_takes_the_exams_by_turns_and_a_larger_count_only_appends() -> None:
    gym = GymEnvironment()
    many = gym.scenarios("test", 12, seed=1)
    assert [each.template.partition(".")[0] for each in many] == [*AXES] * 3
    assert gym.scenarios("test", 5, seed=1) == many[:5]
    assert gym.scenarios("test", 5, seed=2) != many[:5]


def test_the_tasks_of_a_scenario_share_the_form_and_no_value() -> None:
    for scenario in GymEnvironment().scenarios("train", 100, seed=4):
        chosen = plan(scenario)
        assert len({task.instruction for task in scenario.tasks}) == 3
        for parameter in chosen.form.parameters:
            if parameter != "target":
                assert len({values[parameter] for values in chosen.values}) == 3
        for task, values in zip(scenario.tasks, chosen.values, strict=True):
            assert all(str(value) in task.instruction for value in values.values())
