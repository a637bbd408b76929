"""A task that prints its passwords in every way leaves none of them behind."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select, update

from app.base.encryption import key_id_of
from app.base.errors import StorageError
from app.base.values import Stop, Turn
from app.db import results, tables
from app.db.database import Sessions
from app.db.tables import TaskState
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.tasks import queue, turns
from tests.support.api_app import ApiApp
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject, until
from tests.support.scripted_engine import Answer, ScriptedEngine, block, byte_tokenizer
from tests.support.vault import ACCESS_TOKEN, API_TOKEN, PASSWORD, PIN, Vault

GUESSED = "guessed-before-4711"
TURNS = (
    f"try:\n    apis.vault.log_in(password='{GUESSED}')\nexcept Exception as error:\n    print(error)",
    "found = apis.vault.show_passwords()\nprint(found)\ntoken = apis.vault.log_in(password=found['mail'])\n"
    "print(token, apis.vault.show_inbox(access_token=token['access_token']))",
    "import base64\nfor word in (found['mail'], token['access_token']):\n"
    "    print(word.upper(), word[::-1], word.encode().hex(), base64.b64encode(word.encode()).decode())\n"
    "    print(' '.join(word), '-'.join(word), list(word), base64.b64encode(b'x' + word.encode()).decode())\n"
    "    print('see: ' + word.encode().hex(':'), base64.urlsafe_b64encode(b'xy' + word.encode()).decode())",
    "def open_mail(user: str) -> str:\n"
    f"    return apis.vault.log_in(password='{PASSWORD}', user=user)['welcome']\n"
    "print(open_mail('iris'))",
    "def read_inbox(token: str) -> str:\n    passwords = apis.vault.show_passwords()\n"
    "    return apis.vault.show_inbox(access_token=token)['letter']\nprint(read_inbox(token['access_token']))",
    "raise ValueError('it is ' + found['mail'])",
    "print('x' * 2990 + found['mail'])",
    "apis.supervisor.complete_task(answer=[token, found['bank'], {found['mail']: 1}])",
)


def spellings(word: str) -> Iterator[str]:
    raw = word.encode()
    yield from (word, word.upper(), word[::-1], raw.hex(), raw.hex(":"))
    yield from (" ".join(word), "-".join(word), str([*word]))
    yield from (base64.b64encode(raw).decode(), base64.b64encode(b"x" + raw).decode()[2:-4])
    yield base64.urlsafe_b64encode(b"xy" + raw).decode()[3:-4]
    yield word[:8]


FORBIDDEN = [each for word in (PASSWORD, ACCESS_TOKEN, API_TOKEN, GUESSED) for each in spellings(word)] + [PIN]


class DumpingEngine(ScriptedEngine):
    """Dumps the database before each answer."""

    def __init__(self, project: LedgerProject) -> None:
        super().__init__(project.tokenizer, script=lambda _, turn: block(TURNS[turn]))
        self.sessions = project.sessions
        self.dumps: list[str] = []

    async def _next(self, prompt: str) -> Answer:
        self.dumps.append(await dump(self.sessions))
        return await super()._next(prompt)


async def dump(sessions: Sessions) -> str:
    """All rows of all tables as text."""
    async with sessions() as session:
        every = tables.Base.metadata.sorted_tables
        rows = [row for table in every for row in await session.execute(table.select())]
    return "\n".join(_text(value) for row in rows for value in row)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return json.dumps(value, default=str, ensure_ascii=False)


def leaks(text: str) -> list[str]:
    return [word for word in FORBIDDEN if word in text or word in text.replace("\\", "")]


@pytest.fixture
async def project(api: ApiApp, bare_sandbox: ForkedSandbox, tmp_path: Path) -> AsyncIterator[LedgerProject]:
    """The API's project, with the vault, which it calls with a token."""
    vault = Vault()
    body = {"name": "vault", "document": vault.document(), "bearer_token": API_TOKEN}
    assert (await api.client.post("/v1/apis", json=body)).status_code == 201
    async with vault.client() as client:
        tokenizer = byte_tokenizer(tmp_path)
        yield LedgerProject(api.sessions, bare_sandbox, tokenizer, Ledger(), client, api.demo.id)


