"""The benchmark's tasks on servers of other people: its code solves each through the gateway."""

from pathlib import Path
from typing import Any

import pytest

from app.db.database import Sessions
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.bench.other_server import OtherServer
from tests.bench.third_party import SERVERS
from tests.processes import free_ports
from tests.servers.tried_api import open_tried_api
from tests.servers.tried_row import TriedRow


@pytest.mark.slow
@pytest.mark.parametrize("other", SERVERS.values(), ids=SERVERS)
async def test_each_of_the_twenty_tasks_is_solved_by_its_code_and_not_by_doing_nothing(
    other: OtherServer[Any], committed: Sessions, database_url: str, sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    assert len(other.tasks) == 20
    (port,) = free_ports(1)
    unsolved = []
    place = tmp_path / "server"
    place.mkdir()
    with other.run(place, port) as client:
        row = TriedRow(other.package, "", "")
        async with open_tried_api(other.name, row, committed, database_url, sandbox, tmp_path) as tried:
            await tried.register(**other.api(client))
            for each in other.tasks:
                other.seed(client)
                before = other.read_state(client)
                assert not each.check(before, other.read_state(client), "None"), each.instruction
                code = f"answer = None\n{each.solution}\napis.supervisor.complete_task(answer=answer)"
                answer = await tried.task(None, code)
                if not each.check(before, other.read_state(client), str(answer)):
                    unsolved.append((each.instruction, answer))
    assert unsolved == []
