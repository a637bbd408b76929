"""The benchmark's tasks on servers of other people: its code solves each through the gateway."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.client.server import SageClient
from app.db.database import Sessions
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.bench.other_server import Expected, OtherServer, OtherTask, is_answer
from tests.bench.record_tasks import KINTO
from tests.bench.third_party import SERVERS, solve
from tests.integration.servers.tried_api import LIMITS, open_tried_api
from tests.integration.servers.tried_row import TriedRow
from tests.support.every_row import every_row
from tests.support.http_server import served
from tests.support.processes import free_ports
from tests.support.scripted_engine import ScriptedEngine, block

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
                    answer = str(await tried.task(None, _completed(each)))
                    after = other.read_state(client)
                    assert each.check(before, after, answer), f"{answer=}\n{before}\n{after}"
                    ended.append((each, before, after, answer))
        for each, before, after, answer in ended:
            with task(each.kind, "by what solves another"):
                wrong = [end for _, start, end, _ in ended if start == before and end not in (before, after)]
                assert len(wrong) >= _CHANGES[each in other.more]
                assert not any(each.check(before, end, answer) for end in wrong)


def _completed(task: OtherTask[Any]) -> str:
    return f"answer = None\n{task.solution}\napis.supervisor.complete_task(answer=answer)"


_ANSWERS = {  # by kind: what REST says
    "move record": None,
    "average by field": 12,
    "name over two links": "Zoë O'Hara",
    "list by range in order": ["Solaris", "Dune", "Cien años de soledad", "Dune Messiah"],
}


@pytest.mark.slow
async def test_the_command_judges_a_task_by_its_answer_over_rest_and_names_its_kind(
    committed: Sessions, database_url: str, sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    chosen = [each for each in KINTO.tasks if each.kind in _ANSWERS]
    (port,) = free_ports(1)
    with KINTO.run(tmp_path, port) as client:
        row = TriedRow(KINTO.package, "", "")
        async with (
            open_tried_api(KINTO.name, row, committed, database_url, sandbox, tmp_path) as tried,
            served(tried.api) as http,
        ):
            await tried.register(**KINTO.api(client))
            key = http.headers["Authorization"].removeprefix("Bearer ")
            coded = {each.instruction: tried.code(_completed(each)) for each in chosen}
            engine = ScriptedEngine(
                tried.project.tokenizer,
                script=lambda prompt, _: next(block(code) for asked, code in coded.items() if asked in prompt),
            )
            with SageClient(str(http.base_url), key) as server, every_row() as task:
                async with tried.project.runner(engine, limits=LIMITS):
                    for each in chosen:
                        result = await asyncio.to_thread(solve, server, KINTO, client, "demo", each)
                        with task(each.kind):
                            assert result["answer"] == _ANSWERS[each.kind]
                            assert (result["kind"], result["first"], result["solved"]) == (each.kind, False, True)


_SAID: tuple[tuple[str, Expected], ...] = (
    ("12", 12),
    ("12.0", 12),
    (" Yes.", True),
    ("no", False),
    ("Bike locks (used)", "Bike locks (used)"),
    ("['b', \"it's\"]", ["b", "it's"]),
    ('["b", "a"]', {"a", "b"}),
    ("b, 4711", ["b", "4711"]),
    ('- "a"\n- say "b"', ["a", 'say "b"']),
)
_SAID_WRONG: tuple[tuple[str, Expected], ...] = (
    ("None", 12),
    ("12 watches", 12),
    ("None", False),
    ("bike locks", "Bike locks"),
    ("['a', 'b']", ["b", "a"]),
    ("['a', 'a', 'b']", {"a", "b"}),
    ("a", {"a", "b"}),
    ("None", {"a"}),
)


def test_an_answer_may_have_any_usual_form_but_says_one_thing() -> None:
    with every_row() as row:
        for right, answers in ((True, _SAID), (False, _SAID_WRONG)):
            for said, expected in answers:
                with row(said, expected):
                    assert is_answer(said, expected) is right
