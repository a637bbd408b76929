"""Tasks of a release whose policy is a hosted model: recorded, resumed, given up, replayed and shown."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import update

from app.agent.prompts import hosted_prompt
from app.base.errors import EngineError, EngineRefusalError
from app.base.values import CountedTokens, Stop, Trajectory, Turn, hosted
from app.db import results, tables
from app.db.tables import TaskState
from app.engine.protocol import ChatAnswer
from app.engine.tokenizer import Message
from app.projects import store as projects
from app.projects import usage
from app.releases import hosted_models, trials_store
from app.releases import store as releases
from app.releases.hosted_models import HostedModels
from app.tasks import queue, turns
from app.tasks import store as tasks
from app.tasks.events import fold
from app.tasks.runner import Runner
from app.tasks.shadows import ShadowRunner, request_shadows
from app.tasks.views import view
from tests.support.hosted_project import hosted_entry, hosted_executor, hosted_runner, serve_hosted
from tests.support.ledger_project import OPTIONS, LedgerProject, until
from tests.support.odd_endpoint import OddEndpoint, Reply, refused, said
from tests.support.scripted_chat import GENERATED_TOKENS, PROMPT_TOKENS, Said, ScriptedChatModel
from tests.support.scripted_engine import ScriptedEngine, block
from tests.support.shared_reader import shared_reader

WRITE = block("print(apis.ledger.add_entry(text='hello')['id'])")
READ = block("print(apis.ledger.list_entries())")
DONE = block("apis.supervisor.complete_task(answer=7)")


async def record_of(project: LedgerProject, task_id: UUID) -> Trajectory:
    async with project.sessions() as session:
        return await results.of_task(session, task_id)


async def test_a_task_of_a_hosted_policy_is_executed_and_recorded(project: LedgerProject) -> None:
    release = await serve_hosted(project)
    thinking = ChatAnswer(text=WRITE, thought="I add it")
    async with hosted_runner(project, ScriptedChatModel(thinking, DONE)):
        row = await project.ended(await project.submit())
    assert (row.state, row.stop, row.answer, row.release_id) == (TaskState.DONE, Stop.COMPLETED, 7, release.id)
    assert [entry.text for entry in project.ledger.entries] == ["hello"]
    assert (row.generated_tokens, row.prompt) == (GENERATED_TOKENS, hosted_prompt())
    record = await record_of(project, row.id)
    assert (record.policy.model, record.profile, record.prompts) == (release.model, "full", (hosted_prompt(),))
    shown = view(record, tokens=True).turns
    counted = CountedTokens(prompt=PROMPT_TOKENS, generated=10, context=PROMPT_TOKENS)
    assert (shown[0].thought, shown[1].counted) == ("I add it", counted)
    said = [data for kind, data in await project.events(row.id) if kind == "turn"]
    assert (said[1]["tokens"], said[1]["context_tokens"]) == (GENERATED_TOKENS, PROMPT_TOKENS)
    async with project.sessions() as session:
        timeline = fold(await results.after(session, row.id))
    assert [turn.code for turn in timeline.turns] == [
        "print(apis.ledger.add_entry(text='hello')['id'])\n",
        "apis.supervisor.complete_task(answer=7)\n",
    ]
    assert "I add it" in timeline.turns[0].words
    assert "prompt" not in [kind for kind, _ in await project.events(row.id)]


PRICES: dict[str, Any] = {"price_in": 3.0, "price_out": 15.0}
COST = 2 * (3 * PROMPT_TOKENS + 15 * GENERATED_TOKENS) / 1e6  # of two turns


async def test_a_task_costs_what_its_entry_says(project: LedgerProject) -> None:
    await serve_hosted(project, **PRICES)
    async with hosted_runner(project, ScriptedChatModel(WRITE, DONE, DONE)):
        row = await project.ended(await project.submit())
        await project.ended(await project.submit())
    assert row.cost == pytest.approx(COST)
    assert row.prompt_tokens == 2 * PROMPT_TOKENS
    async with project.sessions() as session:
        today = await usage.of_today(session, project.id)
    assert today.cost == pytest.approx(1.5 * COST)
    assert today.prompt_tokens == 3 * PROMPT_TOKENS
    [done] = [data for kind, data in await project.events(row.id) if kind == "done"]
    assert done["cost"] == pytest.approx(COST)


async def test_a_failed_task_has_its_cost_and_one_without_a_price_none(project: LedgerProject) -> None:
    release = await serve_hosted(project, **PRICES)
    async with hosted_runner(project, ScriptedChatModel(WRITE, EngineRefusalError("no"))):
        row = await project.ended(await project.submit())
    assert row.state is TaskState.FAILED
    assert row.cost == pytest.approx(COST / 2)
    async with project.sessions.begin() as session:
        await session.execute(update(tables.HostedModel).values(price_out=None))
    async with hosted_runner(project, ScriptedChatModel(DONE)):
        row = await project.ended(await project.submit())
    assert (row.release_id, row.cost, row.prompt_tokens) == (release.id, None, PROMPT_TOKENS)
    async with project.runner(ScriptedEngine(project.tokenizer, DONE)):
        async with project.sessions.begin() as session:
            await releases.activate(session, (await releases.numbered(session, project.id, 1)).id)
        local = await project.ended(await project.submit())
    assert (local.cost, local.prompt_tokens > 0) == (None, True)


class Held(ScriptedChatModel):
    """Answers at once, and after the first turn once it is `open`."""

    def __init__(self, *answers: Said) -> None:
        super().__init__(*answers)
        self.asked, self.open = asyncio.Event(), asyncio.Event()

    async def _next(self, messages: Sequence[Message]) -> Said:
        if any(each.role == "assistant" for each in messages):
            self.asked.set()
            await self.open.wait()
        return await super()._next(messages)


async def test_another_runner_goes_on_with_the_turns_that_the_first_recorded(project: LedgerProject) -> None:
    await serve_hosted(project)
    model = Held(WRITE, DONE)
    async with hosted_runner(project, model):
        task_id = await project.submit(use_skills=False)
        await until(model.asked.is_set)
    model.open.set()
    again = ScriptedChatModel(DONE)
    async with hosted_runner(project, again):
        row = await project.ended(task_id)
    assert (row.state, row.stop, row.prompt) == (TaskState.DONE, Stop.COMPLETED, hosted_prompt())
    assert [entry.text for entry in project.ledger.entries] == ["hello"]
    [request] = again.requests
    assert [each.role for each in request] == ["system", "user", "assistant", "user"]
    assert len((await record_of(project, task_id)).turns) == 2


async def test_a_turn_whose_runner_died_is_executed_and_not_sampled_again(project: LedgerProject) -> None:
    await serve_hosted(project)
    task_id = await project.submit(use_skills=False)
    turn = Turn(context_ids=(), sampled_ids=(), logprobs=(), text=WRITE, counted=CountedTokens(generated=4))
    async with project.sessions.begin() as session:
        row = await queue.claim(session, "dead", 60)
        assert row is not None
        await turns.begin(session, row.id, "dead", 0, turn)
        await queue.abandon(session, "dead")
    model = ScriptedChatModel(DONE)
    async with hosted_runner(project, model):
        row = await project.ended(task_id)
    record = await record_of(project, task_id)
    assert (row.stop, len(model.requests), record.generated_tokens) == (Stop.COMPLETED, 1, 4 + GENERATED_TOKENS)
    assert [entry.text for entry in project.ledger.entries] == ["hello"]


async def test_a_task_waits_while_its_endpoint_does_not_answer_and_fails_where_it_refuses(
    project: LedgerProject,
) -> None:
    await serve_hosted(project)
    options = msgspec.structs.replace(OPTIONS, postpone_seconds=0.1)
    async with hosted_runner(project, ScriptedChatModel(EngineError("busy"), DONE), options):
        row = await project.ended(await project.submit())
    assert (row.state, row.attempt) == (TaskState.DONE, 1)
    refusal = EngineRefusalError("http://tables.test/v1 refuses the key (401)")
    async with hosted_runner(project, ScriptedChatModel(WRITE, refusal)):
        row = await project.ended(await project.submit())
    assert row.state is TaskState.FAILED
    assert "refuses the key" in (row.failure or "")
    record = await record_of(project, row.id)
    assert (record.profile, record.generated_tokens) == ("full", GENERATED_TOKENS)


BROKEN = said("I will", finish="error", usage={"prompt_tokens": 40, "completion_tokens": 2})
WRITTEN = said(WRITE, usage={"prompt_tokens": PROMPT_TOKENS, "completion_tokens": GENERATED_TOKENS})


@asynccontextmanager
async def real_runner(
    project: LedgerProject, endpoint: OddEndpoint, patience: float = 60
) -> AsyncIterator[Runner]:
    """The release's model is behind an endpoint, and is asked by the client of hosted models."""
    options = msgspec.structs.replace(OPTIONS, postpone_seconds=0.1)
    async with endpoint.listening() as url:
        await serve_hosted(project, url=url, **PRICES)
        executor = replace(
            hosted_executor(project, ScriptedChatModel()),
            open_hosted=partial(HostedModels().open, project.sessions, patience=patience),
        )
        async with Runner(project.sessions, executor.execute, options) as runner:
            yield runner


