"""The office under other names and in free wording: values from wide pools, worlds alike."""

from typing import get_args

import pytest

from trainer.environment import Split
from trainer.worlds.office.apps import APPS, GROUPS, PEOPLE, THRESHOLDS
from trainer.worlds.office.scenarios import TEMPLATES, Place, Variety, draw, place_at, place_of, templates_of
from trainer.worlds.office.worlds import groups_of, items_of, matches

SPLITS: tuple[Split, ...] = get_args(Split)


def places(variety: Variety, split: Split = "test", count: int = 40) -> list[Place]:
    return [place_at(task) for each in draw(split, count, 5, variety=variety) for task in each.tasks]


def selected(place: Place) -> list[int]:
    """The ids of the items that the task is about."""
    return [each.id for each in items_of(place.kind.app, place) if matches(each, place, groups_of(place))]


@pytest.mark.parametrize("variety", get_args(Variety))
def test_a_world_is_found_again_by_its_id(variety: Variety) -> None:
    for place in places(variety):
        assert place_of(place.world("a1")) == place
        assert place.variety == variety


def test_names_vary_with_the_scenario_and_the_worlds_stay_alike() -> None:
    fixed, varied = places(""), places("-n")
    assert [selected(each) for each in fixed if each.kind.selector != "over"] == [
        selected(each) for each in varied if each.kind.selector != "over"
    ]
    assert len({each.value for each in varied if each.kind.selector == "person"}) > 20
    for one in varied:
        known = {*PEOPLE, *(value for app in APPS.values() for value in app.values)}
        shown = {item.person for item in items_of(one.kind.app, one)} | set(one.labels(one.kind.app))
        assert not shown & known
        assert selected(one)


def test_numbers_and_groups_of_varied_tasks() -> None:
    for place in places("-n", count=80):
        if place.kind.selector == "group":
            assert place.value in GROUPS
        elif place.kind.selector == "over":
            assert 15 <= int(place.value) <= 85
    assert {each.value for each in places("-n", count=80) if each.kind.selector == "over"} - set(THRESHOLDS)


def test_names_of_a_split_are_in_no_other() -> None:
    seen = {split: {name for place in places("-n", split, 60) for name in place.people} for split in SPLITS}
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]


def test_free_wording_asks_the_same_in_words_of_its_split() -> None:
    fixed, free = places(""), places("-w")
    assert [each.value for each in fixed] == [each.value for each in free]
    assert [selected(each) for each in fixed] == [selected(each) for each in free]
    for one, other in zip(fixed, free, strict=True):
        assert other.instruction != one.instruction
        assert other.value in other.instruction


def test_every_template_has_a_sentence_with_its_value_act_and_noun() -> None:
    for split in SPLITS:
        for number, template in enumerate(templates_of(split)):
            place = Place(template=TEMPLATES.index(template), seed=number, site=1, index=0, variety="-nw")
            sentence = place.instruction.lower()
            assert place.value.lower() in sentence
            assert "{" not in sentence
            assert template.spec.noun in sentence
            assert template.act is None or template.act.verb in sentence
