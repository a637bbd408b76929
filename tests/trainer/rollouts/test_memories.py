"""What tasks are shown of those before them: workflows, insights, a playbook, and skills written afterwards."""

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from litestar import Litestar, Request, post
from litestar.params import JSONBody

from app.agent.prompts import Compact, Full
from app.agent.rollout import Agent, RolloutLimits
from app.base.errors import InvalidError
from app.base.run_settings import RunKind, RunSettings, check_runnable
from app.base.values import Policy, Stop, Task, Trajectory
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills.in_memory_library import InMemoryLibrary
from tests.support.evaluated_server import ExpertPolicy
from tests.support.listening_app import listening_app
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer
from trainer.environment import Scenario
from trainer.evaluation.local import evaluate_scenarios
from trainer.rollouts.episode import EpisodeRunner, scenario_chain
from trainer.rollouts.memories import Memory, open_memory
from trainer.worlds.office.environment import OfficeEnvironment

_CODE = re.compile(r"```python\n(.*?)\n```\nOutput", re.DOTALL)


class WritingPolicy:
    """Does tasks as the expert does. About a task that was done it writes a note, or its code again."""

    def __init__(self, scenarios: Sequence[Scenario], note: str = "") -> None:
        self._expert = ExpertPolicy(scenarios)
        self._note = note
        self.about: list[str] = []

    def __call__(self, prompt: str, turns: int) -> str:
        if "You are shown a task that was solved" in prompt or "You turn a task" in prompt:
            self.about.append(prompt)
            return self._note or block("\n".join(_CODE.findall(prompt)))
        return str(self._expert(prompt, turns))


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[ForkedSandbox]:
    async with ForkedSandbox() as opened:
        yield opened


@pytest.fixture
def scenarios() -> Sequence[Scenario]:
    return OfficeEnvironment().scenarios("test", 2, seed=5)


def runner(sandbox: ForkedSandbox, directory: Path, policy: WritingPolicy, **options: Any) -> EpisodeRunner:
    tokenizer = byte_tokenizer(directory)
    engine = ScriptedEngine(tokenizer, script=policy)
    limits = RolloutLimits(turns=5, turn_tokens=2000)  # of one byte each
    agent = Agent(engine, tokenizer, Compact(), sandbox, limits)
    return EpisodeRunner(agent, OfficeEnvironment(), Policy("wise"), **options)


def prompts(episode_runner: EpisodeRunner) -> list[str]:
    engine = episode_runner.agent.engine
    assert isinstance(engine, ScriptedEngine)
    return engine.prompts


def opened(text: str) -> Memory:
    new = open_memory(text)
    assert new is not None
    return new()


def done(instruction: str, *, success: bool) -> tuple[Trajectory, bool]:
    stop = Stop.COMPLETED if success else Stop.STUCK
    task = Task(uuid4(), instruction)
    trajectory = Trajectory(task=task, policy=Policy(), profile="", turns=(), stop=stop, answer=None)
    return trajectory, success