async def test_a_task_whose_models_answers_break_off_fails_with_the_reason_and_what_they_cost_counts(
    project: LedgerProject,
) -> None:
    endpoint = OddEndpoint(lambda _: BROKEN)
    endpoint.replies = [WRITTEN]
    async with real_runner(project, endpoint):
        row = await project.ended(await project.submit(use_skills=False))
    assert (row.state, row.stop, row.turns, len(endpoint.requests)) == (TaskState.FAILED, None, 1, 4)
    assert "ended its answer early (finish_reason: error)" in (row.failure or "")
    assert "3 answers broke off, for 120 tokens of prompts and 6 generated" in (row.failure or "")
    assert row.cost == pytest.approx(COST / 2)
    async with project.sessions() as session:
        today = await usage.of_today(session, project.id)
    assert (today.failed, today.turns) == (1, 1)
    assert (today.prompt_tokens, today.generated_tokens) == (PROMPT_TOKENS + 120, GENERATED_TOKENS + 6)
    assert today.cost == pytest.approx(COST / 2 + (3 * 120 + 15 * 6) / 1e6)
    assert today.other_cost == 0


async def test_answers_that_break_off_before_a_postponement_count_as_those_after_it(
    project: LedgerProject,
) -> None:
    """A model that breaks off and is away in between is not asked for ever."""
    endpoint = OddEndpoint(lambda _: BROKEN)
    async with real_runner(project, endpoint, patience=0):
        row = await project.ended(await project.submit(use_skills=False))
    assert (row.state, row.attempt, row.broken_answers, len(endpoint.requests)) == (TaskState.FAILED, 1, 2, 3)
    async with project.sessions() as session:
        today = await usage.of_today(session, project.id)
    assert (today.prompt_tokens, today.generated_tokens) == (120, 6)


