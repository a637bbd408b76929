"""A check that must log in before it can read, in the office environment."""

import pytest

from app.apis.calls.gateway import Gateway
from app.base.errors import InvalidError
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from app.tasks.verification import score
from trainer.worlds.office.apps import AppSite
from trainer.worlds.office.environment import OfficeEnvironment, OfficeWorld

_READ = """
password = apis.supervisor.show_passwords()["mail"]
token = apis.mail.{login}(password=password)["access_token"]
rows = apis.mail.{list}(access_token=token, page={page})
"""


async def test_a_check_may_log_in_to_read_but_not_to_change_anything() -> None:
    environment = OfficeEnvironment()
    scenario = environment.scenarios("train", 1, 7)[0]
    async with ForkedSandbox(bwrap=False) as sandbox, environment.open(scenario, scenario.tasks[0]) as world:
        mail = world.site.apps["mail"]
        read = _READ.format(**mail.names, page=mail.first_page)
        assert await _score(f"{read}score = 0.5 if rows and answer == 3 else 0.0", sandbox, world) == 0.5
        change = f"{read}apis.mail.{_act(mail)}(access_token=token, id=rows[0]['id'])\nscore = 1"
        with pytest.raises(InvalidError, match="only reading is allowed"):
            await _score(change, sandbox, world)


async def _score(code: str, sandbox: ForkedSandbox, world: OfficeWorld) -> float:
    gateway = Gateway(world.catalog, world.client, variables=world.task.variables, read_only=True)
    return await score(code, 3, sandbox=sandbox, gateway=gateway, limits=SessionLimits(), now=world.now)


def _act(app: AppSite) -> str:
    return app.names["prepare"]
