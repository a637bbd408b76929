"""The trial of an API: the server asks the model about it, and knows the answers."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest
from sqlalchemy import delete, event, func, select, update

from app.apis import store as apis
from app.apis import trials as trials
from app.base.errors import EngineError
from app.base.values import Stop, hosted, what_to_do
from app.db import tables
from app.db.database import Sessions
from app.db.queries import from_now
from app.db.tables import TrialState
from app.engine.model_scope import ModelScope
from app.machine.health import ScopeCheck
from app.releases import store as releases
from app.sandbox.forked_sandbox import ForkedSandbox
from app.tasks.api_trials import ApiTrials
from app.tasks.retention import RetentionLoop
from tests.support.api_app import ApiApp, open_api_app
from tests.support.console_pages import read_page
from tests.support.desk_service import Desk, able, saying, served, unable
from tests.support.every_row import every_row
from tests.support.http_server import served as served_api
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject, until
from tests.support.lock_waits import waits_for_a_lock
from tests.support.sage_command import SageCommand
from tests.support.scripted_engine import Script, ScriptedEngine, block, byte_tokenizer
from tests.support.shared_reader import shared_reader
from tests.support.terminal_dialog import dialog

MADE_FOR_MAIL = ModelScope("seed", {"mail": ()})


@dataclass
class Trying:
    """A desk, a server that has it as an API, and a runner for its trials."""

    api: ApiApp
    desk: Desk
    project: LedgerProject

    async def add(self, **more: Any) -> dict[str, Any]:
        body = {"name": "desk", "url": f"{self.desk.url}/openapi.json", **more}
        answer = await self.api.client.post("/v1/apis", json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def shown(self) -> dict[str, Any]:
        return dict((await self.api.client.get("/v1/apis/desk")).json()["trial"])

    def trials(self, script: Script, **options: Any) -> ApiTrials:
        engine = ScriptedEngine(self.project.tokenizer, script=script)
        paces = {"pause": 0.05, "look": 0.05, "again": 0.0, **options}
        return ApiTrials(self.project.sessions, self.project.executor(engine), owner="me", **paces)

    async def ended(self, script: Script, **options: Any) -> dict[str, Any]:
        """The trial, once it has ended."""
        async with self.trials(script, **options):
            await until(self.has_ended)
        return await self.shown()

    async def is_done(self, right: int) -> bool:
        shown = await self.shown()
        return (shown["state"], shown["right"]) == ("done", right)

    async def has_ended(self) -> bool:
        return (await self.shown())["finished_at"] is not None


@pytest.fixture
async def trying(
    committed: Sessions, database_url: str, bare_sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[Trying]:
    async with AsyncExitStack() as stack:
        desk = await stack.enter_async_context(served(Desk()))
        client = await stack.enter_async_context(httpx.AsyncClient())
        reader = shared_reader()
        checks = {"model": ScopeCheck(committed, reader, MADE_FOR_MAIL).warning}
        api = await stack.enter_async_context(
            open_api_app(committed, database_url, checks, model_scope=MADE_FOR_MAIL)
        )
        project = LedgerProject(committed, bare_sandbox, byte_tokenizer(tmp_path), Ledger(), client, api.demo.id)
        yield Trying(api, desk, project)


async def test_a_model_that_can_use_the_api_answers_all_and_one_that_cannot_none(trying: Trying) -> None:
    added = await trying.add()
    assert (added["trial"]["state"], added["trial"]["questions"]) == ("waiting", [])
    shown = await trying.ended(able)
    assert (shown["state"], shown["right"], shown["asked"], shown["remark"]) == ("done", 5, 5, None)
    first = shown["questions"][0]
    assert first["question"] == "How many agents are there in desk? Answer with the number alone."
    assert (first["right"], first["given"], first["correct"], first["stop"]) == (2, 2, True, "completed")
    assert (first["calls"], first["turns"], first["tokens"] > 100) == (1, [], True)
    again = await trying.api.client.post("/v1/apis/desk/trial")
    assert (again.status_code, again.json()["state"], again.json()["asked"]) == (202, "waiting", 0)
    shown = await trying.ended(unable)
    assert (shown["state"], shown["right"], shown["asked"]) == ("done", 0, 5)
    assert "answered 0 of 5 questions right, so it cannot use this API yet: add a hosted model" in shown["remark"]
    [listed] = (await trying.api.client.get("/v1/apis")).json()
    assert (listed["trial"]["right"], listed["trial"]["asked"], listed["trial"]["state"]) == (0, 5, "done")


async def test_the_agents_turns_can_be_read_and_hold_no_secret(trying: Trying) -> None:
    trying.desk.token = "a-token-of-the-desk"
    await trying.add(bearer_token=trying.desk.token)
    trying.desk.account["api_key"] = "key-of-the-account"
    shown = await trying.ended(
        saying("print(apis.desk.show_account())\napis.supervisor.complete_task(answer='?')")
    )
    assert (shown["right"], shown["asked"]) == (0, 5)
    full = (await trying.api.client.get("/v1/apis/desk/trial")).json()
    [turn] = full["questions"][0]["turns"]
    assert "apis.desk.show_account()" in turn["text"]
    assert "'plan': 'pro'" in turn["observation"]
    assert trying.desk.token not in str(full)
    assert "key-of-the-account" not in str(full)


async def test_a_right_answer_without_a_call_is_a_guess(trying: Trying) -> None:
    trying.desk.tickets, trying.desk.account = [], {}
    await trying.add()
    shown = await trying.ended(saying("apis.supervisor.complete_task(answer='2')"))
    [counted] = [each for each in shown["questions"] if each["question"].startswith("How many agents")]
    assert (counted["given"], counted["correct"]) == ("2", False)


async def test_an_answer_that_became_right_meanwhile_is_right(trying: Trying) -> None:
    trying.desk.tickets, trying.desk.account = [], {}
    await trying.add()

    def another_came(_prompt: str, _turns: int) -> str:
        if len(trying.desk.agents) == 2:
            trying.desk.agents.append({"name": "Cy", "team": "East"})
        return block("apis.supervisor.complete_task(answer=len(apis.desk.list_agents()))")

    [counted, *_] = (await trying.ended(another_came))["questions"]
    assert (counted["right"], counted["given"], counted["correct"]) == (3, 3, True)


async def test_the_result_takes_the_place_of_what_the_model_was_made_for(trying: Trying) -> None:
    async def warned() -> str:
        ready = (await trying.api.client.get("/readyz")).json()
        assert (ready["ready"], ready["components"]["model"]) == (True, "ready")
        return str(ready["warnings"].get("model", ""))

    added = await trying.add()
    assert any("was made for the APIs mail alone" in each for each in added["remarks"])
    assert (await warned()).startswith("1 of 1 projects with APIs have some that the model seed was not made for")
    await trying.ended(able)
    assert await warned() == ""
    assert not any("made for" in each for each in (await trying.add())["remarks"])
    await trying.api.client.post("/v1/apis/desk/trial")
    await trying.ended(unable)
    assert (await warned()).startswith(
        "1 of 1 API tried cannot be used yet, as the model answered 0 of 5 questions right: "
    )
    assert any("desk: the model answered 0 of 5 questions" in each for each in (await trying.add())["remarks"])


async def test_tasks_say_what_the_trial_found(trying: Trying) -> None:
    trying.project.tokenizer = msgspec.structs.replace(
        trying.project.tokenizer, card={"made_for_apis": ["mail"], "prompt_profile": "full"}
    )

    async def remarks() -> list[str]:
        task_id = await trying.project.submit("tidy up")
        engine = ScriptedEngine(trying.project.tokenizer, script=unable)
        async with trying.project.runner(engine):
            await trying.project.ended(task_id)
        return [data["text"] for kind, data in await trying.project.events(task_id) if kind == "remark"]

    await trying.add()
    [remark] = await remarks()
    assert "was made for the APIs mail alone and will do nothing useful with desk" in remark
    await trying.ended(unable)
    [remark] = await remarks()
    assert remark.startswith("desk: the model answered 0 of 5 questions right")
    trying.project.tokenizer = msgspec.structs.replace(trying.project.tokenizer, card={})
    [remark] = await remarks()
    assert remark.startswith("desk: the model answered 0 of 5 questions right")
    active = await _serve(trying, "base")
    async with trying.project.sessions.begin() as session:
        asked_another = await releases.propose(session, trying.api.demo.id, "a" * 32)
        await session.execute(update(tables.ApiTrial).values(release_id=asked_another.id))
    assert await remarks() == []
    async with trying.project.sessions.begin() as session:
        await session.execute(update(tables.ApiTrial).values(release_id=active.id))
    await trying.api.client.post("/v1/apis/desk/trial")
    await trying.ended(able)
    assert await remarks() == []


async def test_a_task_that_a_weak_model_gave_up_says_so_first(trying: Trying) -> None:
    async def advice(script: Script) -> tuple[str, str, str, str]:
        """In REST, in its last event, in the console's list of failing kinds, and on the terminal."""
        task_id = await trying.project.submit("tidy up")
        async with trying.project.runner(ScriptedEngine(trying.project.tokenizer, script=script)):
            await trying.project.ended(task_id)
        [done] = [data for kind, data in await trying.project.events(task_id) if kind == "done"]
        view = (await trying.api.client.get(f"/v1/tasks/{task_id}")).json()
        async with served_api(trying.api) as client:
            shell = SageCommand(trying.api, str(client.base_url))
            told = flat((await shell.run("tasks", str(task_id))).out)
        home = await read_page(trying.api, "/console", "admin")
        return view["what_to_do"], done["what_to_do"], html.unescape(home), told

    idle = saying("apis.supervisor.complete_task()")
    usual, weak = str(what_to_do(Stop.NOTHING_DONE, None)), str(what_to_do(Stop.NOTHING_DONE, None, ["desk"]))
    await trying.add()
    for expected, script in ((weak, unable), (usual, able)):
        await trying.api.client.post("/v1/apis/desk/trial")
        await trying.ended(script)
        rest, event, home, told = await advice(idle)
        assert (rest, event) == (expected, expected)
        assert expected in home
        assert expected in told


