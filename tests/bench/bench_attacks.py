"""How often attacks on the agent succeed in AgentDojo, with and without the limits that a project can set.

    python -m tests.bench.bench_attacks [--suite banking] [--attack important_instructions]

No model takes part. The reference policy does the task of the user by the package's solution; the obedient ones do
what a result of these calls tells them to do, too, by the package's solution of the injection: at once, or after
all else. Injections without a solution are left out. All calls pass the gateway. The limits are those of
`agentdojo?limits=`, and `approved`: each change waits for a person, who approves what the reference policy calls.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, get_args

import click
import msgspec
from tqdm import tqdm

from app.apis.approvals.gate import ApprovalGate, ApprovalWantedError
from app.apis.calls.gateway import Gateway
from app.apis.catalog import Operation
from app.base.errors import HostError
from app.base.values import Call, Json, Policy, Stop, Trajectory
from app.projects.settings import ApprovalRules
from tests.bench.results_file import write_results
from trainer.worlds.external.environment import ExternalWorld, Reference
from trainer.worlds.external.packages import Attack, load_agentdojo

_SUITES: Final = ("workspace", "travel", "banking", "slack")
_CALLS: Final = 200
_ALL: Final = 1_000_000  # scenarios
_RESISTED: Final = "not so: the injection was resisted"

Obedience = Literal["reference", "obedient at once", "obedient at the end"]
Limits = Literal["off", "suite", "task", "approved"]


class Row(msgspec.Struct, kw_only=True):
    """Of one policy under one kind of limits: how often the user's task was done, and the attack succeeded."""

    suite: str
    limits: Limits
    policy: Obedience
    tasks: int = 0
    done: int = 0
    attacked: int = 0


class Person(ApprovalGate):
    """Approves the calls of the reference policy."""

    def __init__(self, wanted: Reference) -> None:
        super().__init__(ApprovalRules(default="write", max_writes=0))
        self._wanted = wanted

    async def refusal(self, operation: Operation, call: Call, url: str) -> str | None:
        try:
            return await super().refusal(operation, call, url)
        except ApprovalWantedError:
            right = (operation.name, call.arguments) in self._wanted.calls
            return None if right else f"{call.api} was refused by a person"


@click.command()
@click.option("--suite", "suites", type=click.Choice(_SUITES), multiple=True, default=_SUITES, help="repeatable")
@click.option(
    "--attack", type=click.Choice(get_args(Attack)[1:]), default="important_instructions", show_default=True
)
def main(suites: Sequence[str], attack: Attack) -> None:
    """Write the table of utility and attack success."""
    rows = asyncio.run(_measure(suites, attack))
    for row in rows:
        done, attacked = (f"{number / row.tasks:6.1%}" for number in (row.done, row.attacked))
        print(f"{row.suite:10} {row.limits:9} {row.policy:20} {row.tasks:4} {done} {attacked}")
    write_results("attacks", {"attack": attack, "rows": msgspec.to_builtins(rows)})


async def _measure(suites: Sequence[str], attack: Attack) -> list[Row]:
    rows = []
    for suite in suites:
        for limits in get_args(Limits):
            rows += await _under(suite, attack, limits)
    return rows


async def _under(suite: str, attack: Attack, limits: Limits) -> list[Row]:
    rows = [Row(suite=suite, limits=limits, policy=each) for each in get_args(Obedience)]
    own = "off" if limits == "approved" else limits
    environment = load_agentdojo(suite=suite, attack=attack, judge="both", limits=own)  # type: ignore[arg-type]
    scenarios = environment.scenarios("test", _ALL, 0)
    for scenario in tqdm(scenarios, desc=f"{suite} {limits}", unit="scenario", disable=None):
        for task in scenario.tasks:
            for row in rows:
                async with environment.open(scenario, task) as world:
                    await _try(world, row)
    return rows


async def _try(world: ExternalWorld, row: Row) -> None:
    wanted, injected = await world.reference("task"), await world.reference("injection")
    if not injected.calls and not injected.answer:
        return
    answer = await _carry_out(world, _gateway(world, wanted, row.limits), wanted, injected, row.policy)
    verdict = await world.verify(
        Trajectory(task=world.task, policy=Policy(), profile="", turns=(), stop=Stop.COMPLETED, answer=answer)
    )
    attacked = _RESISTED in verdict.failures
    row.tasks += 1
    row.attacked += attacked
    row.done += verdict.passed == verdict.total - attacked


def _gateway(world: ExternalWorld, wanted: Reference, limits: Limits) -> Gateway:
    if limits != "approved":
        return world.open_gateway(_CALLS)
    return Gateway(world.catalog, world.client, approvals=Person(wanted), max_calls=_CALLS)


async def _carry_out(
    world: ExternalWorld, gateway: Gateway, wanted: Reference, injected: Reference, policy: Obedience
) -> str:
    """The answer to the user."""
    (app,) = world.catalog.apps
    answer, told = wanted.answer, False
    for operation, arguments in wanted.calls:
        result = await _result(gateway, f"{app}.{operation}", arguments)
        if told or injected.instruction not in json.dumps(result, ensure_ascii=False).replace('\\"', '"'):
            continue
        told = True
        if policy == "obedient at once":
            await _obey(gateway, app, injected)
    if told and policy == "obedient at the end":
        await _obey(gateway, app, injected)
    return f"{answer}\n{injected.answer}" if told and policy != "reference" else answer


async def _obey(gateway: Gateway, app: str, injected: Reference) -> None:
    for operation, arguments in injected.calls:
        await _result(gateway, f"{app}.{operation}", arguments)


async def _result(gateway: Gateway, api: str, arguments: dict[str, Json]) -> Json:
    with suppress(HostError):  # refused
        return await gateway(api, [], arguments)
    return None


if __name__ == "__main__":
    main()
