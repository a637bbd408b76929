"""`sage apis`, `skills`, `keys`, `projects`, `approvals` and `tasks` against the real server."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from click.testing import CliRunner
from sqlalchemy import update

from app.apis.approvals.commands import APPROVAL_STATES
from app.base.files import noted_place, write_admin_key
from app.cli import main
from app.db import tables
from app.db.database import Sessions
from app.db.tables import TaskState
from app.projects import keys
from app.projects.commands import KEY_SCOPES
from app.projects.keys import Scope
from app.releases import store as releases
from app.skills import store as skills
from app.skills.commands import SKILL_STATES
from app.tasks.commands import TASK_STATES
from tests.engine.test_hosted_models_api import KEY, Provider
from tests.support.api_app import open_api_app
from tests.support.http_server import served
from tests.support.ledger import Ledger
from tests.support.rows import new_skill, project_row, task_row
from tests.support.sage_command import SageCommand

WIDE = {"COLUMNS": "120", "FORCE_COLOR": "1", "TERM": "xterm"}
NARROW = WIDE | {"COLUMNS": "40"}


@pytest.fixture
async def shell(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[SageCommand]:
    async with (
        Ledger().client() as services,
        open_api_app(committed, database_url, directory=tmp_path, http_client=services) as api,
        served(api) as client,
    ):
        yield SageCommand(api, str(client.base_url))


async def test_tasks_are_listed_filtered_shown_and_cancelled(shell: SageCommand) -> None:
    first = await shell.api.submit("count my mails", scenario="count")
    await shell.api.submit("a long story\nwith \x1b[2J control characters")
    listed = await shell.run("tasks")
    lines = [line.split(maxsplit=5) for line in listed.out.splitlines()]
    assert lines[0] == ["id", "state", "score", "age", "answer", "instruction"]
    assert lines[1][1:] == ["accepted", "-", lines[1][3], "-", "a long story with \\x1b[2J control characters"]
    assert lines[2][0] == str(first)
    assert str(first) in (await shell.run("tasks", "--scenario", "count", "--state", "accepted")).out
    assert len((await shell.run("tasks", "--state", "failed")).out.splitlines()) == 1
    assert len((await shell.run("tasks", "--until", "2020-01-01")).out.splitlines()) == 1
    assert [str(first) in line for line in (await found(shell, "--search", "my mails"))] == [True]
    assert await found(shell, "--skill", str(uuid4())) == []
    page = await shell.run("tasks", "--limit", "1")
    assert "there are more: --cursor " in page.err
    cursor = page.err.split()[-1]
    assert str(first) in (await shell.run("tasks", "--limit", "1", "--cursor", cursor)).out
    shown = await shell.run("tasks", str(first))
    assert ["scenario", "count"] in [line.split() for line in shown.out.splitlines()]
    assert "cancelled" in (await shell.run("tasks", str(first), "--cancel")).out
    unknown = await shell.run("tasks", str(uuid4()), "--cancel")
    assert (unknown.code, unknown.err.startswith("Error: no task has the id ")) == (6, True)


async def test_tasks_of_several_projects_name_theirs(shell: SageCommand) -> None:
    first = await shell.api.submit("count my mails")
    assert "project" not in (await shell.run("tasks")).out.splitlines()[0]
    async with shell.api.sessions.begin() as session:
        other = await project_row(session)
    second = await shell.api.submit("count my mails", project=other.name)
    lines = [line.split()[:2] for line in (await shell.run("tasks")).out.splitlines()]
    assert lines == [["id", "project"], [str(second), other.name], [str(first), "demo"]]
    for command in ("score 0000 solved", "tasks 0000"):
        wrong = await shell.run(*command.split())
        assert (wrong.code, "'0000' is no id of a task: `sage tasks` lists them" in wrong.err) == (2, True)


async def test_a_url_without_its_scheme_is_told_from_a_file(shell: SageCommand, tmp_path: Path) -> None:
    for place in ("localhost:9100/openapi.json", "10.0.0.7:80", "example.com/openapi.json", "host:80/v1"):
        wrong = await shell.run("apis add", "x", place)
        assert (wrong.code, "a URL begins with http:// or https://" in wrong.err) == (2, True), wrong.err
    for place in ("nothing.json", str(tmp_path / "nothing.json"), "./docs/nothing.json"):
        wrong = await shell.run("apis add", "x", place)
        assert (wrong.code, "cannot be read" in wrong.err) == (2, True), wrong.err


async def test_an_ended_task_is_scored_in_words_or_by_a_number(shell: SageCommand) -> None:
    task = await shell.api.submit("count my mails")
    early = await shell.run("score", str(task), "solved")
    assert early.code == 6, early.err
    await shell.run("tasks", str(task), "--cancel")
    for score, told, kept in (
        ("Solved", "solved:", 1.0),
        ("half", "solved 0.5:", 0.5),
        ("0.25", "failed 0.25:", 0.25),
    ):
        given = await shell.run("score", str(task), score, "--comment", "as asked")
        assert (given.code, given.out.startswith(told)) == (0, True), given
        assert (await shell.api.client.get(f"/v1/tasks/{task}")).json()["score"] == kept
    for score, why in (("good", "SCORE is solved, half, failed, or a number"), ("7", "score")):
        wrong = await shell.run("score", str(task), score)
        assert wrong.code in (2, 6)
        assert why in wrong.err


async def test_hosted_models_are_added_listed_changed_probed_and_removed(shell: SageCommand) -> None:
    provider = Provider()
    async with provider.listening() as url:
        where = ("--endpoint", url, "--model", "wise-1")
        added = await shell.run("models add", "wise", *where, "--key-env", "WISE", "--price-in", "2.5", WISE=KEY)
        assert added.code == 0, added.err
        assert re.search(r"price.in +2\.5\n(.*\n)*context +unknown\n", added.out)
        refused = await shell.run("models add", "other", *where, "--key-env", "WISE", WISE="sk-bad")
        assert (refused.code, "refuses the key (401: Incorrect API key)" in refused.err) == (6, True)
        unset = await shell.run("models add", "other", *where, "--key-env", "NONE")
        assert (unset.code, "the environment variable NONE is not set" in unset.err) == (2, True)
        listed = (await shell.run("models hosted")).out.splitlines()
        assert [line.split()[:4] for line in listed[1:]] == [["wise", "wise-1", url, "yes"]]
        for command in (("change", "wise", "--price-out", "10"), ("probe", "wise")):
            assert (await shell.run(f"models {command[0]}", *command[1:])).code == 0
        none = await shell.run("models demonstrate", "wise", "--tasks", "failed")
        assert (none.code, none.out) == (0, "no failed task is left for wise\n")
        async with shell.api.sessions.begin() as session:
            failed = await task_row(session, shell.api.demo.id)
            failed.state, failed.finished_at = TaskState.FAILED, failed.created_at
        queued = (await shell.run("models demonstrate", "wise", "--tasks", "failed")).out.splitlines()
        assert (queued[0], len(queued)) == ("release 2 does 1 failed tasks again, after all that wait:", 2)
        assert (await shell.run("tasks", queued[1])).code == 0
        provider.key = "sk-another"
        probed = await shell.run("models probe", "wise")
        assert (probed.code, "refuses the key" in probed.out) == (1, True)
        assert f"cancel them: {queued[1]}" in (await shell.run("models remove", "wise")).err
        assert (await shell.api.client.post(f"/v1/tasks/{queued[1]}/cancel")).is_success
        assert "removed the model wise" in (await shell.run("models remove", "wise")).out
        assert "`sage models hosted` lists them" in (await shell.run("models remove", "wise")).err
        assert KEY not in added.out + added.err + "".join(listed)


async def test_tasks_are_filtered_by_skill_and_release(shell: SageCommand) -> None:
    task_id, other = await shell.api.submit("count my mails"), await shell.api.submit("write to iris")
    async with shell.api.sessions.begin() as session:
        skill = await skills.add(session, shell.api.demo.id, new_skill("count", "def count(): ...", other))
        session.add(tables.SkillOffer(task_id=task_id, skill_id=skill.id, position=0, ranks={}))
        release = await releases.active(session, shell.api.demo.id)
        await session.execute(update(tables.Task).where(tables.Task.id == other).values(release_id=release.id))
        number = release.number
    [offered] = await found(shell, "--skill", str(skill.id))
    [served] = await found(shell, "--release", str(number))
    assert (offered.split()[0], served.split()[0]) == (str(task_id), str(other))
    unknown = await shell.run("tasks", "--release", "99")
    assert (unknown.code, unknown.err) == (6, "Error: no release 99: `sage releases` lists them\n")


async def found(shell: SageCommand, *options: str) -> list[str]:
    """The rows of the list of tasks."""
    listed = await shell.run("tasks", *options)
    assert listed.code == 0, listed.err
    return listed.out.splitlines()[1:]


async def test_json_is_what_the_server_answers(shell: SageCommand) -> None:
    task = await shell.api.submit("write café \x1b[31m")
    for path, command in {
        "/v1/tasks": ("tasks",),
        f"/v1/tasks/{task}": ("tasks", str(task)),
        "/v1/apis": ("apis",),
        "/v1/skills": ("skills list",),
        "/v1/keys": ("keys",),
        "/v1/projects": ("projects",),
        "/v1/projects/demo/usage": ("projects usage", "demo"),
        "/v1/approvals": ("approvals list",),
        "/v1/training-runs": ("runs",),
        "/v1/releases": ("releases",),
        "/v1/environments": ("environments",),
    }.items():
        limit = "?limit=20" if command[0] in ("tasks", "skills list", "approvals list", "runs") else ""
        answer = (await shell.api.client.get(path + limit)).json()
        ended = await shell.run(*command, "--json")
        assert json.loads(ended.out) == answer, ended.err
        assert "\x1b" not in ended.out


async def test_a_terminal_gets_a_table_and_a_narrow_one_a_block_for_each_row(shell: SageCommand) -> None:
    task = await shell.api.submit("archive " + "every one of my mails " * 9, scenario="archive")
    wide, narrow = await shell.run("tasks", **WIDE), await shell.run("tasks", **NARROW)
    assert f"{task}  accepted" in wide.out
    assert "archive every one of my mails every one" in wide.out, "the instruction wraps"
    assert str(task) in narrow.out.replace("\n", "").replace(" " * 13, ""), "no id is cut"
    assert "accepted" in narrow.out
    assert max(map(len, narrow.out.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())) <= 40


async def test_adding_an_api_says_which_of_its_calls_wait_for_a_person(shell: SageCommand, tmp_path: Path) -> None:
    file, change = tmp_path / "ledger.json", "Change it: sage apis approve ledger MODE"
    file.write_text(json.dumps(Ledger().document("http://ledger.test")))
    added = await shell.run("apis add", "ledger", str(file))
    approval, trial = added.err.splitlines()[-2:]
    assert trial == "the model is asked about it; see the trial with:  sage apis trial ledger"
    assert added.out.count("add_entry(text, ") == 1, "operations are in the table alone"
    assert approval == (
        "approval document: calls that its document marks as a risk wait for a person; after 10 changes of one "
        f"task the next one does. {change}"
    )
    again = await shell.run("apis add", "ledger", str(file), "--approve", "first")
    assert again.err.splitlines()[-2].startswith("approval first: an operation's first change waits for a person")
    stricter = await shell.run("apis approve", "ledger", "write")
    assert stricter.out == f"approval write: each change waits for a person. {change}\n"
    assert (await shell.run("apis approve", "ledger")).out == stricter.out
    settings = (await shell.api.client.get("/v1/projects/demo")).json()["settings"]
    assert settings["approvals"]["operations"] == {"ledger.*": "write"}


async def test_projects_are_created_and_shown(shell: SageCommand) -> None:
    assert (await shell.run("projects create", "desk")).out == "created desk\n"
    listed = (await shell.run("projects")).out.splitlines()
    assert [line.split()[0] for line in listed] == ["name", "demo", "desk"]
    assert "weight" in (await shell.run("projects show", "desk")).out
    assert "queued" in (await shell.run("projects usage", "desk")).out
    taken = await shell.run("projects create", "desk")
    assert taken.code == 6
    assert taken.err.startswith("Error: a project named 'desk' exists already")


async def test_apis_are_added_listed_shown_and_removed(shell: SageCommand, tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    file.write_text(json.dumps(Ledger().document("http://ledger.test")))
    added = await shell.run("apis add", "ledger", str(file), "--token", "env:TOKEN", TOKEN="hush")
    assert added.code == 0, added.err
    assert "add_entry" in added.out
    assert "hush" not in added.out
    assert [line.split()[:3] for line in (await shell.run("apis")).out.splitlines()] == [
        ["name", "project", "has"],
        ["ledger", "demo", "yes"],
    ]
    assert (await shell.run("apis show", "ledger")).out == added.out
    called = await shell.run("apis test", "ledger", "--operation", "list_entries")
    assert (called.code, [line.split()[:2] for line in called.out.splitlines()][1:4]) == (
        0,
        [["ok", "true"], ["status", "200"], ["answer", "[]"]],
    )
    unknown = await shell.run("apis test", "ledger", "--operation", "none")
    assert (unknown.code, "none" in unknown.err) == (6, True)
    assert (await shell.run("apis test", "ledger", "--arguments", "{")).code == 2
    marks = ("--rename", "entries", "--unsafe", "--approval", "always", "--hide", "--json")
    marked = json.loads((await shell.run("apis operation", "ledger", "list_entries", *marks)).out)
    assert (marked["set"], marked["hidden"]) == (["name", "hidden", "safe", "approval"], True)
    assert "entries" in (await shell.run("apis operations", "ledger")).out
    undone = json.loads((await shell.run("apis operation", "ledger", "entries", "--reset", "--json")).out)
    assert (undone["name"], undone["set"]) == ("list_entries", [])
    changes = await shell.run("apis changes", "ledger")
    assert changes.out.split() == ["age", "applied", "added", "removed", "changed", "eased"]
    uploaded = await shell.run("apis changes", "ledger", "--refresh")
    assert (uploaded.code, "was uploaded" in uploaded.err) == (6, True)
    assert (await shell.run("apis remove", "ledger")).out == "removed ledger\n"
    assert (await shell.run("apis remove", "ledger", "--json")).code == 6
    missing = await shell.run("apis add", "ledger", str(tmp_path / "none.json"))
    assert (missing.code, "a URL or a file: " in missing.err) == (2, True)
    unset = await shell.run("apis add", "ledger", str(file), "--token", "env:TOKEN", TOKEN="")
    assert (unset.code, unset.err) == (
        2,
        "Error: the environment variable TOKEN is not set: put the secret there\n",
    )


async def test_skills_are_listed_shown_retired_and_restored(shell: SageCommand) -> None:
    task = await shell.api.submit()
    async with shell.api.sessions.begin() as session:
        source = "def greet(name: str) -> str:\n    return apis.mail.send_mail(to=name)\n"
        skill = await skills.add(session, shell.api.demo.id, new_skill("greet", source, task))
    listed = (await shell.run("skills", "--name", "greet")).out
    assert str(skill.id) in listed
    shown = await shell.run("skills show", str(skill.id))
    assert shown.out.endswith(source)
    assert "evidence" in shown.out
    highlighted = (await shell.run("skills show", str(skill.id), **WIDE)).out
    assert "\x1b[" in highlighted.partition("greet")[0]
    assert (await shell.run("skills retire", str(skill.id))).out == "greet v1 is retired\n"
    assert (await shell.run("skills restore", str(skill.id))).out.startswith("greet v1 is ")
    assert (await shell.run("skills search", "greet iris")).out.splitlines() == ["id  name  version  signature"]


async def test_a_created_key_may_do_tasks_only_unless_a_scope_is_named(shell: SageCommand) -> None:
    created = await shell.run("keys create", "ci", "--project", "demo")
    assert created.code == 0, created.err
    assert created.err == "the key ci, for tasks in demo, is shown only here:\n"
    async with shell.api.sessions() as session:
        key, _ = await keys.by_secret(session, created.out.strip()) or (None, None)
    assert key is not None
    assert (key.name, key.scopes, key.project_id) == ("ci", ["tasks"], shell.api.demo.id)
    made = json.loads((await shell.run("keys create", "boss", "--scope", "admin", "--json")).out)
    assert made["scopes"] == ["admin"]
    assert str(key.id) in (await shell.run("keys")).out
    assert (await shell.run("keys revoke", str(key.id))).out == f"revoked {key.id}\n"
    refused = await shell.run("tasks", SAGE_KEY=created.out.strip())
    assert refused.code == 6
    assert refused.err.startswith("Error: this key is unknown or was revoked: set SAGE_KEY to")
    unknown = await shell.run("keys create", "ci", "--project", "none")
    assert (unknown.code, "'none'" in unknown.err) == (6, True)


async def test_approvals_are_listed_and_decided(shell: SageCommand) -> None:
    await shell.api.submit()
    assert (await shell.run("approvals", "--state", "waiting")).out.splitlines() == [
        "id  state  requested  task id  operation"
    ]
    unknown = await shell.run("approvals refuse", str(uuid4()), "--reason", "no")
    assert (unknown.code, unknown.err.startswith("Error: no approval has the id ")) == (6, True)


async def test_the_admin_key_of_this_machine_is_found_and_sent_to_no_other(
    shell: SageCommand, tmp_path: Path
) -> None:
    secret = shell.api.client.headers["Authorization"].removeprefix("Bearer ")
    write_admin_key(tmp_path, secret)
    assert (tmp_path / "admin.key").stat().st_mode & 0o777 == 0o600
    found = await shell.run("projects", SAGE_KEY="", KEY="", SAGE_DATA_DIR=str(tmp_path))
    assert found.code == 0, found.err
    env = {"KEY": None, "SAGE_KEY": None, "SAGE_DATA_DIR": str(tmp_path), "SAGE_URL": "http://192.0.2.1:8000"}
    away = CliRunner().invoke(main, ["projects"], env=env)
    assert away.exit_code == 2
    assert "no key: set SAGE_KEY to a key of http://192.0.2.1:8000" in away.output
    wrong = CliRunner().invoke(main, ["projects", "--url", "localhost:8000"], env=env)
    assert (wrong.exit_code, "it begins with http://" in wrong.output) == (2, True)


async def test_the_admin_key_of_a_running_server_is_found_from_any_directory(
    shell: SageCommand, tmp_path: Path
) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    data.mkdir()
    write_admin_key(data, shell.api.client.headers["Authorization"].removeprefix("Bearer "))
    elsewhere = {"SAGE_KEY": "", "KEY": "", "HOME": str(home)}
    port = urlsplit(shell.url).port
    assert port is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        with noted_place(port, data):
            assert (await shell.run("projects", **elsewhere)).code == 0
            other = await shell.run("projects", **elsewhere, SAGE_DATA_DIR=str(tmp_path))
            assert (other.code, f"there is no {tmp_path}/admin.key" in other.err) == (2, True), "as it is named"
    assert (await shell.run("projects", **elsewhere)).code == 2, "the server has stopped"


def test_the_commands_know_all_states_and_scopes() -> None:
    assert tuple(tables.TaskState) == TASK_STATES
    assert tuple(tables.SkillState) == SKILL_STATES
    assert tuple(tables.ApprovalState) == APPROVAL_STATES
    assert tuple(Scope) == KEY_SCOPES


def test_ids_are_checked_before_the_server_is_asked() -> None:
    ended = CliRunner().invoke(main, ["tasks", "none"], env={"SAGE_KEY": "x", "SAGE_URL": "http://127.0.0.1:9"})
    assert (ended.exit_code, "'none' is no id of a task" in ended.output) == (2, True)
