"""The traffic of the live loop: the same kinds each time, never the same task, all checkable."""

import msgspec

from app.tasks.requests import Submission, TaskRequest
from app.tasks.submission import refuse_unparsable
from tests.bench.traffic import draw_traffic, kinds_of, submission
from trainer.worlds.office.scenarios import templates_of


def test_all_kinds_are_held_out_and_the_same_at_every_call() -> None:
    kinds = kinds_of("test", 12)
    assert len(kinds) == 12
    assert kinds == kinds_of("test", 12)
    assert set(kinds) <= set(templates_of("test"))
    assert len(kinds_of("test", 1000)) == 20


def test_kinds_come_in_turn_and_no_task_comes_twice() -> None:
    kinds = kinds_of("test", 5)
    drawn = draw_traffic(kinds, site=0, count=300, seed=1) + draw_traffic(kinds, site=0, count=100, seed=2)
    assert [place.kind for place in drawn[:10]] == kinds * 2
    assert len({place.world() for place in drawn}) == 400


async def test_the_server_takes_every_task_as_it_is_sent() -> None:
    places = draw_traffic(kinds_of("test", 20), site=0, count=20, seed=1)
    for labels in (True, False):
        sent = [submission(place, "p", labels=labels, scored=True) for place in places]
        tasks = msgspec.convert(sent, list[TaskRequest])
        assert Submission(tasks=tasks).requests() == tasks
        await refuse_unparsable(task.check_code or "" for task in tasks)
        assert {task.scenario is not None for task in tasks} == {labels}
