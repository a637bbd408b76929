"""A world is determined by its id, detects the usual mistakes, and is isolated from all others."""

import pytest

from app.base.errors import InvalidError, NotFoundError
from tests.support.office_instructions import asked_by
from trainer.environment import Split
from trainer.worlds.office.apps import APPS, GROUPS, PEOPLE
from trainer.worlds.office.scenarios import (
    TEMPLATES,
    Place,
    Template,
    draw,
    place_at,
    place_of,
    scenario,
    site_of,
    task_at,
)
from trainer.worlds.office.worlds import PAGE_SIZE, Worlds, groups_of, items_of, matches

PLACE = Place(template=0, seed=42, site=7, index=1)


def places(split: Split = "train", count: int = 161) -> list[Place]:
    return [place_at(task) for chosen in draw(split, count, seed=1) for task in chosen.tasks]


def test_the_id_of_a_world_encodes_its_place() -> None:
    assert PLACE.world("9") == "t0-s42-d7-1-x9"
    assert place_of("t0-s42-d7-1-x9") == place_of("t0-s42-d7-1") == PLACE


@pytest.mark.parametrize(
    "name", ["", "t0", "t999-s1-d1-0", "t0-s1-d1-3", "t0-s1-d1-0-x", "t0-s1-d1-0-x9!", "Demo"]
)
def test_a_name_that_encodes_no_place_is_unknown(name: str) -> None:
    with pytest.raises(NotFoundError, match="no world"):
        Worlds().get(name)


def test_the_same_seed_draws_the_same_scenarios_and_a_larger_count_appends() -> None:
    assert draw("train", 5, seed=3) == draw("train", 9, seed=3)[:5]
    assert draw("train", 5, seed=3) != draw("train", 5, seed=4)


def test_every_template_of_a_split_occurs_once_before_any_occurs_twice() -> None:
    names = [chosen.template for chosen in draw("validation", 20, seed=3)]
    assert len(set(names[:16])) == 16
    assert len(set(names)) == 16


def test_the_tasks_of_a_scenario_ask_the_same_of_different_values() -> None:
    for chosen in draw("test", 40, seed=5):
        asked = [asked_by(task.instruction) for task in chosen.tasks]
        assert {template.name for template, _ in asked} == {chosen.template}
        assert len({value for _, value in asked}) == 3
        assert len({task.id for task in chosen.tasks}) == 3


def test_scenarios_are_at_many_sites_unless_one_is_named() -> None:
    assert len({site_of(chosen).seed for chosen in draw("train", 50, seed=1)}) == 50
    assert {site_of(chosen).seed for chosen in draw("train", 50, seed=1, site=0)} == {0}
    with pytest.raises(InvalidError, match="site must be between"):
        draw("train", 1, seed=1, site=-1)


def test_the_first_and_the_last_page_have_matches() -> None:
    for place in places():
        items = items_of(place.kind.app, place)
        hits = [at for at, item in enumerate(items) if matches(item, place, groups_of(place))]
        assert 9 <= len(items) <= 14
        assert 2 <= len(hits) <= 4
        assert hits[0] < PAGE_SIZE
        assert hits[-1] == len(items) - 1


def test_a_group_is_matched_by_more_than_one_of_its_members() -> None:
    for place in places():
        if place.kind.selector == "group":
            items, members = items_of(place.kind.app, place), groups_of(place)[place.value]
            assert len({item.person for item in items} & set(members)) == 2


def test_the_person_asked_for_has_items_in_every_other_app() -> None:
    for place in places():
        if place.kind.selector == "person":
            assert all(place.value in {item.person for item in items_of(app, place)} for app in APPS)


def test_the_largest_match_is_one_item_and_not_the_largest_of_all() -> None:
    for place in places():
        if place.kind.verb == "top":
            items, groups = items_of(place.kind.app, place), groups_of(place)
            numbers = [item.number for item in items]
            assert len(set(numbers)) == len(numbers)
            assert not matches(max(items, key=lambda item: item.number), place, groups)


def test_a_number_at_the_threshold_is_not_over_it() -> None:
    for place in places():
        if place.kind.selector == "over":
            near = [item for item in items_of(place.kind.app, place) if item.number == int(place.value)]
            assert near
            assert not any(matches(item, place, groups_of(place)) for item in near)


def test_a_world_is_always_created_the_same() -> None:
    chosen = scenario(Template("files", "count", "label"), 11, site=4)
    again = place_at(task_at(place_at(chosen.tasks[2]), nonce="abc"))
    assert items_of("files", place_at(chosen.tasks[2])) == items_of("files", again)
    assert items_of("files", place_at(chosen.tasks[1])) != items_of("files", again)


def test_the_demo_world_holds_every_person_and_every_label() -> None:
    for app, spec in APPS.items():
        items = items_of(app, None)
        assert {item.person for item in items} == set(PEOPLE)
        assert {item.label for item in items} == set(spec.values)
        assert len({item.number for item in items}) == len(items)
    assert {"iris", "omar"} <= set(PEOPLE)
    assert sorted(name for members in groups_of(None).values() for name in members) == sorted(PEOPLE)
    assert set(groups_of(None)) == set(GROUPS)


def test_a_change_in_one_world_is_invisible_in_others() -> None:
    worlds = Worlds()
    one, other = worlds.get(PLACE.world("1")), worlds.get(PLACE.world("2"))
    one.items("mail")[0].done.add("act1")
    assert other.items("mail")[0].done == set()
    assert worlds.get(PLACE.world("1")) is one


def test_the_least_recently_used_world_is_discarded_first() -> None:
    worlds = Worlds(capacity=2)
    first, second = worlds.get(PLACE.world("1")), worlds.get(PLACE.world("2"))
    demo = worlds.get("demo")
    worlds.get(PLACE.world("1"))
    worlds.get(PLACE.world("3"))
    assert worlds.get(PLACE.world("1")) is first
    assert worlds.get(PLACE.world("2")) is not second
    assert worlds.get("demo") is demo


def test_a_world_belongs_to_one_site() -> None:
    worlds = Worlds()
    assert worlds.at(7, PLACE.world()).place == PLACE
    with pytest.raises(NotFoundError, match="is at site 7, not at 8"):
        worlds.at(8, PLACE.world())


def test_a_discarded_world_is_created_anew() -> None:
    worlds = Worlds()
    for name in ("demo", PLACE.world()):
        worlds.get(name).items("mail")[0].done.add("act1")
        worlds.forget(name)
        assert worlds.get(name).items("mail")[0].done == set()


def test_templates_keep_their_number_in_ids() -> None:
    assert (TEMPLATES[0].name, TEMPLATES[160].name) == ("mail.act1.person", "todo.top.group")
