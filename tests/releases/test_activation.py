"""What activating a release changes, as REST, the command line and the console state it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.database import Sessions
from app.db.tables import SkillState
from app.releases import store as releases
from app.skills import moves
from app.skills import store as skills
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.console_pages import read_page
from tests.support.every_row import every_row
from tests.support.http_server import served
from tests.support.release_steps import activate
from tests.support.rows import new_skill
from tests.support.sage_command import SageCommand
from tests.support.terminal_dialog import dialog

NO_MOVES: dict[str, list[Any]] = {"restored": [], "superseded": [], "withdrawn": [], "deleted": []}


@pytest.fixture
async def api(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url, directory=tmp_path) as opened:
        yield opened


@pytest.fixture
async def shell(api: ApiApp) -> AsyncIterator[SageCommand]:
    async with served(api) as client:
        yield SageCommand(api, str(client.base_url))


async def promoted(api: ApiApp) -> tuple[UUID, UUID]:
    """Release 1 served with a skill, and release 2 serves with a later version and one more."""
    async with api.sessions.begin() as session:
        first = await releases.active(session, api.demo.id)
        await learn(session, api, "greet")
        second = await releases.propose(session, api.demo.id, "f00d")
        await activate(session, second)
        await learn(session, api, "greet", "return 2")
        await learn(session, api, "count")
        return first.id, second.id


async def learn(session: AsyncSession, api: ApiApp, name: str, body: str = "...") -> tables.Skill:
    return await skills.add(session, api.demo.id, new_skill(name, f"def {name}(): {body}"))


async def offered(api: ApiApp) -> list[tuple[str, int]]:
    async with api.sessions() as session:
        found = await skills.page(session, skills.SkillFilter(project_id=api.demo.id, state=SkillState.ACTIVE))
    return sorted((each.name, each.version) for each in found.items)


async def changes_of(api: ApiApp, release_id: UUID, query: str = "") -> Any:
    answer = await api.client.get(f"/v1/releases/{release_id}/activate{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def done_by(api: ApiApp, release_id: UUID, query: str = "") -> Any:
    answer = await api.client.post(f"/v1/releases/{release_id}/activate{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()["changes"]


def named(changes: Any) -> dict[str, list[str]]:
    return {
        how: [f"{each['name']} v{each['version']}" for each in found] for how, found in changes["skills"].items()
    }


async def test_what_an_activation_would_change_is_what_it_changes(api: ApiApp) -> None:
    first, second = await promoted(api)
    planned = await changes_of(api, first)
    assert await offered(api) == [("count", 1), ("greet", 2)], "a question changes nothing"
    assert (planned["replaces"], planned["rolls_back"]) == (2, True)
    assert planned["model"] == {"from": "f00d", "to": "base"}
    assert named(planned) == NO_MOVES | {
        "restored": ["greet v1"],
        "superseded": ["greet v2"],
        "withdrawn": ["count v1"],
    }
    assert await done_by(api, first) == planned
    assert await offered(api) == [("greet", 1)]
    forward = await changes_of(api, second)
    assert (forward["replaces"], forward["rolls_back"]) == (1, False), "the newer one is no roll-back"
    assert await done_by(api, second) == forward
    assert await offered(api) == [("count", 1), ("greet", 2)]


async def test_the_skills_of_a_rejected_release_that_is_activated_all_the_same_are_announced(api: ApiApp) -> None:
    first, second = await promoted(api)
    await done_by(api, first)
    async with api.sessions.begin() as session:
        row = await releases.get(session, second)
        row.state, row.evidence = tables.ReleaseState.REJECTED, {"verdict": "reject"}
        for each in (await skills.page(session, skills.SkillFilter(project_id=api.demo.id))).items:
            if (each.name, each.version) != ("greet", 1):
                each.release_id, each.moved_by = second, moves.CANARY
    planned = await changes_of(api, second)
    assert named(planned)["restored"] == ["count v1", "greet v2"]
    assert await done_by(api, second, "?allow_rejected=true") == planned
    assert await offered(api) == [("count", 1), ("greet", 2)]


async def test_skills_that_are_to_stay_are_stated_to_stay(api: ApiApp) -> None:
    first, _ = await promoted(api)
    planned = await changes_of(api, first, "?skills=keep")
    assert (named(planned), planned["model"]) == (NO_MOVES, {"from": "f00d", "to": "base"})
    assert await done_by(api, first, "?skills=keep") == planned
    assert await offered(api) == [("count", 1), ("greet", 2)]


async def test_activating_the_active_release_is_stated_to_change_nothing(api: ApiApp) -> None:
    _, second = await promoted(api)
    planned = await changes_of(api, second)
    assert (planned["replaces"], planned["model"], named(planned)) == (None, None, NO_MOVES)
    assert await done_by(api, second) == planned


async def test_what_activating_a_release_changes_is_shown_to_its_project_alone(api: ApiApp) -> None:
    first, _ = await promoted(api)
    other = await api.key("admin", project_id=(await api.project("other")).id)
    answer = await api.client.get(f"/v1/releases/{first}/activate", headers=other)
    assert (answer.status_code, problem(answer)["error"]) == (404, "NotFoundError")


async def test_a_command_in_a_pipe_says_what_it_changed_and_does_not_ask(shell: SageCommand) -> None:
    await promoted(shell.api)
    ended = await shell.run("releases", "1", "--activate")
    assert ended.code == 0, ended.err
    assert ended.err.splitlines() == [
        "rolls back from release 2 to release 1",
        "  weights: f00d -> base",
        "  skills offered again: greet v1",
        "  skills replaced by the version that returns: greet v2",
        "  skills withdrawn: count v1",
        "  APIs: the same",
        "  prompt: the same",
    ]
    again = await shell.run("releases", "1", "--activate")
    assert again.err == "release 1 is active already: nothing changes\n"


async def test_a_command_keeps_the_skills_on_request(shell: SageCommand) -> None:
    await promoted(shell.api)
    ended = await shell.run("releases", "1", "--activate", "--keep-skills")
    assert "  skills: the same" in ended.err.splitlines()
    assert await offered(shell.api) == [("count", 1), ("greet", 2)]
    refused = await shell.run("releases", "1", "--keep-skills")
    assert (refused.code, "--keep-skills and --yes need --activate" in refused.err) == (2, True)


async def test_a_terminal_shows_what_will_change_and_asks_unless_told_not_to(shell: SageCommand) -> None:
    first, _ = await promoted(shell.api)
    code, seen = await dialog(shell, ["releases", "1", "--activate"], {"go on? [y/N]: ": "n"})
    assert (code, "skills withdrawn: count v1" in seen) == (1, True)
    assert len(await offered(shell.api)) == 2
    code, seen = await dialog(shell, ["releases", "1", "--activate"], {"go on? [y/N]: ": "y"})
    assert (code, seen.count("skills withdrawn: count v1")) == (0, 1), seen
    assert await offered(shell.api) == [("greet", 1)]
    code, seen = await dialog(shell, ["releases", "2", "--activate", "--yes"], {})
    assert (code, "go on?" in seen, "release 2 replaces release 1" in seen) == (0, False, True)
    assert (await changes_of(shell.api, first))["replaces"] == 2


async def test_the_list_says_since_when_of_the_active_release_alone(shell: SageCommand) -> None:
    await promoted(shell.api)
    head, *rows = (await shell.run("releases")).out.splitlines()
    at = head.index("active since")
    assert {row.split()[1]: row[at:][:1] == "-" for row in rows} == {"active": False, "retired": True}


async def test_the_console_names_a_button_for_what_it_does(api: ApiApp) -> None:
    first, second = await promoted(api)
    async with api.sessions.begin() as session:
        third = (await releases.propose(session, api.demo.id, "beef")).id
    for each in (first, second):  # over REST, so that the log has both
        await done_by(api, each)
    one, two, three = (f"/console/releases/{each}" for each in (first, second, third))
    with every_row() as row:
        for serving, address, label, others in (
            (2, two, "", ()),
            (2, one, "Roll back to release 1…", ()),
            (2, f"{one}/activate", "Roll back to release 1</button>", ()),
            (2, three, "Activate release 3…", ("Roll back to",)),
            (1, "/console/releases", "Activate release 2 again…", ("Roll back to",)),
            (1, two, "Activate release 2 again…", ("Roll back to",)),
            (1, f"{two}/activate", "Activate release 2 again</button>", ("Roll back to",)),
            (1, three, "Activate release 3…", ("Roll back to",)),
        ):
            await done_by(api, {1: first, 2: second}[serving])
            with row(serving, address):
                text = await read_page(api, address, "tasks", "skills", "admin")
                assert label in text
                assert not [each for each in others if each in text]


async def test_advice_about_a_candidate_goes_once_it_serves(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        release = await releases.propose(session, api.demo.id, "f00d")
        await releases.record_evidence(session, release.id, {"reason": "no exam", "next": "activate it by hand"})
    shown = (await api.client.get(f"/v1/releases/{release.id}")).json()
    assert shown["evidence"] == {"reason": "no exam", "next": "activate it by hand"}
    assert "What to do: activate it by hand" in await read_page(api, f"/console/releases/{release.id}", "tasks")
    await done_by(api, release.id)
    shown = (await api.client.get(f"/v1/releases/{release.id}")).json()
    assert shown["evidence"] == {"reason": "no exam"}
    assert "What to do" not in await read_page(api, f"/console/releases/{release.id}", "tasks")
