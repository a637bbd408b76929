"""The routes of OpenAI's API: its official client against the real application, with a real runner."""

from typing import Any
from uuid import UUID, uuid4

import httpx
import openai
import pytest

from app.agent.rollout import RolloutLimits
from app.base.values import Stop
from app.db import tables
from app.db.database import Sessions
from app.db.tables import TaskState
from app.tasks.chat.completion import TaskEndError, outcome_of
from tests.support.api_app import open_api_app
from tests.support.approving import WRITE, WRITES, ApprovingProject
from tests.support.chats import ANSWER, HELLO, all_tasks, asked, connected, task_of
from tests.support.every_row import every_row
from tests.support.ledger_project import until
from tests.support.listening_app import listening_app
from tests.support.scripted_engine import ScriptedEngine, block


async def test_a_chat_is_a_task_that_answers_at_its_end(demo: ApprovingProject) -> None:
    engine = demo.engine(WRITE, ANSWER)
    async with connected(demo.api) as client, demo.project.runner(engine):
        raw = await client.chat.completions.with_raw_response.create(
            model="demo", messages=HELLO, user="iris@example.org", metadata={"scenario": "gifts"}, temperature=0.3
        )
    answer = raw.parse()
    assert (answer.object, answer.model, answer.choices[0].finish_reason) == ("chat.completion", "demo", "stop")
    assert (answer.choices[0].message.role, answer.choices[0].message.content) == ("assistant", '{"id":2}')
    row = await demo.project.row(task_of(answer.id))
    assert raw.headers["x-task-id"] == str(row.id)
    assert (row.instruction, row.conversation) == ("write one into the ledger", "")
    assert (row.scenario, row.principal, row.state) == ("gifts", "iris@example.org", TaskState.DONE)
    shown = (await demo.api.client.get(f"/v1/tasks/{row.id}/trajectory?tokens=true")).json()["turns"]
    read, written = (sum(len(turn[name]) for turn in shown) for name in ("context_ids", "sampled_ids"))
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (read, written)
    assert answer.usage.total_tokens == read + written
    assert demo.written() == ["one", "one"]


async def test_a_stream_shows_what_the_agent_does_and_then_the_answer(demo: ApprovingProject) -> None:
    engine = demo.engine(WRITE, ANSWER)
    async with connected(demo.api) as client, demo.project.runner(engine):
        stream = await client.chat.completions.create(
            model="demo", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        plain = await client.chat.completions.create(model="demo", messages=HELLO)
        assert stream.response.headers["x-task-id"] == str(task_of(chunks[0].id))
    *said, usage = chunks
    assert {(each.object, each.model) for each in chunks} == {("chat.completion.chunk", "demo")}
    assert len({each.id for each in chunks}) == 1
    deltas = [each.choices[0].delta for each in said]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert "".join(delta.content or "" for delta in deltas) == '{"id":2}'
    done = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert WRITE in done
    assert "ledger.add_entry(text='one')\n" in done
    assert "{'id': 1}" in done, "the output"
    assert [each.choices[0].finish_reason for each in said][-1:] == ["stop"]
    assert {each.choices[0].finish_reason for each in said[:-1]} == {None}
    assert plain.usage is not None
    assert (usage.choices, usage.usage) == ([], plain.usage)


async def test_without_the_option_a_stream_has_no_usage_and_ends_with_done(demo: ApprovingProject) -> None:
    headers = await demo.api.key("tasks")
    body = {"model": "demo", "messages": HELLO, "stream": True}
    async with (
        listening_app(demo.api.app, lifespan="off") as url,
        demo.project.runner(demo.engine()),
        httpx.AsyncClient(base_url=url, headers=headers, timeout=300) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]"
    assert '"usage":{' not in "".join(lines)


async def test_the_agent_reads_what_was_said_before_and_skills_are_searched_without_it(
    demo: ApprovingProject,
) -> None:
    engine = demo.engine(WRITE)
    said: Any = [
        {"role": "system", "content": "Answer in Latin"},
        *({"role": "user", "content": f"old {number} " + "x" * 3_000} for number in range(9)),
        {"role": "assistant", "content": [{"type": "text", "text": "It is written"}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "write two"}, {"type": "text", "text": "and three"}],
        },
    ]
    async with connected(demo.api) as client, demo.project.runner(engine):
        answer = await client.chat.completions.create(model="demo", messages=said)
    row = await demo.project.row(task_of(answer.id))
    assert row.instruction == "write two\nand three"
    lines = row.conversation.split("\n")
    assert lines[:2] == ["[6 messages are left out]", "system: Answer in Latin"]
    assert (lines[2][:11], lines[-1]) == ("user: old 6", "assistant: It is written")
    assert row.conversation in engine.prompts[0]
    assert answer.choices[0].message.content == "Done."


