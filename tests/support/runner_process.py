"""A runner process for tests to kill: `python -m tests.support.runner_process DATABASE_URL DIRECTORY [SECONDS]`.

About so many seconds pass between the preparation of a request and its sending, as for a distant server.
"""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits
from app.base.settings import Settings
from app.db.database import open_database
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills.library import Library
from app.skills.search import query_ngram
from app.tasks.execution import TaskExecutor
from app.tasks.journal import SentMarks
from app.tasks.runner import Runner, RunnerOptions
from tests.support.encryption_keys import TEST_KEYS
from tests.support.scripted_engine import Answer, ScriptedEngine, block, byte_tokenizer

CONCURRENCY = 6
"""A kill leaves at most so many tasks in doubt."""
OPTIONS = RunnerOptions(concurrency=CONCURRENCY, lease_seconds=2, poll_seconds=0.1)
TURNS = (
    "mine = []\ndef write(text: str) -> None:\n    mine.append(apis.ledger.add_entry(text=text)['id'])\n"
    "write('{word} 1')\nwrite('{word} 2')",
    "write('{word} 3')\nprint(apis.ledger.list_entries()[0]['text'])\nwrite('{word} 4')",
    "import random, datetime\nwrite('{word} 5 %s %s' % (random.random(), datetime.datetime.now()))",
    "apis.supervisor.complete_task(answer=mine)",
)


def script(prompt: str, turn: int) -> Answer:
    """Five writes in three turns; the last one shows whether a resumed task has the same seed and clock."""
    return block(TURNS[turn].format(word=prompt.partition("write ")[2].split()[0]))


class Thinks(ScriptedEngine):
    """Answers more slowly than a write takes, so that a kill meets tasks at both."""

    async def _next(self, prompt: str) -> Answer:
        await asyncio.sleep(0.2)
        return await super()._next(prompt)


@asynccontextmanager
async def open_executor(database_url: str, directory: Path) -> AsyncIterator[tuple[TaskExecutor, ForkedSandbox]]:
    """Of tasks that follow the script, in a sandbox of this process."""
    tokenizer = byte_tokenizer(directory)
    async with (
        open_database(database_url, keys=TEST_KEYS, transaction_seconds=OPTIONS.lease_seconds) as database,
        ForkedSandbox(bwrap=False) as sandbox,
        httpx.AsyncClient(timeout=300, trust_env=False) as client,
    ):
        agent = Agent(Thinks(tokenizer, script=script), tokenizer, Compact(), sandbox, RolloutLimits())
        library = Library(database.sessions, retrieval=query_ngram)
        settings, marks = Settings(skills_withheld=0), SentMarks.open(directory.parent / "sent")
        yield TaskExecutor(database.sessions, agent, library, client, settings, marks=marks), sandbox


async def run(database_url: str, directory: Path, seconds: float) -> None:
    async def wait(_: httpx.Request) -> None:
        await asyncio.sleep(random.uniform(0, 2 * seconds))  # so that tasks are at different points

    async with open_executor(database_url, directory) as (executor, _):
        executor.client.event_hooks = {"request": [wait]}
        async with Runner(executor.sessions, executor.execute, OPTIONS):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), float("".join(sys.argv[3:]) or 0)))