async def test_what_the_agent_prints_is_nowhere_in_the_clear(
    api: ApiApp, project: LedgerProject, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = DumpingEngine(project)
    async with project.runner(engine):
        task = await project.ended(await project.submit("look into the vault", check_code="score = 1.0"))
    assert (task.state, task.turns) == (TaskState.DONE, len(TURNS)), task.failure
    assert PASSWORD in engine.prompts[-1], "the policy itself must see it"
    last, logged = await dump(project.sessions), capfd.readouterr()
    assert not leaks(last)
    assert not leaks(logged.out + logged.err)
    shown = [(await api.client.get(f"/v1/tasks/{task.id}{path}")).text for path in ("", "/trajectory", "/events")]
    assert not leaks("".join(shown))
    assert all("***" in each for each in shown)
    assert json.loads(shown[1])["masked"]


async def test_a_task_that_waits_for_an_approval_has_no_secret_in_its_events(
    api: ApiApp, project: LedgerProject
) -> None:
    rules = {"settings": {"approvals": {"operations": {"vault.show_inbox": "always"}}}}
    assert (await api.client.patch("/v1/projects/demo", json=rules)).status_code == 200
    codes = TURNS[0], f"apis.vault.show_inbox(access_token='{ACCESS_TOKEN}')"
    async with project.runner(ScriptedEngine(project.tokenizer, *map(block, codes))):
        task_id = await project.submit()
        await until(lambda: _waits(project, task_id))
    assert (await api.client.post(f"/v1/tasks/{task_id}/cancel")).json()["state"] == "cancelled"
    told = await project.events(task_id)
    assert [kind for kind, _ in told] == ["turn", "call", "observation", "turn", "approval", "done"]
    assert leaks(json.dumps(told)) == []


async def _waits(project: LedgerProject, task_id: UUID) -> bool:
    return (await project.row(task_id)).state == TaskState.WAITING


async def test_while_a_task_runs_its_journal_can_be_read_with_the_key_alone(project: LedgerProject) -> None:
    engine = DumpingEngine(project)
    async with project.runner(engine):
        await project.ended(await project.submit("look into the vault"))
    async with project.sessions() as session:
        assert key_id_of((await session.scalars(select(tables.Api.token))).one() or "")
    for stored in engine.dumps[2:]:
        found = [word for word in leaks(stored) if word not in spellings(GUESSED)]
        assert not found, "only a guess is stored before it counts as a password"


async def test_the_token_ids_of_a_masked_trajectory_decode_to_nothing(project: LedgerProject) -> None:
    async with project.runner(DumpingEngine(project)):
        task_id = await project.submit("look into the vault")
        await project.ended(task_id)
    async with project.sessions() as session:
        trajectory = await results.of_task(session, task_id)
    assert trajectory.flaw == "secret"
    assert all(turn.context_ids == turn.sampled_ids == turn.logprobs == () for turn in trajectory.turns)


async def test_a_secret_that_only_passes_through_the_code_costs_no_tokens(project: LedgerProject) -> None:
    quiet = (
        "token = apis.vault.log_in(password=apis.vault.show_passwords()['mail'])['access_token']\nprint('in')",
        "apis.supervisor.complete_task(answer=len(token))",
    )
    engine = ScriptedEngine(project.tokenizer, script=lambda _, turn: block(quiet[turn]))
    async with project.runner(engine):
        task_id = await project.submit("log in")
        await project.ended(task_id)
    async with project.sessions() as session:
        trajectory = await results.of_task(session, task_id)
    assert trajectory.flaw is None
    assert not leaks(await dump(project.sessions))


async def test_a_skill_that_holds_a_secret_is_refused_and_a_clean_one_is_kept(project: LedgerProject) -> None:
    async with project.runner(DumpingEngine(project)):
        task_id = await project.submit("look into the vault")
        await project.ended(task_id)
    events = [data for kind, data in await project.events(task_id) if kind == "skill"]
    refused = [data for data in events if data["status"] == "refused"]
    assert [(each["name"], "secret" in each["reason"]) for each in refused] == [("open_mail", True)]
    assert [each["name"] for each in events if each["status"] == "written"] == ["read_inbox"]


async def test_a_resumed_task_still_knows_the_secrets_of_its_first_turns(project: LedgerProject) -> None:
    """Its session died in the first turn, which is therefore not run again."""
    first = Halting(project.tokenizer, block("apis.vault.show_passwords()\nimport os\nos._exit(1)"))
    task_id = await project.submit("look into the vault")
    async with project.runner(first):
        await first.halted.wait()
    engine = ScriptedEngine(project.tokenizer, block(f"apis.supervisor.complete_task(answer=['{PASSWORD}'])"))
    async with project.runner(engine):
        task = await project.ended(task_id)
    assert task.answer == ["***"], task.failure


async def test_a_task_that_fails_leaves_no_secret_that_was_known_too_late(
    api: ApiApp, project: LedgerProject
) -> None:
    """The turn's event was stored before its code used the guess as a password."""
    async with project.runner(Failing(project.tokenizer, block(TURNS[0]))):
        task = await project.ended(await project.submit("look into the vault"))
    assert (task.state, task.failure) == (TaskState.FAILED, "*** is too long")
    assert not leaks(await dump(project.sessions))
    shown = (await api.client.get(f"/v1/tasks/{task.id}/events")).text
    assert "log_in(password='***')" in shown


async def test_a_task_that_is_given_up_shows_no_password_of_its_variables(project: LedgerProject) -> None:
    task_id = await project.submit("look into the vault", variables={"password": PASSWORD})
    async with project.sessions.begin() as session:
        assert await queue.claim(session, "dead", 60)
        turn = Turn(context_ids=(1,), sampled_ids=(2,), logprobs=(-0.5,), text=f"print('{PASSWORD}')")
        await turns.begin(session, task_id, "dead", 0, turn)
        await queue.mark_alone(session, task_id, "dead")
        await session.execute(update(tables.Task).values(lone_deaths=2, owner=None, lease_until=None))
    async with project.runner(ScriptedEngine(project.tokenizer)):
        assert (await project.ended(task_id)).stop == Stop.CRASHED
    async with project.sessions() as session:
        trajectory = await results.of_task(session, task_id)
    assert ([turn.text for turn in trajectory.turns], trajectory.masked) == (["print('***')"], True)


class Failing(ScriptedEngine):
    """Fails once it has given its answers, with an error that holds a secret."""

    async def _next(self, prompt: str) -> Answer:
        if not self._answers:
            raise StorageError(f"{GUESSED} is too long")
        return await super()._next(prompt)


class Halting(ScriptedEngine):
    """Never gives a second answer."""

    def __init__(self, tokenizer: ChatTokenizer, answer: str) -> None:
        super().__init__(tokenizer, answer)
        self.halted = asyncio.Event()

    async def _next(self, prompt: str) -> Answer:
        if not self._answers:
            self.halted.set()
            await asyncio.sleep(3600)
        return await super()._next(prompt)
