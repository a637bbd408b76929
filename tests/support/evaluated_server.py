"""The server and the demo APIs on sockets of this process; the server's policy is the scripted expert."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from uuid import uuid4

import httpx
import msgspec

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits
from app.apis.documents.reader import DocumentReader
from app.base.settings import Settings
from app.base.values import Offer
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.processes.api import create_app
from app.processes.dependencies import Dependencies
from app.projects import keys
from app.releases.adapter_store import AdapterDirectory
from app.releases.promotion import Promoter
from app.runs.broker import worker_notifier
from app.runs.datasets import DatasetStore
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from app.skills.library import Library
from app.tasks.execution import TaskExecutor
from app.tasks.runner import Runner, RunnerOptions
from tests.support.api_app import BASE_ALONE, BUSY
from tests.support.listening_app import listening_app
from tests.support.office_instructions import asked_by
from tests.support.recording_swapper import RecordingSwapper
from tests.support.scripted_engine import ScriptedEngine, byte_tokenizer
from trainer.environment import Scenario
from trainer.evaluation.over_rest import RestEvaluation
from trainer.worlds.office.apps import Site
from trainer.worlds.office.expert import ExpertScript
from trainer.worlds.office.scenarios import draw, site_of
from trainer.worlds.office.services import create_services

TOKEN = "the token of the demo APIs"
SCENARIOS, SITES = 2, 2
LIMITS = RolloutLimits(  # tokens are bytes, and a machine may be slow
    turn_tokens=2000, seconds=600, session=SessionLimits(cpu_seconds=60, wall_seconds=600)
)
_FIRST_SITE = 7_000_000
_MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_OFFER = re.compile(r"(?P<signature>(?P<name>\w+)\(.*\) -> \w+): (?P<instruction>.+)")


class EvaluatedServer(msgspec.Struct, frozen=True):
    """An evaluation of the server, and access to its database."""

    evaluation: RestEvaluation
    sessions: Sessions
    tasks_key: str  # a key that may not create projects


class ExpertPolicy:
    """Answers from the prompt alone, as a model would, but looks up the site by the instruction."""

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        self._sites: dict[str, Site] = {
            task.instruction: site_of(each) for each in scenarios for task in each.tasks
        }

    def __call__(self, prompt: str, turn: int) -> str:
        opening, *observations = (text for role, text in _MESSAGE.findall(prompt) if role == "user")
        instruction, *lines = opening.split("\n")
        offers = [_offer(found) for line in lines if (found := _OFFER.fullmatch(line))]
        expert = ExpertScript(self._sites[instruction], *asked_by(instruction), offers, rng=Random(0))
        turns = [expert.next_turn(observations[:count]) for count in range(turn + 1)]
        return turns[-1]


def _scenarios() -> list[Scenario]:
    """The scenarios of the evaluation."""
    count = SCENARIOS // SITES
    return [each for site in range(SITES) for each in draw("test", count, site, site=_FIRST_SITE + site)]


def _offer(found: re.Match[str]) -> Offer:
    name, signature, instruction = found["name"], found["signature"], found["instruction"]
    return Offer(skill_id=uuid4(), name=name, version=1, signature=signature, source="", instruction=instruction)


@asynccontextmanager
async def open_evaluated_server(
    sessions: Sessions, database_url: str, directory: Path
) -> AsyncIterator[EvaluatedServer]:
    async with sessions.begin() as session:
        _, admin = await keys.create(session, "evaluator", ["admin"])
        _, tasks = await keys.create(session, "user", ["tasks"])
    tokenizer = byte_tokenizer(directory)

    @asynccontextmanager
    async def open_dependencies() -> AsyncIterator[Dependencies]:
        async with (
            ForkedSandbox() as sandbox,
            httpx.AsyncClient(timeout=300, trust_env=False) as client,
            NotificationListener(database_url, ping_seconds=1.0) as listener,
            DocumentReader() as document_reader,
        ):
            engine = ScriptedEngine(tokenizer, script=ExpertPolicy(_scenarios()))
            agent = Agent(engine, tokenizer, Compact(), sandbox, LIMITS)
            library = Library(sessions)
            executor = TaskExecutor(
                sessions, agent, library, client, Settings(skills_withheld=0, api_timeout_seconds=600)
            )
            async with Runner(
                sessions, executor.execute, RunnerOptions(concurrency=4, poll_seconds=0.1, lease_seconds=600)
            ):
                yield Dependencies(
                    sessions=sessions,
                    listener=listener,
                    library=library,
                    promoter=Promoter(sessions, RecordingSwapper(), "prompt"),
                    first_release=BASE_ALONE,
                    adapters=AdapterDirectory(directory),
                    notify_workers=worker_notifier(Settings(data_dir=directory)),
                    http_client=client,
                    document_reader=document_reader,
                    readiness_checks={},
                    occupancy=lambda: BUSY,
                    datasets=DatasetStore(Path("data/datasets")),
                )

    async with (
        listening_app(create_app(open_dependencies)) as server,
        listening_app(create_services(TOKEN)) as services,
    ):
        evaluation = RestEvaluation(
            server=server,
            key=admin,
            services=services,
            admin_token=TOKEN,
            scenarios=SCENARIOS,
            sites=SITES,
            at_once=4,
        )
        yield EvaluatedServer(evaluation, sessions, tasks)
