"""The benchmark's tasks on servers of other people: its code solves each through the gateway."""

from pathlib import Path
from typing import Any

import pytest

from app.db.database import Sessions
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.bench.other_server import Expected, OtherServer, OtherTask, is_answer
from tests.bench.third_party import SERVERS
from tests.processes import free_ports
from tests.servers.tried_api import open_tried_api
from tests.servers.tried_row import TriedRow
from tests.support.every_row import every_row

_FIRST, _ALL = 20, 60
_CHANGES = (10, 20)  # at least, among the first and the others, beside one's own


@pytest.mark.slow
@pytest.mark.parametrize("other", SERVERS.values(), ids=SERVERS)
async def test_each_of_the_sixty_tasks_is_solved_by_its_code_and_by_nothing_else(
    other: OtherServer[Any], committed: Sessions, database_url: str, sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    assert (len(other.first), len(other.tasks)) == (_FIRST, _ALL)
    assert len({each.instruction for each in other.tasks}) == _ALL
    (port,) = free_ports(1)
    place = tmp_path / "server"
    place.mkdir()
    row = TriedRow(other.package, "", "")
    with other.run(place, port) as client, every_row() as task:
        async with open_tried_api(other.name, row, committed, database_url, sandbox, tmp_path) as tried:
            await tried.register(**other.api(client))
            ended: list[tuple[OtherTask[Any], Any, Any, str]] = []
            for each in other.tasks:
                with task(each.kind):
                    before = other.set_up(client, each)
                    assert not each.check(before, other.read_state(client), "None"), "doing nothing solves it"
                    code = f"answer = None\n{each.solution}\napis.supervisor.complete_task(answer=answer)"
                    answer = str(await tried.task(None, code))
                    after = other.read_state(client)
                    assert each.check(before, after, answer), f"{answer=}\n{before}\n{after}"
                    ended.append((each, before, after, answer))
        for each, before, after, answer in ended:
            with task(each.kind, "by what solves another"):
                wrong = [end for _, start, end, _ in ended if start == before and end not in (before, after)]
                assert len(wrong) >= _CHANGES[each in other.more]
                assert not any(each.check(before, end, answer) for end in wrong)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("12", 12),
        ("12.0", 12),
        (" Yes.", True),
        ("no", False),
        ("Bike locks (used)", "Bike locks (used)"),
        ("['b', \"it's\"]", ["b", "it's"]),
        ('["b", "a"]', {"a", "b"}),
        ("b, 4711", ["b", "4711"]),
        ('- "a"\n- say "b"', ["a", 'say "b"']),
    ],
)
def test_an_answer_may_have_any_usual_form(said: str, expected: Expected) -> None:
    assert is_answer(said, expected)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("None", 12),
        ("12 watches", 12),
        ("None", False),
        ("bike locks", "Bike locks"),
        ("['a', 'b']", ["b", "a"]),
        ("['a', 'a', 'b']", {"a", "b"}),
        ("a", {"a", "b"}),
        ("None", {"a"}),
    ],
)
def test_an_answer_that_says_something_else_is_none(said: str, expected: Expected) -> None:
    assert not is_answer(said, expected)
