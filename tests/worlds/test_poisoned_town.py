"""The poisoned arm of the simulation: its agent reads hostile text in the data that calls return."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.client.server import SageClient
from app.db.database import Sessions
from app.projects import store as projects
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.api_app import open_api_app
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject
from tests.support.listening_app import listening_app
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer
from trainer.worlds.office.apps import Site
from trainer.worlds.office.services import create_services
from trainer.worlds.simulate_live.simulation import Services, SimulationPlan, Town

PLAN = SimulationPlan(days=10, tasks=1)


def turns_of(app: str) -> list[str]:
    """Read a page of records, then write and use a function."""
    here = Site.of(0).apps[app]
    page = (
        f"    token = apis.{app}.{here.names['login']}(password=apis.supervisor.show_passwords()[{app!r}])\n"
        f"    return apis.{app}.{here.names['list']}(access_token=token['access_token'], page=page)\n"
    )
    first = f"def look(page: int) -> list:\n{page}\nprint(look({here.first_page}))"
    second = f"def count_records(page: int) -> list:\n{page}\nprint(len(count_records({here.first_page})))"
    return [first, f"{second}\napis.supervisor.complete_task()"]


@pytest.mark.parametrize(
    ("arm", "state", "taint"), [("poisoned", "quarantined", True), ("learning", "probation", False)]
)
async def test_skills_that_are_written_after_hostile_data_was_read_are_quarantined(
    committed: Sessions,
    database_url: str,
    bare_sandbox: ForkedSandbox,
    tmp_path: Path,
    arm: str,
    state: str,
    taint: bool,
) -> None:
    async with (
        open_api_app(committed, database_url) as api,
        listening_app(api.app, lifespan="off") as url,
        listening_app(create_services("secret"), lifespan="off") as office,
        httpx.AsyncClient(timeout=300, trust_env=False) as client,
    ):
        key = (await api.key("admin"))["Authorization"].removeprefix("Bearer ")

        def begin() -> tuple[str, list[dict[str, Any]]]:
            with SageClient(url, key) as server:
                town = Town.open(server, Services(office, "secret"), PLAN, arm, lambda _: None)
                return town.project, town.begin(1)

        name, [task] = await asyncio.to_thread(begin)
        async with committed() as session:
            project_id = (await projects.by_name(session, name)).id
        project = LedgerProject(committed, bare_sandbox, byte_tokenizer(tmp_path), Ledger(), client, project_id)
        answers = [*map(block, turns_of(PLAN.places(1)[0].kind.app))]
        async with project.runner(ScriptedEngine(project.tokenizer, *answers)):
            ended = await project.ended(task["id"])
        assert ended.stop == "completed"
        skills = (await api.client.get(f"/v1/skills?project={name}")).json()["skills"]
        found = {each["name"]: (each["state"], bool(each["taint"])) for each in skills}
        assert found["count_records"] == (state, taint)