async def test_whoever_wants_only_the_counts_of_trials_does_not_read_their_turns(trying: Trying) -> None:
    await trying.add()
    await trying.ended(able)
    async with trying.project.sessions() as session:
        row = await session.scalar(select(tables.ApiTrial))
        assert row is not None
        assert (row.correct, row.asked, len(row.questions)) == (5, 5, 5)
    statements = list[str]()
    engine = trying.project.sessions.kw["bind"].sync_engine
    event.listen(engine, "before_cursor_execute", lambda *about: statements.append(about[2]))
    for path in ("/readyz", "/v1/apis"):
        assert (await trying.api.client.get(path)).status_code == 200
    read = [each for each in statements if "api_trials" in each]
    assert len(read) == 2
    assert not [each for each in read if "questions" in each]


async def test_a_trial_is_no_task_and_changes_nothing(trying: Trying) -> None:
    await trying.add()
    shown = await trying.ended(saying("apis.desk.list_tickets()\napis.desk.add_ticket()"))
    assert (shown["right"], shown["asked"], trying.desk.written) == (0, 5, 0)
    assert (await trying.api.client.get("/v1/tasks")).json()["tasks"] == []
    assert (await trying.api.client.get("/v1/skills")).json()["skills"] == []
    async with trying.project.sessions() as session:
        for table in (tables.Task, tables.Trajectory, tables.ProjectUsage, tables.TaskEvent):
            assert await session.scalar(select(func.count()).select_from(table)) == 0


