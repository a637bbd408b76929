"""`sage collect` as a process, against a chat endpoint: killed, resumed, and refused."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from app.base.encryption import KeyRing, new_key
from app.base.model_catalog import SEED_DIR
from app.cli import main
from app.db.database import open_database
from app.engine.tokenizer import ChatTokenizer
from app.projects import store as projects
from app.projects import usage
from app.releases import hosted_models
from tests.support.chat_server import KEY, MODEL, ChatServer, chat_server
from trainer.environment import Scenario
from trainer.sft.chats import read_records
from trainer.sft.samples import build_samples
from trainer.worlds.office.environment import OfficeEnvironment

COUNT = 6
OPTIONS = ["--scenarios", str(COUNT), "--seed", "4", "--keep", "task"]


@pytest.fixture(scope="module")
def scenarios() -> Sequence[Scenario]:
    return OfficeEnvironment().scenarios("train", COUNT, seed=4)


@pytest.fixture
async def served(scenarios: Sequence[Scenario]) -> AsyncIterator[tuple[str, ChatServer]]:
    async with chat_server(scenarios) as served:
        yield served


async def start(
    out: Path, *arguments: str, env: Mapping[str, str] = MappingProxyType({})
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.cli", "collect", *OPTIONS, "--out", str(out), *arguments),
        env={**os.environ, "EXPERT_KEY": KEY, "BAD_KEY": "bad", **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def collect(
    out: Path, *arguments: str, env: Mapping[str, str] = MappingProxyType({})
) -> tuple[int | None, str, str]:
    """Exit code, standard output, and the last line of standard error."""
    process = await start(out, *arguments, env=env)
    stdout, error = await process.communicate()
    return process.returncode, stdout.decode(), error.decode().strip().rpartition("\n")[2]


def expert(url: str, key: str = "EXPERT_KEY") -> tuple[str, ...]:
    return ("--expert", chat(url), "--api-key-env", key, "--temperature", "0.3", "--at-once", "2")


def chat(url: str) -> str:
    return f"chat?url={url}&model={MODEL}"


async def test_a_collection_that_was_killed_resumes_and_asks_for_no_finished_scenario_again(
    served: tuple[str, ChatServer], scenarios: Sequence[Scenario], tmp_path: Path
) -> None:
    url, server = served
    server.pause = 0.05
    journal = tmp_path / "out.jsonl.journal"
    process = await start(tmp_path / "out.jsonl", *expert(url))
    while not journal.exists() or len(journal.read_bytes().splitlines()) < 3:  # noqa: ASYNC110  a file rings no bell
        await asyncio.sleep(0.01)
    process.kill()
    await process.communicate()
    done = [json.loads(line)["index"] for line in journal.read_bytes().splitlines()[1:]]
    assert 2 <= len(done) < COUNT
    server.pause, before = 0.0, len(server.requests)
    code, stdout, error = await collect(tmp_path / "out.jsonl", *expert(url))
    assert code == 0, error
    assert stdout == f"{tmp_path}/out.jsonl: kept 18 of 18 tasks\n"
    asked = {each["messages"][1]["content"].rpartition("Task: ")[2] for each in server.requests[before:]}
    finished = {task.instruction for index in done for task in scenarios[index].tasks}
    assert asked == {task.instruction for each in scenarios for task in each.tasks} - finished
    assert {each["temperature"] for each in server.requests} == {0.3}
    records = read_records(tmp_path / "out.jsonl")
    assert [record.about["source"] for record in records] == [chat(url)] * 18
    assert len(build_samples(records, ChatTokenizer.load(SEED_DIR)).samples) == 18
    assert os.listdir(tmp_path) == ["out.jsonl"]


@pytest.mark.usefixtures("committed")
async def test_a_hosted_model_is_an_expert_by_its_name_within_its_projects_rules_and_at_its_cost(
    served: tuple[str, ChatServer], database_url: str, tmp_path: Path
) -> None:
    url, server = served
    secret = new_key()
    async with (
        open_database(database_url, keys=KeyRing([secret])) as database,
        database.sessions.begin() as session,
    ):
        owner = await projects.create(session, "shop")
        about = {"url": url, "model": MODEL, "price_in": 3.0, "price_out": 15.0}
        await hosted_models.add(session, owner.id, "teacher", KEY, **about, trusted=True)
        await hosted_models.add(session, owner.id, "tenant's", KEY, **about, trusted=False)
    env = {"DATABASE_URL": database_url, "SAGE_DATA_DIR": str(tmp_path / "data"), "SAGE_SECRET_KEY": secret}
    out = tmp_path / "out.jsonl"
    named = ("--expert", "teacher", "--temperature", "0.3")
    code, stdout, error = await collect(out, *named, env=env)
    assert code == 0, error
    assert stdout == f"{out}: kept 18 of 18 tasks\n"
    sources = {record.about["source"] for record in read_records(out)}
    assert sources == {f"chat?{urlencode({'url': url, 'model': MODEL})}"}
    assert {each["temperature"] for each in server.requests} == {0.3}
    async with open_database(database_url) as database, database.sessions() as session:
        spent = (await usage.of_today(session, owner.id)).cost
    assert spent > 0
    asked = len(server.requests)
    closed = env | {"SAGE_ALLOW_PRIVATE_HOSTS": "false"}
    code, _, error = await collect(tmp_path / "other.jsonl", "--expert", "tenant's", env=closed)
    assert (code, len(server.requests)) == (1, asked)
    assert "127.0.0.1 is at the private address 127.0.0.1, which is closed to calls" in error
    code, _, error = await collect(out, *named, "--project", "nowhere", env=env)
    assert (code, "no project is named 'nowhere'" in error) == (1, True)


async def test_a_refused_key_is_one_line_and_leaves_nothing_behind(
    served: tuple[str, ChatServer], tmp_path: Path
) -> None:
    code, _, error = await collect(tmp_path / "out.jsonl", *expert(served[0], key="BAD_KEY"))
    assert code == 1
    assert error.startswith(f"Error: {served[0]}/v1/chat/completions refuses the key (401: Incorrect API key")
    assert os.listdir(tmp_path) == []


async def test_a_wrong_url_is_reported_at_once_and_the_right_one_may_use_the_same_file(
    served: tuple[str, ChatServer], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    code, _, error = await collect(out, *expert("http://127.0.0.1:9"))
    assert (code, "http://127.0.0.1:9/v1/chat/completions cannot be reached" in error) == (1, True)
    code, stdout, error = await collect(out, *expert(served[0]))
    assert code == 0, error
    assert stdout.startswith(f"{out}: kept ")


async def test_the_scripted_expert_makes_the_requested_mistakes(tmp_path: Path) -> None:
    code, stdout, _ = await collect(tmp_path / "inline.jsonl", "--expert", "scripted?inline=1")
    assert (code, stdout) == (0, f"{tmp_path}/inline.jsonl: kept 18 of 18 tasks\n")
    for record in read_records(tmp_path / "inline.jsonl"):
        answers = [message.content for message in record.messages if message.role == "assistant"]
        assert not any("def " in answer for answer in answers)
        assert record.about["source"] == "scripted?inline=1"
        assert record.about["temperature"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--expert'"),
        (
            ["--expert", "teacher"],
            "no expert is named 'teacher', there are chat, crud, gym, programs, scripted, strangers",
        ),
        (["--expert", "chat?url=http://x"], "chat needs the option model"),
        (
            ["--expert", "chat?url=http://x&model=m&page=0.1"],
            "chat has no option page; it has max_tokens, model, url",
        ),
        (["--expert", "scripted?page=2"], "scripted: page=2: 2 is greater than the maximum of 1"),
        (
            ["--expert", "chat?url=http://x&model=m", "--api-key-env", "NONE"],
            "the environment variable NONE is not set",
        ),
        (["--expert", "scripted", "--environment", "moon"], "has no 'moon', it has agentdojo, "),
        (
            [
                "--expert",
                "scripted",
                "--environment",
                "tests.support.counting_environment.counting:load_environment",
            ],
            "the scripted expert knows the environment office only",
        ),
        (["--expert", "scripted", "--profile", "odd"], "no prompt profile is named 'odd'"),
        (["--expert", "scripted", "--out", "/dev/null/out.jsonl"], "/dev/null/out.jsonl cannot be written: "),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    shown = CliRunner().invoke(main, ["collect", "--out", str(tmp_path / "out.jsonl"), *arguments])
    assert shown.exit_code in {1, 2}
    assert message in shown.output
    assert not list(tmp_path.iterdir())


def test_a_policy_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    seed = SEED_DIR
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).symlink_to(seed / name)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    out = str(tmp_path / "out.jsonl")
    shown = CliRunner().invoke(
        main, ["collect", "--expert", "scripted", "--out", out], env={"SAGE_MODEL": str(tmp_path)}
    )
    assert shown.exit_code == 1
    assert f"{tmp_path} has no chat_template.jinja" in shown.output
