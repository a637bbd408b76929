"""An order to collect trajectories to imitate (from which expert, where, by which rules), and its delivery."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec

from app.agent.prompt import choose_profile
from app.engine.tokenizer import ChatTokenizer
from app.errors import InvalidError
from app.sandbox.forked_sandbox import ForkedSandbox
from app.settings import Settings
from trainer.environment import Scenario, Split, open_environment
from trainer.environments.office.expert import FLAWLESS, Faults
from trainer.environments.office.office_environment import OfficeEnvironment
from trainer.environments.office.scripted_rollouts import Stage
from trainer.rollouts.episode import Episode
from trainer.sft_data.chat_endpoint import ChatEndpoint
from trainer.sft_data.chat_expert import ChatExpert
from trainer.sft_data.collection_journal import Entry, Journal
from trainer.sft_data.rejection_sampling import Harvest, Play
from trainer.sft_data.selection import Rule


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be in the file. What another order collects never gets into the same."""

    expert: str = ""  # the URL of a chat endpoint; "": the scripted expert
    model: str = ""  # its name there
    max_tokens: int = 0  # per turn; 0: as many as the endpoint gives
    faults: Faults = FLAWLESS  # of the scripted expert
    environment: str
    split: Split = "train"
    scenarios: int = 100
    seed: int = 0
    temperatures: tuple[float, ...] = (0.0,)
    keep: Rule = "chain"
    profile: str = ""  # of the policy that will imitate; "": the one of its card


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How to go about it. It may differ from call to call."""

    key: str = ""  # of the endpoint
    at_once: int = 8  # scenarios
    timeout: float = 120.0  # seconds per answer
    patience: float = 360.0  # seconds for which an endpoint that is overloaded, slow or away is asked again


async def deliver(
    order: Order, effort: Effort, settings: Settings, out: Path, report: Callable[[int], object]
) -> Entry:
    """Collect what the order says and write it to `out`; called again, go on where it was. The sum of it all.

    `report` hears how many scenarios are done. Raises InvalidError for an order that does not fit, EngineError
    where the expert does not answer.
    """
    tokenizer = ChatTokenizer.load(settings.model_dir)
    profile = choose_profile(order.profile or settings.prompt_profile, tokenizer.card)
    order = msgspec.structs.replace(order, profile=profile.name)
    environment = open_environment(order.environment)
    scenarios = environment.scenarios(order.split, order.scenarios, order.seed)
    journal = Journal(out, msgspec.to_builtins(order))
    report(len(journal.entries))
    async with ForkedSandbox() as sandbox:
        stage = Stage(environment=environment, tokenizer=tokenizer, sandbox=sandbox, profile=profile)
        async with _player(order, effort, stage) as play:
            harvest = Harvest(
                environment=environment,
                profile=profile,
                play=play,
                temperatures=order.temperatures,
                rule=order.keep,
                source=order.expert or "scripted",
                at_once=effort.at_once,
            )
            try:
                await harvest.collect(scenarios, journal, lambda: report(1))
            finally:
                journal.leave()
    return journal.finish()


@asynccontextmanager
async def _player(order: Order, effort: Effort, stage: Stage) -> AsyncIterator[Play]:
    if not order.expert:
        yield _scripted(order, stage)
        return
    endpoint = ChatEndpoint(
        order.expert, order.model, key=effort.key, timeout=effort.timeout, max_tokens=order.max_tokens
    )
    async with endpoint:
        expert = ChatExpert(
            endpoint=endpoint,
            environment=stage.environment,
            tokenizer=stage.tokenizer,
            profile=stage.profile,
            sandbox=stage.sandbox,
            patience=effort.patience,
        )
        yield expert.play


def _scripted(order: Order, stage: Stage) -> Play:
    if not isinstance(stage.environment, OfficeEnvironment):
        raise InvalidError(f"the scripted expert knows the office alone, not {order.environment}")

    async def play(scenario: Scenario, temperature: float) -> list[Episode]:  # noqa: ARG001  it has none
        return await stage.play(scenario, order.faults, Random(f"demonstrate {order.seed} {scenario.id}"))

    return play