async def test_what_was_answered_is_kept_as_long_as_trajectories_are(trying: Trying) -> None:
    await trying.add()
    await trying.ended(able)
    settings = {"settings": {"keep_trajectories": 1}}
    assert (await trying.api.client.patch("/v1/projects/demo", json=settings)).status_code == 200
    retention = RetentionLoop(trying.project.sessions)
    await retention.delete_due()
    assert len((await trying.api.client.get("/v1/apis/desk/trial")).json()["questions"][0]["turns"]) == 1
    async with trying.project.sessions.begin() as session:
        await session.execute(update(tables.ApiTrial).values(finished_at=from_now(-90_000)))
    await retention.delete_due()
    trial = (await trying.api.client.get("/v1/apis/desk/trial")).json()
    assert (trial["right"], trial["asked"]) == (5, 5)
    assert {(each["question"], each["given"], len(each["turns"])) for each in trial["questions"]} == {
        ("no longer kept", None, 0)
    }


async def test_few_calls_are_made_for_questions(trying: Trying) -> None:
    await trying.add()
    await trying.ended(saying("apis.supervisor.complete_task(answer='?')"))
    made_for_questions, checked = 5, 5
    assert len(trying.desk.calls) == made_for_questions + checked


async def test_an_api_is_not_tried_for_a_reason(trying: Trying) -> None:
    desk, long = trying.desk, "She called twice about the lamp in the hall, and was not amused at all."
    table: list[tuple[str, dict[str, Any]]] = [
        ("nothing to ask: its lists are empty", {"tickets": [], "agents": [], "account": {}}),
        (
            "nothing to ask: its answers hold nothing short that could be asked for",
            {"tickets": [], "agents": [], "account": {"note": long}},
        ),
        ("it has no credentials yet", {"token": "a-token-of-the-desk", "fails_after": 1_000_000}),
    ]
    with every_row() as row:
        for number, (reason, state) in enumerate(table):
            with row(reason):
                for name, value in state.items():
                    setattr(desk, name, value)
                desk.version = f"version {number}"
                await trying.add()
                shown = await trying.ended(unable)
                assert (shown["state"], shown["asked"], shown["remark"]) == ("not_tried", 0, None)
                assert shown["reason"].startswith(reason)


