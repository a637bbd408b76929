"""The gate on a real database and in real practice worlds; the policies are scripts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from app.agent.compact import Compact
from app.agent.limits import RolloutLimits
from app.agent.loop import Agent
from app.db import evaluations, models, releases, runs
from app.db.models import ReleaseState
from app.db.session import Sessions
from app.engine.protocol import Completion, Sampling
from app.errors import EngineError
from app.run_settings import RunSettings
from app.sandbox.host import ForkedSandbox
from tests.exam_hall import ExpertPolicy
from tests.rows import project_row
from tests.scripted import Script, ScriptedEngine, block, byte_tokenizer
from trainer.decide import Rules
from trainer.environment import Scenario, Split
from trainer.environments.office.environment import OfficeEnvironment
from trainer.examiner import Examiner
from trainer.gate import Candidate, Held, hold

SCENARIOS = 4
RULES = Rules(least=SCENARIOS)
NEW = "the-new-adapter"


def lazy(*_: object) -> str:
    return block("apis.supervisor.complete_task()")


class Draw(OfficeEnvironment):
    """Always the same scenarios, so that the expert knows them; remembers what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = super().scenarios("validation", SCENARIOS, seed=1)
        self.asked: list[tuple[Split, int]] = []

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:  # noqa: ARG002
        self.asked.append((split, count))
        return self.drawn[:count]


class Policies:
    """A model server with a script for each model it has loaded."""

    def __init__(self, base: Script, new: Script, engine: Callable[[Script], ScriptedEngine]) -> None:
        self.scripts = {"base": engine(base), NEW: engine(new)}
        self.loaded: dict[str, Path] = {}
        self.before: Callable[[], Awaitable[object]] | None = None  # of the first answer

    async def load_adapter(self, name: str, path: Path) -> None:
        self.loaded[name] = path

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        assert model == "base" or model in self.loaded
        if (before := self.before) is not None:
            self.before = None
            await before()
        return await self.scripts[model].complete(prompt_ids, model=model, sampling=sampling)


@dataclass
class Servers:
    """The model servers of the deployment; may refuse."""

    loaded: list[str] = field(default_factory=list)
    refusal: EngineError | None = None

    async def load_adapter(self, name: str, path: Path) -> None:
        assert path.name == name
        if self.refusal is not None:
            raise self.refusal
        self.loaded.append(name)

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        raise NotImplementedError


class Hearing:
    """A project whose run has left an adapter."""

    def __init__(self, sessions: Sessions, sandbox: ForkedSandbox, directory: Path) -> None:
        self.sessions = sessions
        self.directory = directory
        self.environment = Draw()
        self.expert: Script = ExpertPolicy(self.environment.drawn)
        self.servers = Servers()
        self._sandbox = sandbox
        self._tokenizer = byte_tokenizer(directory)

    async def open(self, **settings: object) -> "Hearing":
        given = {"environment": "office", "gate_scenarios": SCENARIOS} | settings
        async with self.sessions.begin() as session:
            self.project_id = (await project_row(session)).id
            self.settings = msgspec.convert(given, RunSettings)
            self.run_id = (await runs.create(session, self.project_id, self.settings)).id
        return self

    def policies(self, *, base: Script, new: Script) -> Policies:
        return Policies(base, new, lambda script: ScriptedEngine(self._tokenizer, script=script))

    async def hold(self, policies: Policies | None, model: str = NEW) -> Held:
        candidate = Candidate(project_id=self.project_id, run_id=self.run_id, model=model, settings=self.settings)
        examiner = self._examiner(policies) if policies is not None else None
        return await hold(
            self.sessions, candidate, examiner, servers=self.servers, rules=RULES, directory=self.directory
        )

    async def active(self) -> models.Release:
        async with self.sessions() as session:
            return await releases.active(session, self.project_id)

    async def evaluations(self, run_id: UUID) -> Sequence[models.Evaluation]:
        async with self.sessions() as session:
            return await evaluations.of_run(session, run_id)

    def _examiner(self, policies: Policies) -> Examiner:
        limits = RolloutLimits(turns=5, turn_tokens=2000)  # of one byte each
        agent = Agent(policies, self._tokenizer, Compact(), self._sandbox, limits, temperature=1.0)
        return Examiner(agent, policies, self.environment, Path("/adapters"), at_once=4)


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[ForkedSandbox]:
    async with ForkedSandbox() as opened:
        yield opened


@pytest.fixture
async def hearing(sessions: Sessions, sandbox: ForkedSandbox, tmp_path: Path) -> Hearing:
    return await Hearing(sessions, sandbox, tmp_path).open()


async def test_a_better_candidate_is_activated_once_the_servers_have_it(hearing: Hearing) -> None:
    policies = hearing.policies(base=lazy, new=hearing.expert)
    held = await hearing.hold(policies)
    assert (held.number, held.state) == (2, ReleaseState.ACTIVE)
    assert (await hearing.active()).id == held.release_id
    assert policies.loaded == {NEW: Path("/adapters") / NEW}
    assert hearing.servers.loaded == [NEW]
    assert held.evidence["verdict"] == "promote"
    assert held.evidence["difference"]["sgc"]["mean"] == 100
    assert held.evidence["compared_with"] == {"number": 1, "model": "base"}


