"""Whatever an agent's code hands in or claims, its task ends, is stored, and can be read over the API."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from app.agent.rollout import RolloutLimits
from app.base.values import Stop
from app.db.database import Sessions
from app.db.tables import TaskState
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from tests.support.api_app import ApiApp, open_api_app
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject, put_ledger
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer

_DONE = "\napis.supervisor.complete_task(answer=answer)"
_FORGE = (
    "import json, os, time\ndef send(*m):\n    b = json.dumps(m).encode()\n"
    "    os.write(3, len(b).to_bytes(4, 'big') + b)\ndef f(): pass\n"
    "channel = apis.ledger.add_entry._channel\napis.supervisor.complete_task(answer=1)\n"
)
_ANSWERS = {
    "deep lists": "answer = 1\nfor _ in range(60): answer = [answer]",
    "deep objects": "answer = 1\nfor _ in range(60): answer = {'a': answer}",
    "a huge integer": "answer = -(2 ** 1022)",
    "a float whose digits PostgreSQL spells out": "answer = [1.7e308, 5e-324, -0.0, 2.0 ** 64]",
    "NUL": r"answer = {'a\0b': 'c\0d'}",
    "a long key": "answer = {'k' * 400_000: 1}",
    "many keys": "answer = {str(n): n for n in range(60_000)}",
    "many empty lists": "answer = [[] for _ in range(150_000)]",
    "a long text": "answer = 'x' * 900_000",
    "markup and newlines": "answer = '</script>\\r\\n\\n\\u2028data: x\\nevent: done\\n'",
    "empty keys": "answer = {'': {'': [None, True, '']}}",
}
_CLAIMS = {
    "2 ** 53 - 1 calls": "[['f', False, 2 ** 53 - 1, 2 ** 53 - 1], ['old', True, 2 ** 53 - 1, 2 ** 53 - 1]]",
    "2 ** 63 calls": "[['f', False, 2 ** 63, 1], ['f', False, 2 ** 64, 1]]",
    "10 ** 300 calls": "[['f', False, 10 ** 300, 10 ** 300]]",
    "more returns than calls": "[['f', False, 1, 2], ['f', False, -1, -1]]",
    "the same function many times": "[['f', False, 10 ** 6, 10 ** 6]] * 10_000",
    "names of strange characters": r"[['f\0', False, 1, 1], ['', True, 1, 1], ['f' * 10 ** 5, False, 1, 1]]",
}


@dataclass
class Served:
    project: LedgerProject
    api: ApiApp

    async def carry_out(self, *turns: str) -> str:
        """The id of a task that ran these turns and ended."""
        engine = ScriptedEngine(self.project.tokenizer, *map(block, turns))
        limits = RolloutLimits(turn_tokens=1024, session=SessionLimits(cpu_seconds=60))
        async with self.project.runner(engine, limits=limits) as runner:
            task_id = await self.project.submit()
            runner.wake()
            await self.project.ended(task_id)
        return str(task_id)


@pytest.fixture
async def served(
    committed: Sessions, database_url: str, bare_sandbox: ForkedSandbox, tokenizer: ChatTokenizer
) -> AsyncIterator[Served]:
    ledger = Ledger()
    async with open_api_app(committed, database_url) as api, ledger.client() as client:
        async with committed.begin() as session:
            await put_ledger(session, api.demo.id, ledger, "http://ledger.test")
        yield Served(LedgerProject(committed, bare_sandbox, tokenizer, ledger, client, api.demo.id), api)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("name", _ANSWERS)
async def test_a_task_with_a_strange_answer_ends_and_can_be_read(name: str, served: Served) -> None:
    task_id = await served.carry_out(_ANSWERS[name] + _DONE)
    await _readable(served, task_id)
    row = (await served.api.client.get(f"/v1/tasks/{task_id}")).json()
    assert (row["state"], row["stop_reason"], row["failure"]) == (TaskState.DONE, Stop.COMPLETED, None)
    assert row["answer"] is not None


@pytest.mark.parametrize("name", _CLAIMS)
async def test_a_task_that_claims_strange_counts_ends_and_can_be_read(name: str, served: Served) -> None:
    task_id = await served.carry_out(f"{_FORGE}send('done', channel.run, 'ok', None, {_CLAIMS[name]})")
    await _readable(served, task_id)
    row = (await served.api.client.get(f"/v1/tasks/{task_id}")).json()
    assert (row["state"], row["stop_reason"], row["failure"]) == (TaskState.DONE, Stop.COMPLETED, None)


async def _readable(served: Served, task_id: str) -> None:
    paths = ("", "/trajectory", "/events")
    answers = await asyncio.gather(*(served.api.client.get(f"/v1/tasks/{task_id}{path}") for path in paths))
    answers.append(await served.api.client.get("/v1/tasks"))
    assert [each.status_code for each in answers] == [200] * 4
    assert answers[2].text.count("\nevent: done") + answers[2].text.startswith("event: done") == 1