async def _due_now(trying: Trying) -> None:
    async with trying.project.sessions.begin() as session:
        await session.execute(update(tables.ApiTrial).values(next_at=from_now(0)))


async def _attempts(trying: Trying) -> list[Any]:
    """How often its API failed, and in how many seconds it is tried again."""
    pause = func.extract("epoch", tables.ApiTrial.next_at - func.clock_timestamp())
    async with trying.project.sessions() as session:
        row = (await session.execute(select(tables.ApiTrial.attempt, tables.ApiTrial.owner, pause))).one()
    return [row[0] if row[1] is None else 0, float(row[2])]


async def test_an_api_that_is_down_is_tried_later_before_it_is_given_up(trying: Trying) -> None:
    trying.desk.fails_after = 0
    await trying.add()

    async def has_failed(times: int) -> bool:
        return (await _attempts(trying))[0] == times and (await trying.shown())["reason"] is not None

    for times, longest in ((1, 60), (2, 600)):
        async with trying.trials(able):
            await until(partial(has_failed, times))
        shown = await trying.shown()
        assert shown["state"] == "waiting"
        assert shown["reason"].startswith("its operation list_agents failed: ")
        assert longest / 2 < (await _attempts(trying))[1] <= longest
        await _due_now(trying)
    shown = await trying.ended(able)
    assert (shown["state"], shown["asked"], shown["remark"]) == ("not_tried", 0, None)
    async with served_api(trying.api) as client:
        shell = SageCommand(trying.api, str(client.base_url))
        for command in (("apis trial", "desk"), ("apis show", "desk")):
            out = flat((await shell.run(*command)).out)
            assert "not tried: its operation list_agents failed" in out
            assert "sage apis trial desk --again" in out
    assert "sage apis trial desk --again" in await read_page(trying.api, "/console/apis/desk", "admin")
    trying.desk.fails_after = 1_000_000
    await trying.api.client.post("/v1/apis/desk/trial")
    assert (await trying.ended(able))["right"] == 5


