"""The task routes: submit, list, show, cancel."""

from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import msgspec
import pytest
from sqlalchemy import text

from app.db import tables
from app.db.database import Sessions
from app.db.tables import Exploration
from app.tasks import queue
from app.tasks import store as tasks
from app.tasks.requests import Submission
from tests.support.api_app import ApiApp, problem
from tests.support.every_row import every_row


async def test_a_submitted_task_is_stored_and_the_runner_is_woken(api: ApiApp) -> None:
    sent = {
        "instruction": "archive my mails",
        "scenario": "archive",
        "variables": {"world": "w7"},
        "check": "score = 1",
    }
    answer = await api.client.post("/v1/tasks", json=sent)
    assert answer.status_code == 202
    task_id = answer.json()["id"]
    assert answer.json()["links"]["events"] == f"/v1/tasks/{task_id}/events"

    shown = (await api.client.get(answer.json()["links"]["self"])).json()
    assert {name: shown[name] for name in sent} == sent
    assert shown["project"] == "demo"
    assert shown["state"] == "accepted"
    assert shown["skills"] == {"offered": [], "withheld": [], "used": [], "written": [], "selection": None}
    assert shown["release"] is None


async def test_a_task_may_be_kept_from_exploring(api: ApiApp) -> None:
    bodies = [{"instruction": "x", "explore": explore} for explore in (False, True)] + [{"instruction": "x"}]
    stored = (await api.client.post("/v1/tasks", json={"tasks": bodies})).json()["tasks"]
    again = (await api.client.post(f"/v1/tasks/{stored[0]['id']}/rerun", json={})).json()
    async with api.sessions() as session:
        found = [(await tasks.get(session, UUID(each["id"]))).exploration for each in (*stored, again)]
    assert found == [Exploration.NO, None, None, Exploration.NO]


