"""The code of a turn that runs again after a decision: its earlier calls are answered from the journal."""

from app.apis import store as apis
from app.base.values import Stop
from app.db.tables import TaskState
from tests.support.approving import WRITES, ApprovingProject


async def test_of_two_writes_in_one_turn_the_first_is_not_sent_again(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    code = "for text in ('one', 'two'):\n    print(apis.ledger.add_entry(text=text))"
    async with demo.project.runner(demo.engine(code)):
        await demo.decide(await demo.waiting(task_id), "approve")
        await demo.until_written(1)
        await demo.decide(await demo.waiting(task_id), "approve")
        row = await demo.project.ended(task_id)
    assert demo.written() == ["one", "two"]
    assert (row.stop, row.calls, row.attempt) == (Stop.COMPLETED, 2, 1)
    assert "{'id': 1}\n{'id': 2}" in (await demo.observations(task_id))[0]


async def test_more_suspensions_than_runners_may_die_do_not_end_a_task(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    texts = [str(number) for number in range(12)]
    code = f"for text in {texts}:\n    apis.ledger.add_entry(text=text)"
    async with demo.project.runner(demo.engine(code)):
        for number in range(len(texts)):
            await demo.until_written(number)
            await demo.decide(await demo.waiting(task_id), "approve")
        row = await demo.project.ended(task_id)
    assert (row.state, demo.written()) == (TaskState.DONE, texts)


async def test_reads_of_the_same_turn_are_answered_as_before_the_wait(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    code = "before = len(apis.ledger.list_entries())\napis.ledger.add_entry(text='one')\nprint('before:', before)"
    async with demo.project.runner(demo.engine(code)):
        approval = await demo.waiting(task_id)
        assert demo.project.ledger.reads == 1
        await demo.decide(approval, "approve")
        await demo.project.ended(task_id)
    assert demo.project.ledger.reads == 1
    assert "before: 0" in (await demo.observations(task_id))[0]


async def test_a_call_that_cannot_be_sent_fails_again_when_its_code_runs_again(
    demo: ApprovingProject,
) -> None:
    document = demo.project.ledger.document("http://ledger.test")
    parameter = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    show = {"operationId": "show_entry", "parameters": [parameter], "responses": {"200": {"description": "it"}}}
    document["paths"]["/entries/{id}"] = {"get": show}
    async with demo.project.sessions.begin() as session:
        await apis.put(session, demo.project.id, "ledger", source="upload", document=document, digest="more")
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    code = """
try:
    apis.ledger.show_entry(id='..')
except Exception as error:
    print(type(error).__name__)
print(len(apis.ledger.list_entries()))
apis.ledger.add_entry(text='one')"""
    async with demo.project.runner(demo.engine(code)):
        await demo.decide(await demo.waiting(task_id), "approve")
        row = await demo.project.ended(task_id)
    assert (row.stop, demo.written()) == (Stop.COMPLETED, ["one"])
    assert "ValidationError\n0" in (await demo.observations(task_id))[0]


async def test_a_call_that_could_not_be_sent_is_not_sent_when_its_turn_is_repeated(demo: ApprovingProject) -> None:
    bind = {"bind": {"add_entry": {"text": "secret:text"}}}
    assert (await demo.api.client.patch("/v1/apis/ledger", json=bind)).status_code == 200
    await demo.rules({"operations": {"ledger.list_entries": "always"}})
    task_id = await demo.project.submit()
    refused = "try:\n    apis.ledger.add_entry()\nexcept Exception as error:\n    print(error)"
    async with demo.project.runner(demo.engine(refused, "apis.ledger.list_entries()")):
        approval = await demo.waiting(task_id)
        stored = await demo.api.client.put("/v1/secrets/text", json={"value": "a secret"})
        assert stored.status_code == 200, stored.text
        await demo.decide(approval, "approve")
        row = await demo.project.ended(task_id)
    assert (row.stop, demo.written()) == (Stop.IN_DOUBT, [])
    assert "turn 1 cannot be repeated" in (row.failure or "")


async def test_an_approval_does_not_hold_for_other_arguments(demo: ApprovingProject) -> None:
    """The id of the process differs in each session."""
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    code = "import os\napis.ledger.add_entry(text=str(os.getpid()))"
    async with demo.project.runner(demo.engine(code)):
        seen = []
        for _ in range(3):
            approval = await demo.waiting(task_id)
            seen.append((await demo.api.client.get(f"/v1/approvals/{approval['id']}")).json()["arguments"]["text"])
            await demo.decide(approval, "approve")
        row = await demo.project.ended(task_id)
    assert len(set(seen)) == 3
    assert demo.written() == []
    assert (row.stop, "with other values than those decided on" in (row.failure or "")) == (Stop.IN_DOUBT, True)