async def test_an_api_that_refuses_is_not_tried_later(trying: Trying) -> None:
    trying.desk.fails_after, trying.desk.failure = 0, 400
    await trying.add()
    shown = await trying.ended(able)
    assert (shown["state"], "400" in shown["reason"]) == ("not_tried", True)


async def test_an_api_that_fails_meanwhile_is_asked_about_the_rest_later(trying: Trying) -> None:
    asked = list[str]()

    def falls_over(prompt: str, turns: int) -> str:
        """While it is asked for a third time."""
        asked.append(prompt)
        trying.desk.fails_after = 1_000_000 if len(asked) < 3 else 0
        return able(prompt, turns)

    async def has_failed(times: int) -> bool:
        async with trying.project.sessions() as session:
            row = await session.scalar(select(tables.ApiTrial))
        assert row is not None
        return row.attempt == times and row.owner is None and row.reason is not None

    await trying.add()
    for times in (1, 2):
        async with trying.trials(falls_over):
            await until(partial(has_failed, times))
        shown = await trying.shown()
        assert (shown["state"], shown["right"], shown["asked"]) == ("waiting", 2, 5)
        assert shown["reason"].startswith("2 of 5 asked; then its operation "), shown["questions"]
        assert "500" in shown["reason"]
        await _due_now(trying)
    ended = await trying.ended(falls_over)
    assert (ended["state"], ended["right"], ended["asked"]) == ("not_tried", 2, 5)
    assert ended["reason"] == shown["reason"]
    assert [each["correct"] for each in ended["questions"]] == [True, True, None, None, None]
    trying.desk.fails_after = 1_000_000
    await trying.api.client.post("/v1/apis/desk/trial")
    assert (await trying.ended(able))["right"] == 5


async def test_a_question_whose_subject_is_gone_meanwhile_is_left_out(trying: Trying) -> None:
    def removed(prompt: str, turns: int) -> str:
        if "subject of the ticket" in prompt:
            trying.desk.tickets = []
        return able(prompt, turns)

    await trying.add()
    shown = await trying.ended(removed)
    assert (shown["state"], shown["right"], shown["asked"]) == ("done", 3, 3)


async def test_the_answers_of_a_trial_go_with_the_document_that_they_are_about(trying: Trying) -> None:
    await trying.add()
    await trying.ended(able)
    await trying.api.client.post("/v1/apis/desk/trial")
    async with trying.project.sessions.begin() as session:
        old = {"question": "about another document", "right": 1, "correct": True}
        await session.execute(update(tables.ApiTrial).values(questions=[old], inputs="of another document"))
    trying.desk.fails_after, trying.desk.failure = 0, 400
    shown = await trying.ended(able)
    assert (shown["state"], shown["asked"], shown["questions"]) == ("not_tried", 0, [])


async def test_an_api_is_tried_once_its_credentials_are_there(trying: Trying) -> None:
    trying.desk.token = "a-token-of-the-desk"
    await trying.add()
    async with trying.trials(able):
        await until(trying.has_ended)
        assert (await trying.shown())["reason"] == "it has no credentials yet"
        assert trying.desk.calls == []
        await trying.api.client.patch("/v1/apis/desk", json={"bearer_token": trying.desk.token})
        await until(lambda: trying.is_done(5))


