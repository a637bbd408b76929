"""The row of a runner, and what a runner does about neighbours that died."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from app.base.processes import pid_space
from app.db import runners, tables
from app.engine.dispatch import Occupancy
from app.sandbox.forked_sandbox import ForkedSandbox
from app.tasks import queue
from app.tasks.runner import MemoryWatch, Runner, RunnerOptions, RunnerPresence
from tests.support.ledger_policies import Stuck
from tests.support.ledger_project import LedgerProject, until
from tests.support.rows import runner_report

OPTIONS = RunnerOptions(concurrency=3, lease_seconds=600, poll_seconds=0.1, grace_seconds=0.2)


@asynccontextmanager
async def present(project: LedgerProject, sandbox: ForkedSandbox) -> AsyncIterator[Runner]:
    memory = MemoryWatch(1 << 40, lambda: None)
    async with project.runner(Stuck(project.tokenizer), OPTIONS) as runner:
        busy = Occupancy({}, in_flight=5, waiting=2)
        async with RunnerPresence(project.sessions, runner, sandbox, memory, lambda: busy):
            yield runner


async def live(project: LedgerProject) -> Sequence[tables.RunnerProcess]:
    async with project.sessions() as session:
        return await runners.live(session)


async def test_a_runner_is_listed_with_its_tasks_until_it_leaves(
    project: LedgerProject, bare_sandbox: ForkedSandbox
) -> None:
    async with present(project, bare_sandbox) as runner:
        await project.submit()

        async def executes_one() -> bool:
            return [each.in_flight for each in await live(project)] == [1]

        await until(executes_one)
        [row] = await live(project)
        assert (row.id, row.capacity, row.generating, row.waiting, row.error) == (runner.owner, 3, 5, 2, None)
    assert await live(project) == []


async def test_a_runner_whose_sandbox_fails_says_why_and_claims_nothing_until_it_works_again(
    project: LedgerProject,
) -> None:
    sandbox = ForkedSandbox(bwrap=False)
    async with present(project, sandbox) as runner:

        async def has_error() -> bool:
            return [each.error for each in await live(project)] == ["the sandbox is not started"]

        await until(has_error)
        task_id = await project.submit()
        await asyncio.sleep(0.5)
        assert (await project.row(task_id)).owner is None
        async with sandbox:
            await until(lambda: runner.running == 1)


async def test_only_the_tasks_of_a_process_that_is_known_to_be_gone_are_freed(
    project: LedgerProject, bare_sandbox: ForkedSandbox
) -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    where = pid_space()
    tasks = {}
    async with project.sessions.begin() as session:
        for owner, pid, space in (("dead", ended.pid, where), ("alive", 1, where), ("elsewhere", ended.pid, "x")):
            await runners.report(session, runner_report(owner, pid=pid, pid_space=space))
            tasks[owner] = await project.submit()
            assert await queue.claim(session, owner, 600) is not None

    async with present(project, bare_sandbox):

        async def is_freed() -> bool:
            return (await project.row(tasks["dead"])).deaths == 1

        await until(is_freed)
        owners = [(await project.row(tasks[each])).owner for each in ("alive", "elsewhere")]
        assert owners == ["alive", "elsewhere"]
        assert "dead" not in [each.id for each in await live(project)]