async def test_both_sit_the_validation_split_greedily(hearing: Hearing) -> None:
    policies = hearing.policies(base=lazy, new=hearing.expert)
    await hearing.hold(policies)
    assert hearing.environment.asked == [("validation", SCENARIOS)]
    samplings = [each for engine in policies.scripts.values() for each in engine.samplings]
    assert {each.temperature for each in samplings} == {0.0}
    assert len(policies.scripts["base"].samplings) == 3 * SCENARIOS


async def test_what_each_could_do_is_in_a_row_and_every_result_in_a_file(hearing: Hearing) -> None:
    await hearing.hold(hearing.policies(base=lazy, new=hearing.expert))
    rows = await hearing.evaluations(hearing.run_id)
    assert [(row.model, row.environment) for row in rows] == [(NEW, "office"), ("base", "office")]
    assert [row.figures["sgc"]["mean"] for row in rows] == [100, 0]
    assert rows[0].figures["library_size"]["mean"] == 1
    assert rows[0].settings["scenarios"] == SCENARIOS
    written = msgspec.json.decode((hearing.directory / "gate.json").read_bytes())
    assert len(written["candidate"]) == len(written["incumbent"]) == 3 * SCENARIOS


async def test_a_worse_candidate_is_rejected_and_nothing_that_serves_changes(hearing: Hearing) -> None:
    held = await hearing.hold(hearing.policies(base=hearing.expert, new=lazy))
    assert held.state is ReleaseState.REJECTED
    assert held.evidence["reason"].startswith("it solves fewer scenarios: SGC -100.0")
    assert (await hearing.active()).number == 1
    assert hearing.servers.loaded == []


async def test_a_run_that_may_not_promote_leaves_a_candidate_that_passed(hearing: Hearing) -> None:
    await hearing.open(promote=False)
    held = await hearing.hold(hearing.policies(base=lazy, new=hearing.expert))
    assert held.state is ReleaseState.CANDIDATE
    assert held.evidence["verdict"] == "promote"
    assert "activate it by hand" in held.evidence["next"]
    assert (await hearing.active()).number == 1


async def test_without_an_environment_the_candidate_waits_and_says_what_to_do(hearing: Hearing) -> None:
    await hearing.open(environment="")
    held = await hearing.hold(None)
    assert held.state is ReleaseState.CANDIDATE
    assert held.evidence["verdict"] == "untested"
    assert "names no environment" in held.evidence["reason"]
    assert "POST /v1/releases" in held.evidence["next"]


@pytest.mark.parametrize(
    ("scenarios", "reason"), [(0, "to hold no gate"), (SCENARIOS - 1, "3 scenarios are too few to tell")]
)
async def test_an_exam_that_could_tell_nothing_is_not_held(hearing: Hearing, scenarios: int, reason: str) -> None:
    await hearing.open(gate_scenarios=scenarios)
    held = await hearing.hold(hearing.policies(base=lazy, new=hearing.expert))
    assert held.state is ReleaseState.CANDIDATE
    assert reason in held.evidence["reason"]
    assert hearing.environment.asked == []


async def test_the_weights_that_serve_already_are_no_candidate(hearing: Hearing) -> None:
    held = await hearing.hold(None, model="base")
    assert held.state is ReleaseState.REJECTED
    assert held.evidence["reason"] == "these are the very weights of release 1, which serves"


async def test_a_release_activated_during_the_exam_is_not_replaced(hearing: Hearing) -> None:
    async def activate_another() -> None:
        async with hearing.sessions.begin() as session:
            other = await releases.propose(session, hearing.project_id, "another")
            await releases.activate(session, other.id)

    policies = hearing.policies(base=lazy, new=hearing.expert)
    policies.before = activate_another
    held = await hearing.hold(policies)
    assert held.state is ReleaseState.CANDIDATE
    assert "release 3 was activated during the exam" in held.evidence["next"]
    assert (await hearing.active()).model == "another"


async def test_an_engine_that_fails_leaves_a_candidate_that_can_be_examined_again(hearing: Hearing) -> None:
    async def fail() -> None:
        raise EngineError("the engine is down")

    policies = hearing.policies(base=lazy, new=hearing.expert)
    policies.before = fail
    with pytest.raises(EngineError, match="is down"):
        await hearing.hold(policies)
    assert (await hearing.active()).number == 1
    held = await hearing.hold(policies)
    assert (held.number, held.state) == (2, ReleaseState.ACTIVE)


async def test_servers_that_refuse_the_adapter_keep_what_they_serve_and_the_verdict_is_kept(
    hearing: Hearing,
) -> None:
    hearing.servers.refusal = EngineError("no room")
    with pytest.raises(EngineError, match="no room"):
        await hearing.hold(hearing.policies(base=lazy, new=hearing.expert))
    assert (await hearing.active()).number == 1
    async with hearing.sessions() as session:
        newest = (await releases.of_project(session, hearing.project_id))[0]
    assert newest.state is ReleaseState.CANDIDATE
    assert newest.evidence is not None
    assert newest.evidence["verdict"] == "promote"


async def test_a_gate_that_has_decided_asks_nobody_again(hearing: Hearing) -> None:
    first = await hearing.hold(hearing.policies(base=lazy, new=hearing.expert))
    again = await hearing.hold(None)
    assert again == first
    assert len(await hearing.evaluations(hearing.run_id)) == 2
