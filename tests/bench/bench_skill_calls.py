"""The cost of a process for each offered skill, and whether the host counts the uses that the session saw.

    python -m tests.bench.bench_skill_calls [--scenarios 40] [--repeats 5] [--pairs 4]

Calls: a skill in its own process beside the same function in the session, from code in one sandbox. Tasks: chains
of the office by the scripted expert with faults, each task offered the skills of those before; in turns with a
process for each skill and with the skills defined in the session. Uses: of those rollouts, and of rollouts of the
seed policy with `--pairs`, by the host's count, by the session's own, and by name in the policy's code.
"""

import asyncio
import os
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import click

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits
from app.base.run_settings import RunSettings
from app.base.values import Json, Trajectory
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Function, Sandbox, SessionLimits
from app.skills.in_memory_library import InMemoryLibrary
from app.skills.search import scenario as by_scenario
from tests.bench.in_session import InSessionSandbox
from tests.bench.results_file import write_results
from trainer.engines.embedded import subprocess_engine
from trainer.rewards import chain_step
from trainer.rollouts.episode import EpisodeRunner
from trainer.rollouts.groups import GroupCollector, draw_chains
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.expert import Faults
from trainer.worlds.office.rollouts import ScriptRunner, demonstrate

SEED_POLICY = Path(__file__).parents[2] / "app" / "seed_policy"
_FAULTS = Faults(unprepared=0.2, page=0.2, synonym=0.2, trust=0.2)
_CALLS = 500
_SOURCE = "def {name}(who: str, limit: int = 20) -> list:\n    return [who] * limit\n"
_TIMED = (
    "import time\nfirst = time.perf_counter()\n{name}('iris')\nstarted = time.perf_counter()\n"
    f"for _ in range({_CALLS}): {{name}}('iris')\n"
    f"print(started - first, (time.perf_counter() - started) / {_CALLS})"
)


@click.command()
@click.option("--scenarios", default=40, show_default=True, help="of the scripted expert")
@click.option("--repeats", default=5, show_default=True, help="rounds")
@click.option("--pairs", default=4, show_default=True, help="chains of the seed policy; 0 for none")
def main(scenarios: int, repeats: int, pairs: int) -> None:
    """Measure what skill processes cost, and compare three counts of uses."""
    figures = {
        "calls": asyncio.run(measure_calls(repeats)),
        "tasks": asyncio.run(measure_tasks(scenarios, repeats)),
        "scripted uses": asyncio.run(compare_scripted(scenarios)),
        "seed policy uses": asyncio.run(compare_policy(pairs)) if pairs else None,
    }
    for name, found in figures.items():
        print(name, found)
    write_results("skill_calls", figures)


async def measure_calls(repeats: int) -> dict[str, float]:
    """Milliseconds: the first call, a later one, and the CPU of a later one in host and sandbox.

    The least of all rounds, since other work on the machine only adds to them.
    """
    found: dict[str, list[float]] = {}
    async with ForkedSandbox() as sandbox:
        for _ in range(repeats):
            skill = Function("skill", _SOURCE.format(name="skill"))
            session = await sandbox.open({}, _no_call, SessionLimits(), prelude=[skill])
            await session.run(_SOURCE.format(name="own"))
            for name in ("skill", "own"):
                host = _cpu()
                seen = await session.run(_TIMED.format(name=name))
                first, later = map(float, seen.stdout.split())
                computed = 1000 * (_cpu() - host) + seen.cpu_ms
                for key, value in (("first", 1000 * first), ("later", 1000 * later), ("CPU", computed / _CALLS)):
                    found.setdefault(f"{name} {key}", []).append(value)
            await session.close()
    return {key: round(min(values), 4) for key, values in found.items()}


async def measure_tasks(scenarios: int, repeats: int) -> dict[str, float]:
    """Milliseconds of CPU a task, of this process and all of the sandbox's, and the ratio's median and range."""
    tasks, apart, together = 0, list[float](), list[float]()
    for seed in range(repeats):
        for in_session, into in ((True, together), (False, apart)):
            before = _cpu()
            played = await _play(scenarios, seed, in_session=in_session)
            tasks = len(played)
            into.append(1000 * (_cpu() - before) / tasks)
    ratios = [one / other for one, other in zip(apart, together, strict=True)]
    return {
        "tasks": tasks,
        "own processes": round(statistics.median(apart), 2),
        "in the session": round(statistics.median(together), 2),
        "ratio": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


async def compare_scripted(scenarios: int) -> dict[str, int]:
    host = await _play(scenarios, 0, in_session=False)
    own = await _play(scenarios, 0, in_session=True)
    return compare(host, own)


async def compare_policy(pairs: int) -> dict[str, int]:
    tokenizer, environment = ChatTokenizer.load(SEED_POLICY), OfficeEnvironment()
    settings = RunSettings(pairs=pairs)
    chains = draw_chains(environment, "train", settings, 0)
    rollouts = []
    for in_session in (False, True):
        async with _sandbox(in_session=in_session) as sandbox, subprocess_engine(SEED_POLICY, "cpu") as engine:
            agent = Agent(engine, tokenizer, Compact(), sandbox, RolloutLimits(turns=8), temperature=1.0)
            library = lambda: InMemoryLibrary(retrieval=by_scenario)  # noqa: E731 - as training has it
            collector = GroupCollector(EpisodeRunner(agent, environment), settings, library, at_once=32)
            collected, _ = await collector.collect(chains, 0)
            rollouts.append([each.trajectory for one in collected for each in one.episodes])
    return compare(*rollouts)


def compare(host: Sequence[Trajectory], own: Sequence[Trajectory]) -> dict[str, int]:
    """Rollouts by whether the three counts agree. Those that took another course are not compared."""
    counts: Counter[str] = Counter()
    for counted, other in zip(host, own, strict=True):
        counts["rollouts"] += 1
        counts["offered"] += bool(counted.offered)
        if [turn.text for turn in counted.turns] != [turn.text for turn in other.turns]:
            counts["another course"] += 1
            continue
        used = {offer.name for offer in counted.used()}
        counts["used"] += bool(used)
        counts["host and session agree"] += used == {offer.name for offer in other.used()}
        counts["host and names agree"] += used == _by_name(counted)
        counts["same observations"] += _observations(counted) == _observations(other)
    return dict(counts)


def _by_name(trajectory: Trajectory) -> set[str]:
    step = chain_step(trajectory, 0.0, success=False, creditable=frozenset())
    return {offer.name for offer in trajectory.offered if offer.skill_id in step.called_by_name}


def _observations(trajectory: Trajectory) -> list[str]:
    return [turn.observation for turn in trajectory.turns]


async def _play(scenarios: int, seed: int, *, in_session: bool) -> list[Trajectory]:
    environment = OfficeEnvironment()
    async with _sandbox(in_session=in_session) as sandbox:
        runner = ScriptRunner(
            environment=environment, tokenizer=ChatTokenizer.load(SEED_POLICY), sandbox=sandbox, crowding=0.3
        )
        drawn = environment.scenarios("train", scenarios, seed=seed)
        return [each.trajectory for each in await demonstrate(runner, drawn, _FAULTS, seed)]


@asynccontextmanager
async def _sandbox(*, in_session: bool) -> AsyncIterator[Sandbox]:
    async with ForkedSandbox() as sandbox:
        yield InSessionSandbox(sandbox) if in_session else sandbox


async def _no_call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
    raise LookupError(f"{api} {args} {kwargs}")


def _cpu() -> float:
    """Seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main()