async def test_words_without_code_are_an_answer_and_a_limit_is_a_length(demo: ApprovingProject) -> None:
    talks = ScriptedEngine(demo.project.tokenizer, "Good morning!")
    async with connected(demo.api) as client:
        async with demo.project.runner(talks):
            answer = await client.chat.completions.create(model="demo", messages=HELLO)
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Good morning!", "stop")
        goes_on = ScriptedEngine(demo.project.tokenizer, script=lambda *_: block(WRITE))
        async with demo.project.runner(goes_on, limits=RolloutLimits(turns=2)):
            answer = await client.chat.completions.create(model="demo", messages=HELLO)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == "The task ended before it was done (turn_limit)."


def test_thoughts_are_no_answer() -> None:
    row = tables.Task(id=uuid4(), state=TaskState.DONE, stop=Stop.NO_CODE)
    assert outcome_of(row, ["", "<think>\nHm.\n</think>\n\nGood morning!"]).text == "Good morning!"
    for thought in ("<think>\nHm.\n</think>\n", "<think>\nHm."):
        with pytest.raises(TaskEndError):
            outcome_of(row, [thought])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_task_without_an_answer_is_an_error_that_no_client_repeats(
    demo: ApprovingProject, stream: bool
) -> None:
    async with connected(demo.api) as client, demo.project.runner(demo.engine("apis.supervisor.complete_task()")):
        with pytest.raises(openai.APIError) as raised:
            await asked(client, stream)
    body: Any = raised.value.body
    assert (body["code"], body["type"]) == ("nothing_done", "task_error")
    [task] = await all_tasks(demo)
    if not stream:
        assert isinstance(raised.value, openai.UnprocessableEntityError)
        assert raised.value.response.headers["x-task-id"] == task["id"]


@pytest.mark.parametrize(
    ("state", "stop", "code"),
    [
        ("done", "in_doubt", "in_doubt"),
        ("cancelled", "cancelled", "cancelled"),
        ("failed", "crashed", "crashed"),
        ("failed", "nothing_done", "nothing_done"),
        ("failed", None, "failed"),
        ("failed", "turn_limit", "failed"),
        ("done", "no_code", "failed"),
    ],
)
def test_every_other_end_has_a_code(state: str, stop: str | None, code: str) -> None:
    row = tables.Task(id=uuid4(), state=TaskState(state), stop=stop and Stop(stop), failure="the call is lost")
    with pytest.raises(TaskEndError, match="the call is lost") as raised:
        outcome_of(row, [])
    assert (raised.value.code, raised.value.task_id) == (code, row.id)


async def test_a_chat_whose_task_waits_for_a_person_says_so_and_a_stream_goes_on_after_it(
    demo: ApprovingProject,
) -> None:
    await demo.rules(WRITES)
    async with connected(demo.api) as client, demo.project.runner(demo.engine(WRITE)):
        with pytest.raises(openai.UnprocessableEntityError) as raised:
            await client.chat.completions.create(model="demo", messages=HELLO)
        body: Any = raised.value.body
        assert (body["code"], "approves or refuses" in body["message"]) == ("waiting_for_approval", True)
        [task] = await all_tasks(demo)
        assert task["state"] == "waiting"
        approval = await demo.waiting(UUID(task["id"]))
        await demo.decide(approval, "refuse")
        stream = await client.chat.completions.create(model="demo", messages=HELLO, stream=True)
        said = ""
        async for chunk in stream:
            delta = chunk.choices[0].delta
            said += (getattr(delta, "reasoning_content", None) or "") + (delta.content or "")
            if "waits for a person's approval of ledger.add_entry\n" in said and "is approved" not in said:
                await demo.decide(await demo.waiting(task_of(chunk.id)), "approve")
                await until(lambda: len(demo.written()) == 1)
                said += "[is approved]"
    assert said.endswith("Done.")
    assert demo.written() == ["one"]