async def test_questions_about_pages_know_all_of_them(trying: Trying) -> None:
    trying.desk.page_size, trying.desk.agents, trying.desk.account = 2, [], {}
    await trying.add()
    shown = await trying.ended(unable)
    by_question = {each["question"]: each["right"] for each in shown["questions"]}
    assert by_question["How many tickets are there in desk? Answer with the number alone."] == 3
    assert not any("Which" in each or "have the" in each for each in by_question)


async def test_it_is_repeated_for_another_document_or_other_weights_and_not_for_another_process(
    trying: Trying,
) -> None:
    await trying.add()
    await trying.ended(unable)
    calls = len(trying.desk.calls)
    async with trying.trials(able) as trials:
        for _ in range(3):
            await trials.look()
        assert await trying.is_done(0)
        assert len(trying.desk.calls) == calls
        async with trying.project.sessions.begin() as session:
            release = await releases.propose(session, trying.api.demo.id, "a" * 64)
            active = await releases.find_active(session, trying.api.demo.id)
            release = await releases.activate(session, release.id, allow_rejected=True)
            assert active is not None
            release.tools, release.prompt = active.tools, active.prompt
        await until(lambda: trying.is_done(5))
        shown = await trying.shown()
        assert (shown["release"], shown["model"], shown["outdated_by"]) == (release.number, "a" * 64, None)
    trying.desk.version = "2"
    change = await trying.api.client.post("/v1/apis/desk/refresh")
    assert change.json()["change"]["applied"]
    async with trying.trials(unable):
        await until(lambda: trying.is_done(0))


async def _serve(trying: Trying, model: str) -> tables.Release:
    """Another release, with the same tools."""
    async with trying.project.sessions.begin() as session:
        active = await releases.find_active(session, trying.api.demo.id)
        assert active is not None
        release = await releases.propose(session, trying.api.demo.id, model)
        release = await releases.activate(session, release.id, allow_rejected=True)
        release.tools, release.prompt = active.tools, active.prompt
    return release


async def test_a_result_of_a_release_that_serves_no_more_says_so_and_blames_nobody(trying: Trying) -> None:
    async def warned() -> str:
        return str((await trying.api.client.get("/readyz")).json()["warnings"].get("model", ""))

    await trying.add()
    shown = await trying.ended(unable)
    assert (shown["model"], shown["outdated_by"]) == ("base", None)
    assert "cannot be used yet" in await warned()
    was, now = shown["release"], (await _serve(trying, "a" * 32)).number
    shown = await trying.shown()
    assert (shown["release"], shown["outdated_by"], shown["remark"]) == (was, now, None)
    assert (await warned()) == (
        "1 of 1 API tried could not be used by a release that serves no more: they are tried again soon"
    )
    page = " ".join((await read_page(trying.api, "/console/apis/desk", "admin")).split())
    assert f"questions answered right by release {was} (base)" in page
    assert f"<strong>Outdated:</strong> release {now} serves now" in page
    async with served_api(trying.api) as client:
        shell = SageCommand(trying.api, str(client.base_url))
        said = f"0 of 5 right by release {was}, outdated: release {now} serves now, and is tried soon"
        assert said in flat((await shell.run("apis trial", "desk")).out)
    await _serve(trying, "base")
    assert (await trying.shown())["outdated_by"] is None


async def test_a_release_of_other_weights_is_tried_within_minutes(trying: Trying) -> None:
    await trying.add()
    await trying.ended(unable)
    await _serve(trying, "a" * 32)
    async with trying.project.sessions.begin() as session:
        await session.execute(update(tables.ApiTrial).values(finished_at=from_now(-100)))
    engine = ScriptedEngine(trying.project.tokenizer, script=able)
    executor = trying.project.executor(engine)
    async with ApiTrials(trying.project.sessions, executor, owner="me", pause=0.05):
        await until(lambda: trying.is_done(5))


