"""The verifier checks the final state: every expected change, nothing else, and the answer. On one world."""

import pytest

from app.base.errors import NotFoundError
from app.base.values import Json
from trainer.worlds.office.scenarios import TEMPLATES, Place, Template
from trainer.worlds.office.worlds import Item, WorldState, verify


def world_of(template: Template) -> tuple[WorldState, list[Item], list[Item]]:
    """A world, its mails that match by person, and the others."""
    place = Place(template=TEMPLATES.index(template), seed=3, site=0, index=0)
    world = WorldState(place.world())
    items = world.items("mail")
    wanted = [item for item in items if item.person == place.value]
    return world, wanted, [item for item in items if item.person != place.value]


def test_one_check_for_each_change_one_for_all_else_and_one_for_the_answer() -> None:
    world, wanted, _ = world_of(Template("mail", "act1", "person"))
    for item in wanted[1:]:
        item.done.add("act1")
    verdict = verify(world, None)
    assert (verdict.passed, verdict.total) == (len(wanted) + 1, len(wanted) + 2)
    assert verdict.failures == (f"mail {wanted[0].id}: expected act1, found no change",)
    wanted[0].done.add("act1")
    assert verify(world, None).success


def test_an_unrequested_change_fails_in_any_app() -> None:
    world, wanted, others = world_of(Template("mail", "act1", "person"))
    for item in wanted:
        item.done.add("act1")
    others[0].done.add("act1")
    assert verify(world, None).failures == (f"changed without being asked: mail {others[0].id}",)
    others[0].done.clear()
    note = world.items("notes")[0]
    note.done.add("act2")
    assert verify(world, None).failures == (f"changed without being asked: notes {note.id}",)


def test_an_act_other_than_the_requested_one_fails() -> None:
    world, wanted, _ = world_of(Template("mail", "act1", "person"))
    for item in wanted:
        item.done |= {"act1", "act3"}
    assert len(verify(world, None).failures) == len(wanted)


def test_preparing_an_item_is_not_a_change() -> None:
    world, wanted, others = world_of(Template("mail", "act1", "person"))
    others[0].prepared = True
    for item in wanted:
        item.done.add("act1")
    assert verify(world, None).success


@pytest.mark.parametrize(("answer", "right"), [(None, True), ("", True), (2, False), ("done", False), (0, False)])
def test_an_act_has_no_answer(answer: Json, right: bool) -> None:
    world, wanted, _ = world_of(Template("mail", "act1", "person"))
    for item in wanted:
        item.done.add("act1")
    assert verify(world, answer).success is right


def test_a_count_is_the_number_of_matches_as_a_number_or_as_text() -> None:
    world, wanted, _ = world_of(Template("mail", "count", "person"))
    right = len(wanted)
    assert [verify(world, answer).success for answer in (right, str(right), float(right))] == [True] * 3
    for wrong in (None, "", right + 1, f"{right} mails", [right], right == 1, True):
        assert verify(world, wrong).failures == (f"expected the answer {right}, got {wrong}",)


def test_a_total_is_the_sum_of_the_numbers() -> None:
    world, wanted, _ = world_of(Template("mail", "total", "person"))
    assert verify(world, sum(item.number for item in wanted)).success
    assert not verify(world, len(wanted)).success


def test_the_top_one_alone_is_changed() -> None:
    world, wanted, _ = world_of(Template("mail", "top", "person"))
    largest = max(wanted, key=lambda item: item.number)
    assert verify(world, None).total == 3
    largest.done.add("act1")
    assert verify(world, None).success
    next(item for item in wanted if item is not largest).done.add("act1")
    assert not verify(world, None).success


def test_a_task_that_was_not_completed_fails() -> None:
    world, wanted, _ = world_of(Template("mail", "count", "person"))
    verdict = verify(world, len(wanted), completed=False)
    assert (verdict.passed, verdict.failures) == (1, ("the task was not completed",))


def test_a_world_without_a_task_cannot_be_verified() -> None:
    with pytest.raises(NotFoundError, match="no task to judge"):
        verify(WorldState("demo"), None)