async def test_a_task_goes_on_after_an_answer_that_broke_off_and_both_count(project: LedgerProject) -> None:
    endpoint = OddEndpoint(lambda _: said(DONE, usage={"prompt_tokens": 50, "completion_tokens": 5}))
    endpoint.replies = [BROKEN]
    async with real_runner(project, endpoint):
        row = await project.ended(await project.submit(use_skills=False))
    assert (row.state, row.stop, row.prompt_tokens) == (TaskState.DONE, Stop.COMPLETED, 50)
    async with project.sessions() as session:
        today = await usage.of_today(session, project.id)
    assert (today.prompt_tokens, today.generated_tokens) == (50 + 40, 5 + 2)


async def test_an_answer_that_only_led_to_one_that_broke_off_counts(project: LedgerProject) -> None:
    """A text without code is asked for again without stop strings."""
    endpoint = OddEndpoint(lambda _: refused("no such role"))
    endpoint.replies = [said("I will.", usage={"prompt_tokens": 50, "completion_tokens": 5})]
    async with real_runner(project, endpoint):
        row = await project.ended(await project.submit(use_skills=False))
    assert (row.state, row.turns) == (TaskState.FAILED, 0)
    async with project.sessions() as session:
        today = await usage.of_today(session, project.id)
    assert (today.prompt_tokens, today.generated_tokens) == (50, 5)


async def test_a_shadow_whose_models_answers_break_off_fails_and_what_it_asked_for_is_charged(
    project: LedgerProject,
) -> None:
    async with project.runner(ScriptedEngine(project.tokenizer, READ, DONE)):
        await project.ended(await project.submit())
    endpoint = OddEndpoint(lambda _: BROKEN)
    endpoint.replies = [said(READ, usage={"prompt_tokens": 50, "completion_tokens": 5})]
    async with endpoint.listening() as url:
        entry = await hosted_entry(project.sessions, project.id, url=url, **PRICES)
        async with project.sessions.begin() as session:
            release = await releases.propose(session, project.id, hosted(entry.id))
        async with project.sessions() as session:
            assert await request_shadows(session, shared_reader(), release, 5) == 1
            await session.commit()
        open_hosted = partial(HostedModels().open, project.sessions)
        executor = replace(hosted_executor(project, ScriptedChatModel()), open_hosted=open_hosted)
        found: list[trials_store.ShadowedTask] = []

        async def done() -> bool:
            async with project.sessions() as session:
                found[:] = await trials_store.of_release(session, release.id)
            return all(pair.shadow for pair in found)

        async with ShadowRunner(project.sessions, executor, lambda: True, pause=0.1):
            await until(done)
    assert found[0].shadow is not None
    assert "3 answers broke off" in (found[0].shadow.failure or "")
    async with project.sessions() as session:
        today = await usage.of_today(session, project.id)
    assert today.cost == pytest.approx((3 * (50 + 120) + 15 * (5 + 6)) / 1e6)