async def test_a_hosted_model_that_fails_is_not_advised_to_be_added(trying: Trying) -> None:
    await trying.add()
    await trying.ended(unable)
    async with trying.project.sessions.begin() as session:
        row = tables.HostedModel(
            project_id=trying.api.demo.id, name="wise", url="http://x.test", model="w", trusted=False
        )
        session.add(row)
        await session.flush()
    release = await _serve(trying, hosted(row.id))
    async with trying.project.sessions.begin() as session:
        await session.execute(update(tables.ApiTrial).values(release_id=release.id))
    shown = await trying.shown()
    assert (shown["model"], shown["remark"].partition(":")[0]) == (
        "wise",
        "the hosted model wise answered 0 of 5 questions right, so it cannot use this API yet",
    )
    warned = (await trying.api.client.get("/readyz")).json()["warnings"]["model"]
    for text in (shown["remark"], warned):
        assert "try a larger hosted model" in text
        assert "add a hosted model" not in text


async def test_it_waits_while_a_task_does_and_goes_on_where_it_was(trying: Trying) -> None:
    await trying.add()
    task_id = await trying.api.submit()
    async with trying.trials(able) as trials:
        for _ in range(3):
            await trials.look()
        assert (await trying.shown())["state"] == "waiting"
        assert trying.desk.calls == []
        await trying.api.client.post(f"/v1/tasks/{task_id}/cancel")
        await until(lambda: trying.is_done(5))


async def test_an_api_may_be_added_without_a_trial(trying: Trying) -> None:
    added = await trying.add(trial=False)
    assert added["trial"]["state"] == "off"
    async with trying.trials(able) as trials:
        await trials.look()
        trying.desk.version = "2"
        assert (await trying.add())["trial"]["state"] == "off"
        await trials.look()
        assert trying.desk.calls == []
        assert (await trying.api.client.post("/v1/apis/desk/trial")).status_code == 202
        await until(lambda: trying.is_done(5))


async def _other_document(trying: Trying) -> None:
    """The trials that have ended are due again."""
    values = {"state": TrialState.DONE, "inputs": "another", "finished_at": from_now(-60)}
    async with trying.project.sessions.begin() as session:
        await session.execute(update(tables.ApiTrial).values(values))


async def test_a_trial_that_is_switched_off_while_it_becomes_due_stays_off(trying: Trying) -> None:
    await trying.add()
    sessions, project = trying.project.sessions, trying.api.demo.id

    async def look() -> None:
        async with sessions.begin() as session:
            await trials.look(session, "seed", 0.0)

    async def renew() -> None:
        async with sessions.begin() as session:
            await trials.renew(session, project, api, wanted=None)

    async with sessions() as session:
        api = (await apis.get(session, project, "desk")).id
    with every_row() as row:
        for other in (look, renew):
            with row(other.__name__):
                await _other_document(trying)
                async with sessions.begin() as session:
                    await trials.renew(session, project, api, wanted=False)
                    late = asyncio.create_task(other())
                    await until(partial(waits_for_a_lock, sessions))
                await late
                assert (await trying.shown())["state"] == "off"


async def test_whoever_looks_for_trials_locks_them_in_one_order(trying: Trying) -> None:
    sessions, ids = trying.project.sessions, [UUID(int=number) for number in (9, 5, 1)]
    for name in "abc":
        await trying.add(name=name)
    async with sessions.begin() as session:
        await session.execute(delete(tables.ApiTrial))
        for name, api in zip("abc", ids, strict=True):
            await session.execute(update(tables.Api).where(tables.Api.name == name).values(id=api))
        await trials.look(session, "seed", 0.0)
    await _other_document(trying)

    async def look() -> None:
        async with sessions.begin() as session:
            await trials.look(session, "seed", 0.0)

    locked = select(tables.ApiTrial).with_for_update(nowait=True)
    async with sessions.begin() as session:
        await session.scalars(locked.where(tables.ApiTrial.api_id == ids[-1]))
        late = asyncio.create_task(look())
        await until(partial(waits_for_a_lock, sessions))
        assert len((await session.scalars(locked)).all()) == 3, "it holds none of the others while it waits"
    await late
    async with sessions() as session:
        states = (await session.scalars(select(tables.ApiTrial.state))).all()
    assert states == [TrialState.WAITING] * 3