@pytest.mark.parametrize("stream", [False, True])
async def test_after_the_time_to_wait_the_client_is_told_where_the_answer_will_be(
    committed: Sessions, database_url: str, stream: bool
) -> None:
    async with open_api_app(committed, database_url, chat_wait_seconds=0.2) as api, connected(api) as client:
        with pytest.raises(openai.APIError) as raised:
            await asked(client, stream)
        [task] = (await api.client.get("/v1/tasks")).json()["tasks"]
    body: Any = raised.value.body
    assert (body["code"], f"GET /v1/tasks/{task['id']}" in body["message"]) == ("not_ended", True)
    assert task["state"] == "accepted"


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"n": 2}, "n"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"modalities": ["audio"], "audio": {"voice": "a", "format": "wav"}}, "modalities"),
    ({"logprobs": True}, "logprobs"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content"),
    ({"messages": [*HELLO, {"role": "assistant", "content": "So be it"}]}, "messages"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 20_001}]}, "messages"),
    ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages"),
    ({"user": "x" * 201}, "user"),
    ({"metadata": {"scenario": ""}}, "metadata"),
]


async def test_what_the_agent_cannot_do_is_refused_by_the_name_of_the_field(demo: ApprovingProject) -> None:
    with every_row() as row:
        for changed, param in REFUSED:
            with row(changed, param):
                async with connected(demo.api) as client:
                    with pytest.raises(openai.BadRequestError) as raised:
                        await client.chat.completions.create(**{"model": "demo", "messages": HELLO, **changed})
                body: Any = raised.value.body
                assert (body["param"], body["type"], body["code"]) == (
                    param,
                    "invalid_request_error",
                    "unsupported",
                )
                assert body["message"].startswith(f"{param}: ")
                assert await all_tasks(demo) == []


async def test_errors_before_the_task_have_the_form_that_clients_know(demo: ApprovingProject) -> None:
    async with connected(demo.api, "skills") as client:
        with pytest.raises(openai.PermissionDeniedError, match="lacks the scope 'tasks'"):
            await client.chat.completions.create(model="demo", messages=HELLO)
        with pytest.raises(openai.AuthenticationError) as unknown:
            await client.with_options(api_key="sage_none").models.list()
    assert (unknown.value.code, unknown.value.type) == ("invalid_api_key", "invalid_request_error")
    async with connected(demo.api) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="gpt-5", messages=HELLO)
        assert missing.value.code == "model_not_found"
        malformed: Any = [{"role": "robot", "content": "hi"}]
        with pytest.raises(openai.BadRequestError, match="robot"):
            await client.chat.completions.create(model="demo", messages=malformed)
        limits = {"settings": {"limits": {"queued_tasks": 0, "tasks_per_day": 1}}}
        assert (await demo.api.client.patch("/v1/projects/demo", json=limits)).status_code == 200
        await demo.api.submit()
        with pytest.raises(openai.RateLimitError) as limited:
            await client.with_options(max_retries=0).chat.completions.create(model="demo", messages=HELLO)
    assert (limited.value.code, limited.value.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert int(limited.value.response.headers["retry-after"]) >= 1


async def test_the_models_are_the_projects_of_the_key(demo: ApprovingProject) -> None:
    other = await demo.api.project("other")
    async with connected(demo.api) as client:
        assert [each.id async for each in client.models.list()] == ["demo", "other"]
        assert (await client.models.retrieve("other")).owned_by == "sage-server"
    async with connected(demo.api, project_id=other.id) as client:
        assert [each.id async for each in client.models.list()] == ["other"]
        for call in (client.models.retrieve("demo"), client.chat.completions.create(model="demo", messages=HELLO)):
            with pytest.raises(openai.NotFoundError):
                await call