async def test_json_is_accepted_with_any_content_type(api: ApiApp) -> None:
    answer = await api.client.post(
        "/v1/tasks",
        content=b'{"instruction": "tidy up"}',
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert answer.status_code == 202


async def test_a_list_of_tasks_is_accepted_in_order(api: ApiApp) -> None:
    body = {"tasks": [{"instruction": f"task {number}"} for number in range(3)]}
    answer = await api.client.post("/v1/tasks", json=body)
    assert answer.status_code == 202
    ids = [each["id"] for each in answer.json()["tasks"]]
    listed = (await api.client.get("/v1/tasks")).json()["tasks"]
    assert [each["id"] for each in listed] == ids[::-1]  # newest first


async def test_one_invalid_task_of_a_list_stores_none(api: ApiApp) -> None:
    body = {"tasks": [{"instruction": "good"}, {"instruction": "bad", "project": "nowhere"}]}
    assert (await api.client.post("/v1/tasks", json=body)).status_code == 404
    assert (await api.client.get("/v1/tasks")).json() == {"tasks": [], "next_cursor": None}


async def test_more_than_a_thousand_tasks_in_one_submission_are_refused(api: ApiApp) -> None:
    body = {"tasks": [{"instruction": "again"}] * 1001}
    assert problem(await api.client.post("/v1/tasks", json=body))["field"] == "tasks"


async def test_repeating_a_submission_with_its_idempotency_key_creates_no_tasks(api: ApiApp) -> None:
    body = {"tasks": [{"instruction": "one"}, {"instruction": "two"}]}
    headers = {"Idempotency-Key": "order-7"}
    first = await api.client.post("/v1/tasks", json=body, headers=headers)
    again = await api.client.post("/v1/tasks", json=body, headers=headers)
    assert again.json() == first.json()
    assert len((await api.client.get("/v1/tasks")).json()["tasks"]) == 2

    other = await api.client.post("/v1/tasks", json={"instruction": "three"}, headers=headers)
    assert other.status_code == 409
    assert "order-7" in str(problem(other)["detail"])


INVALID: list[tuple[object, str]] = [
    ({"instruction": ""}, "instruction"),
    ({"instruction": "  \n"}, "instruction"),
    ({"instruction": "x" * 20_001}, "instruction"),
    ({"instruction": 7}, "instruction"),
    ({"instruction": "a\x00b"}, "instruction"),
    ({}, "instruction"),
    ([], "object"),
    ({"instruction": "ok", "scenario": "s" * 201}, "scenario"),
    ({"instruction": "ok", "scenari": "s"}, "scenari"),
    ({"instruction": "ok", "variables": {"world": 7}}, "variables"),
    ({"instruction": "ok", "use_skills": "perhaps"}, "use_skills"),
    ({"instruction": "ok", "check": "score ="}, "line 1"),
    ({"instruction": "ok", "check": "(" * 40_000}, "check"),
    ({"instruction": "ok", "tasks": [{"instruction": "ok"}]}, "not both"),
    ({"tasks": []}, "tasks"),
]


async def test_an_invalid_task_is_refused_with_the_reason(api: ApiApp) -> None:
    with every_row() as row:
        for body, hint in INVALID:
            with row(body, hint):
                answer = await api.client.post("/v1/tasks", json=body)
                assert answer.status_code == 400
                assert hint in str(problem(answer)["detail"])
                assert (await api.client.get("/v1/tasks")).json()["tasks"] == []


async def test_a_missing_body_is_reported(api: ApiApp) -> None:
    assert problem(await api.client.post("/v1/tasks"))["detail"] == "send a JSON body"


async def test_a_truncated_body_is_reported(api: ApiApp) -> None:
    for path in ("/v1/tasks", "/v1/training-runs"):
        answer = await api.client.post(path, content=b'{"kind":')
        assert problem(answer)["detail"] == "the body is truncated JSON"


@pytest.mark.parametrize("content", [b"", b"{", b'{"instruction": "\xff"}', b'{"instruction": "\\ud800"}'])
async def test_a_body_that_is_not_json_is_refused(api: ApiApp, content: bytes) -> None:
    answer = await api.client.post("/v1/tasks", content=content)
    assert answer.status_code == 400
    problem(answer)


async def test_a_body_of_forty_megabytes_is_refused(api: ApiApp) -> None:
    answer = await api.client.post("/v1/tasks", content=b'"' + b"x" * (40 << 20) + b'"')
    assert answer.status_code == 413
    problem(answer)


async def test_a_task_of_an_unknown_project_is_refused_with_where_to_find_the_projects(api: ApiApp) -> None:
    answer = await api.client.post("/v1/tasks", json={"instruction": "ok", "project": "nowhere"})
    assert answer.status_code == 404
    assert "GET /v1/projects" in str(problem(answer)["detail"])


async def test_with_two_projects_a_task_must_name_its_project(api: ApiApp) -> None:
    await api.project("other")
    answer = await api.client.post("/v1/tasks", json={"instruction": "ok"})
    assert answer.status_code == 400
    assert "there are several; GET /v1/projects lists them" in str(problem(answer)["detail"])
    assert (await api.client.post("/v1/tasks", json={"instruction": "ok", "project": "other"})).status_code == 202


async def test_a_listing_is_filtered_and_paged(api: ApiApp) -> None:
    ids = [
        str(await api.submit(f"task {number}", scenario="even" if number % 2 == 0 else "odd"))
        for number in range(5)
    ]
    first = (await api.client.get("/v1/tasks", params={"scenario": "even", "limit": 2})).json()
    assert [each["id"] for each in first["tasks"]] == [ids[4], ids[2]]
    rest = (await api.client.get("/v1/tasks", params={"scenario": "even", "cursor": first["next_cursor"]})).json()
    assert [each["id"] for each in rest["tasks"]] == [ids[0]]
    assert rest["next_cursor"] is None

    middle = (await api.client.get(f"/v1/tasks/{ids[2]}")).json()["created_at"]
    later = (await api.client.get("/v1/tasks", params={"created_after": middle})).json()
    assert [each["id"] for each in later["tasks"]] == ids[:1:-1]
    earlier = (await api.client.get("/v1/tasks", params={"created_before": middle})).json()
    assert [each["id"] for each in earlier["tasks"]] == [ids[1], ids[0]]
    assert (await api.client.get("/v1/tasks", params={"state": "done"})).json()["tasks"] == []


@pytest.mark.parametrize(
    "query",
    [
        "cursor=nonsense",
        "cursor=%00",
        "limit=0",
        "limit=201",
        "limit=x",
        "state=asleep",
        "stop_reason=x",
        "created_after=noon",
    ],
)
async def test_an_invalid_filter_is_refused(api: ApiApp, query: str) -> None:
    answer = await api.client.get(f"/v1/tasks?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in str(problem(answer)["detail"])


async def test_an_unknown_task_and_a_malformed_id_are_reported(api: ApiApp) -> None:
    missing = await api.client.get(f"/v1/tasks/{uuid4()}")
    assert problem(missing)["error"] == "NotFoundError"
    malformed = await api.client.get("/v1/tasks/7")
    assert malformed.status_code in (400, 404)
    problem(malformed)


async def test_a_queued_task_is_cancelled_immediately_and_an_ended_one_cannot_be(api: ApiApp) -> None:
    task_id = await api.submit()
    cancelled = await api.client.post(f"/v1/tasks/{task_id}/cancel")
    assert cancelled.status_code == 202
    assert cancelled.json()["state"] == "cancelled"
    events = await api.client.get(f"/v1/tasks/{task_id}/events")
    assert events.text.count("event: done") == 1
    assert '"stop_reason":"cancelled"' in events.text

    assert (await api.client.post(f"/v1/tasks/{task_id}/cancel")).status_code == 202  # again is no mistake
    assert (await api.client.get(f"/v1/tasks/{task_id}/events")).text.count("event: done") == 1

    other = await api.submit()
    async with api.sessions.begin() as session:
        await queue.claim(session, "runner", 30)
        done = queue.TaskOutcome(state=tables.TaskState.DONE)
        assert await queue.finish(session, other, "runner", done)
    assert (await api.client.post(f"/v1/tasks/{other}/cancel")).status_code == 409


async def test_cancelling_a_running_task_only_requests_it(api: ApiApp) -> None:
    task_id = await api.submit()
    async with api.sessions.begin() as session:
        await queue.claim(session, "runner", 30)
    shown = (await api.client.post(f"/v1/tasks/{task_id}/cancel")).json()
    assert (shown["state"], shown["cancel_requested"]) == ("running", True)
    assert shown["release"] == {"number": 1, "model": "base"}
    assert shown["attempt"] == 1
    async with api.sessions() as session:
        assert (await tasks.get(session, task_id)).cancel_requested


async def test_cancelling_a_running_task_that_no_runner_has_ends_it_at_once(api: ApiApp) -> None:
    task_id = await api.submit()
    async with api.sessions.begin() as session:
        await queue.claim(session, "runner", 30)
        await queue.hand_back(session, "runner")
    cancelled = (await api.client.post(f"/v1/tasks/{task_id}/cancel")).json()
    assert (cancelled["state"], cancelled["stop_reason"]) == ("cancelled", "cancelled")
    assert (await api.client.get(f"/v1/tasks/{task_id}/events")).text.count("event: done") == 1
    async with api.sessions.begin() as session:
        assert await queue.claim(session, "another", 30) is None


@pytest.fixture
async def full_disk(committed: Sessions) -> AsyncIterator[None]:
    """PostgreSQL can store no further task."""
    fails = "BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END"
    async with committed.begin() as session:
        await session.execute(text(f"CREATE FUNCTION be_full() RETURNS trigger LANGUAGE plpgsql AS $$ {fails} $$"))
        await session.execute(
            text("CREATE TRIGGER full_disk BEFORE INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION be_full()")
        )
    yield
    async with committed.begin() as session:
        await session.execute(text("DROP FUNCTION be_full CASCADE"))


@pytest.mark.usefixtures("full_disk")
async def test_a_task_that_a_full_disk_cannot_store_is_refused_with_the_reason(api: ApiApp) -> None:
    refused = await api.client.post("/v1/tasks", json={"instruction": "write"})
    assert (refused.status_code, problem(refused)["detail"]) == (
        503,
        "the disk of the database is full: nothing can be stored until it has space",
    )
    assert (await api.client.get("/v1/tasks")).json()["tasks"] == []


def test_a_submission_that_is_repeated_after_an_upgrade_is_known() -> None:
    """By the digests of a version whose tasks had no field `explore`."""
    one = {"instruction": "say hello", "variables": {"b": "2", "a": "1"}, "priority": 1}
    several = {"tasks": [one, {"instruction": "x", "check": "score = 1"}]}
    digests = {
        "4616fc711e2aaffb8660a5a30cb9c224b0c7c416ed27117c792541613c6d45ad": one,
        "f57a2e4c16505e4ed3581945d85b9624b8f02cabf3c3e3a0b635d182dd27ed16": several,
    }
    for digest, sent in digests.items():
        assert msgspec.convert(sent, Submission).digest() == digest
    explored, unexplored = ({**one, "explore": explore} for explore in (True, False))
    assert msgspec.convert(explored, Submission).digest() in digests
    assert msgspec.convert(unexplored, Submission).digest() not in digests