async def test_a_trial_at_which_processes_die_is_given_up(trying: Trying) -> None:
    await trying.add()
    async with trying.project.sessions.begin() as session:
        await session.execute(update(tables.ApiTrial).values(attempt=3))
    async with trying.trials(able) as trials:
        await until(trying.has_ended)
        for _ in range(3):
            await trials.look()
        shown = await trying.shown()
    assert (shown["state"], shown["reason"]) == ("not_tried", "3 processes died during it")


async def test_a_model_server_that_does_not_answer_is_waited_for(trying: Trying) -> None:
    await trying.add()

    async def waits() -> bool:
        return bool((await trying.shown())["reason"] == "the model server is down")

    async with trying.trials(lambda _prompt, _turns: EngineError("the model server is down")):
        await until(waits)
    shown = await trying.shown()
    assert (shown["state"], shown["right"], shown["asked"]) == ("waiting", 0, 5)
    async with trying.project.sessions.begin() as session:
        assert await session.scalar(select(tables.ApiTrial.attempt)) == 0
        await session.execute(update(tables.ApiTrial).values(next_at=from_now(0)))
    assert (await trying.ended(able))["right"] == 5


async def test_whoever_may_not_run_trials_runs_none(trying: Trying) -> None:
    await trying.add()
    async with trying.trials(able, may=lambda: False) as trials:
        await trials.look()
        assert (await trying.shown())["state"] == "waiting"
    headers = await trying.api.key("tasks")
    assert (await trying.api.client.post("/v1/apis/desk/trial", headers=headers)).status_code == 403
    assert (await trying.api.client.get("/v1/apis/desk/trial", headers=headers)).status_code == 200
    assert (await trying.api.client.post("/v1/apis/none/trial")).status_code == 404


async def test_adding_an_api_on_a_terminal_waits_for_its_trial(trying: Trying) -> None:
    async with served_api(trying.api) as client:
        shell = SageCommand(trying.api, str(client.base_url))
        async with trying.trials(able):
            add = ["apis", "add", "desk", f"{trying.desk.url}/openapi.json"]
            code, shown = await dialog(shell, add, {})
        assert (code, "trial: 5 of 5 right" in shown) == (0, True)
        result = await shell.run("apis trial", "desk")
        assert result.code == 0
        assert "5 of 5 right" in result.out
        assert re.search(r"right +2 +2 +How many agents are there in desk\?", result.out)
        assert "5/5" in (await shell.run("apis list")).out
        async with trying.trials(unable):
            code, shown = await dialog(shell, ["apis", "trial", "desk", "--again"], {})
        assert (
            code,
            re.search(r"0 of 5 right by release \d+: the model answered 0 of 5", flat(shown)) is not None,
        ) == (0, True)


async def test_nobody_has_to_wait_for_a_trial(trying: Trying) -> None:
    async with served_api(trying.api) as client:
        shell = SageCommand(trying.api, str(client.base_url))
        document = f"{trying.desk.url}/openapi.json"
        code, shown = await dialog(shell, ["apis", "add", "desk", document], {"trial: waiting": "\x03"})
        assert (code, "the trial goes on; see it with:  sage apis trial desk" in flat(shown)) == (0, True)
        added = await shell.run("apis add", "other", document)
        assert (added.code, re.search(r"trial +waiting", added.out) is not None) == (0, True)
        code, shown = await dialog(shell, ["apis", "add", "third", document, "--no-trial"], {})
        assert (code, "trial: " in shown) == (0, False)
        assert re.search(r"third +demo +no +off", (await shell.run("apis list")).out)


def flat(shown: str) -> str:
    """Without the breaks of the terminal's lines."""
    return re.sub(r"\s+", " ", shown).replace("with: sage", "with:  sage")