class Writer:
    """Gives these replies, one after the other."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.materials: list[str] = []

    async def __call__(self, instructions: str, material: str) -> str:
        assert instructions
        self.materials.append(material)
        return self.replies.pop(0)


async def test_tasks_are_shown_the_workflows_of_those_before_them(
    sandbox: ForkedSandbox, tmp_path: Path, scenarios: Sequence[Scenario]
) -> None:
    policy = WritingPolicy(scenarios, "log in, read all pages, then change {names}")
    episode_runner = runner(sandbox, tmp_path, policy)
    chain = scenario_chain(scenarios[0])
    episodes = await episode_runner.run_chain(chain, None, range(3), memory=opened("workflows"))
    assert [each.verdict.success for each in episodes] == [True, True, True]
    assert len(policy.about) == 3
    assert chain.tasks[0].instruction in policy.about[0]
    first = [each for each in prompts(episode_runner) if each.count("<|im_start|>assistant") == 1]
    shown = [each.count("remembered:\nlog in") for each in first if "You turn" not in each]
    assert shown == [0, 1, 1]
    assert episodes[2].trajectory.task.memory.count("log in") == 2


async def test_workflows_by_rule_are_the_code_that_ran(
    sandbox: ForkedSandbox, tmp_path: Path, scenarios: Sequence[Scenario]
) -> None:
    policy = WritingPolicy(scenarios)
    episodes = await runner(sandbox, tmp_path, policy).run_chain(
        scenario_chain(scenarios[0], 2), None, range(2), memory=opened("workflows?writer=rule&most=1")
    )
    shown = episodes[1].trajectory.task.memory
    assert shown.startswith(f"{episodes[0].trajectory.task.instruction}:\n")
    assert "complete_task" in shown
    assert policy.about == []


async def test_chains_share_no_memory(
    sandbox: ForkedSandbox, tmp_path: Path, scenarios: Sequence[Scenario]
) -> None:
    episode_runner = runner(sandbox, tmp_path, WritingPolicy(scenarios))
    new = open_memory("workflows?writer=rule")
    await evaluate_scenarios(episode_runner, [scenarios[0]] * 2, library=False, new_memory=new)
    first = [each for each in prompts(episode_runner) if each.count("<|im_start|>assistant") == 1]
    assert sorted("remembered:" in each for each in first) == [False] * 2 + [True] * 4


async def test_a_failed_task_leaves_no_workflow() -> None:
    memory, writer = opened("workflows"), Writer("never asked for")
    await memory.learn(*done("archive the mails", success=False), writer)
    assert (await memory.recall(Task(uuid4(), "archive the mails")), writer.materials) == ("", [])


async def test_insights_come_from_a_failure_beside_a_success_and_are_voted_on() -> None:
    memory = opened("insights?most=2")
    writer = Writer("ADD: read all pages\nADD: log in first", "AGREE 2\nREMOVE 1", "REMOVE 1\nADD: count twice")
    task = Task(uuid4(), "archive the mails")
    await memory.learn(*done("pin the notes", success=False), writer)
    assert writer.materials == []
    await memory.learn(*done("archive the mails", success=True), writer)
    assert "A task that failed:\nTask: pin the notes" in writer.materials[0]
    assert await memory.recall(task) == "1. read all pages\n2. log in first"
    await memory.learn(*done("archive the mails", success=True), writer)
    assert "A task that failed" not in writer.materials[1]
    await memory.learn(*done("archive the mails", success=True), writer)
    assert await memory.recall(task) == "1. log in first\n2. count twice"


async def test_a_playbook_grows_with_every_task_and_loses_what_harmed() -> None:
    memory = opened("playbook")
    writer = Writer("ADD: guess\nADD: look first", "HARMFUL 1\nHARMFUL 1\nHELPFUL 2\nADD: look first")
    await memory.learn(*done("archive the mails", success=False), writer)
    assert "A task that failed (stuck):" in writer.materials[0]
    await memory.learn(*done("archive the mails", success=True), writer)
    assert await memory.recall(Task(uuid4(), "any")) == "1. look first"


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_skill_written_afterwards_has_to_do_the_task_again(
    sandbox: ForkedSandbox, tmp_path: Path, scenarios: Sequence[Scenario], guarded: bool
) -> None:
    library = InMemoryLibrary()
    episode_runner = runner(sandbox, tmp_path, WritingPolicy(scenarios), post_hoc=True, guard_written=guarded)
    episodes = await episode_runner.run_chain(scenario_chain(scenarios[0]), library, range(3))
    assert [len(each.trajectory.offered) for each in episodes] == [0, 1, 1]
    assert len(episodes[0].made) == 1
    assert not any(each.creditable for each in episodes), "the policy wrote none in its tasks"
    assert bool(episodes[0].manifests) == guarded


async def test_a_skill_that_does_not_do_the_task_again_is_not_kept(
    sandbox: ForkedSandbox, tmp_path: Path, scenarios: Sequence[Scenario]
) -> None:
    library = InMemoryLibrary()
    wrong = WritingPolicy(scenarios, block("def nothing(n: int) -> int:\n    return n\n\nprint(nothing(1))"))
    episode_runner = runner(sandbox, tmp_path, wrong, post_hoc=True)
    await episode_runner.run_chain(scenario_chain(scenarios[0], 2), library, range(2))
    assert (len(wrong.about), len(library)) == (2, 0)


async def test_a_policy_that_cannot_read_an_episode_writes_nothing(
    sandbox: ForkedSandbox, tmp_path: Path, scenarios: Sequence[Scenario]
) -> None:
    episode_runner = runner(sandbox, tmp_path, WritingPolicy(scenarios, "a note"))
    agent = replace(episode_runner.agent, served_length=lambda: 2500)
    assert await replace(episode_runner, agent=agent).write("You turn a task", "x" * 600) == ""
    assert await episode_runner.write("You turn a task", "x" * 600) == "a note"


async def test_another_model_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRITER_KEY", "secret")
    asked = []

    @post("/v1/chat/completions")
    async def complete(data: JSONBody[dict[str, Any]], request: Request[Any, Any, Any]) -> dict[str, Any]:
        asked.append((data["model"], request.headers["authorization"]))
        message = {"role": "assistant", "content": "a workflow of another\n"}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    async with listening_app(Litestar([complete])) as url:
        memory = opened(f"workflows?url={url}/v1&model=big&key_env=WRITER_KEY")
        await memory.learn(*done("archive the mails", success=True), Writer())
    assert asked == [("big", "Bearer secret")]
    assert await memory.recall(Task(uuid4(), "archive the mails")) == "a workflow of another"


def test_the_full_prompt_shows_what_was_remembered() -> None:
    task = Task(uuid4(), "archive the mails", memory="1. look first")
    assert "What earlier tasks taught:\n1. look first\n\nTask: archive" in Full().opening(task, [], [])[1].content


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("dreams", "sage.memories has no 'dreams', it has insights, playbook, workflows"),
        ("workflows?writer=ghost", "writer=ghost: it is model or rule"),
        ("insights?url=http://x", "needs the option model"),
        ("playbook?most=0", "most=0"),
    ],
)
def test_a_memory_that_does_not_fit_is_refused(text: str, error: str) -> None:
    with pytest.raises(InvalidError, match=error):
        open_memory(text)


def test_a_run_may_name_registered_memories_only() -> None:
    with pytest.raises(InvalidError, match="memory='os:system'"):
        check_runnable(RunSettings(kind=RunKind.ROLLOUT, environment="office", memory="os:system"))
    for option in ("url=http://x", "key_env=SAGE_SECRET_KEY", "model=m"):
        memory = f"workflows?most=2&{option}"
        with pytest.raises(
            InvalidError, match=f"the policy itself writes it, so leave out {option.partition('=')[0]}"
        ):
            check_runnable(RunSettings(kind=RunKind.ROLLOUT, environment="office", memory=memory))
    with pytest.raises(InvalidError, match="has no 'dreams'"):
        check_runnable(RunSettings(kind=RunKind.ROLLOUT, environment="office", memory="dreams?most=1"))