async def test_a_task_that_waits_for_its_model_says_why_once_until_it_answers(project: LedgerProject) -> None:
    """And the model's entry does, while the request is still tried again."""
    busy = Reply({"error": {"message": "no more credit"}}, 503)
    endpoint = OddEndpoint(lambda _: busy)
    async with real_runner(project, endpoint):
        task_id = await project.submit(use_skills=False)

        async def waits_and_says_so() -> bool:
            async with project.sessions() as session:
                told = await results.of_kind(session, task_id, "remark")
            return bool(told) and len(endpoint.requests) > 4

        await until(waits_and_says_so)
        async with project.sessions() as session:
            assert len(await hosted_models.failing(session)) == 1
        endpoint.replies = [WRITTEN, busy, busy, busy, said(DONE)]
        assert (await project.ended(task_id)).state is TaskState.DONE
    async with project.sessions() as session:
        told = [each["text"] for each in await results.of_kind(session, task_id, "remark")]
        assert await hosted_models.failing(session) == ()
    assert len(told) == 2, "one before the first answer, one before the second"
    assert len(set(told)) == 1
    assert told[0].startswith("waiting for the hosted model: http://")
    assert "503: no more credit" in told[0]


async def test_tasks_of_a_hosted_policy_never_explore(project: LedgerProject) -> None:
    await serve_hosted(project)
    async with project.sessions.begin() as session:
        row = await session.get_one(tables.Project, project.id)
        row.settings = {"explore_percent": 100}
    executor = hosted_executor(project, ScriptedChatModel(DONE))
    executor = replace(executor, agent=replace(executor.agent, temperature=0.0))
    async with Runner(project.sessions, executor.execute, OPTIONS):
        ended = await project.ended(await project.submit())
    assert (ended.state, ended.exploration) == (TaskState.DONE, None)


@pytest.mark.parametrize("which", ["a local task by a hosted model", "a hosted task by a local model"])
async def test_a_shadow_has_the_policy_of_its_release(project: LedgerProject, which: str) -> None:
    if which.startswith("a local"):
        async with project.runner(ScriptedEngine(project.tokenizer, READ, DONE)):
            await project.ended(await project.submit())
        entry = await hosted_entry(project.sessions, project.id, **PRICES)
        model, other = hosted(entry.id), ScriptedChatModel(READ, DONE)
        executor = hosted_executor(project, other)
    else:
        await serve_hosted(project)
        async with hosted_runner(project, ScriptedChatModel(READ, DONE)):
            await project.ended(await project.submit())
        model, executor = "base", project.executor(ScriptedEngine(project.tokenizer, READ, DONE))
    async with project.sessions.begin() as session:
        release = await releases.propose(session, project.id, model)
    async with project.sessions() as session:
        assert await request_shadows(session, shared_reader(), release, 5) == 1
        await session.commit()
    pairs: list[trials_store.ShadowedTask] = []

    async def done() -> bool:
        async with project.sessions() as session:
            pairs[:] = await trials_store.of_release(session, release.id)
        return all(pair.shadow for pair in pairs)

    async with ShadowRunner(project.sessions, executor, lambda: True, pause=0.1):
        await until(done)
    [pair] = pairs
    assert pair.shadow is not None
    assert (pair.shadow.stop, pair.shadow.failure, pair.shadow.turns) == (Stop.COMPLETED, None, 2)
    tokens = (pair.generated_tokens, pair.shadow.generated_tokens)
    assert sorted(tokens)[0] == 2 * GENERATED_TOKENS
    async with project.sessions() as session:
        spent = (await usage.of_today(session, project.id)).cost
    assert spent == (pytest.approx(COST) if which.startswith("a local") else 0)


async def test_while_no_model_server_answers_only_tasks_of_hosted_policies_are_claimed(
    project: LedgerProject,
) -> None:
    await serve_hosted(project)
    async with project.sessions.begin() as session:
        other = await projects.create(session, "local")
        waiting = (await tasks.submit(session, other.id, tasks.NewTask(instruction="wait"))).id
    executor = hosted_executor(project, ScriptedChatModel(DONE))
    local = ScriptedEngine(project.tokenizer, DONE)
    executor = replace(executor, agent=replace(executor.agent, engine=local))
    answers = False
    runner = Runner(project.sessions, executor.execute, OPTIONS)
    runner.answers = lambda: answers
    async with runner:
        ended = await project.ended(await project.submit())
        assert (ended.state, runner.has_room) == (TaskState.DONE, False)
        assert (await project.row(waiting)).state is TaskState.ACCEPTED
        answers = True
        assert (await project.ended(waiting)).state is TaskState.DONE
