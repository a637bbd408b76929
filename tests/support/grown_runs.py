"""Training runs of a project, in each state."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random
from uuid import UUID

import msgspec
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.run_settings import RunKind, RunSettings
from app.base.values import Json, RunPart
from app.db import tables
from app.db.tables import RunState
from app.runs import schedule
from app.runs import store as runs

_STEPS = 24
_FAILURE = "InvalidError: the gradient of step 4 is not finite: try a lower lr"
_DATA: dict[str, Json] = {
    "tasks": 412,
    "trajectories": 168,
    "groups": 31,
    "tokens": 151_234,
    "fraction": 168 / 412,
    "dropped": {"unscored": 120, "learned": 64, "stale": 12, "equal_rewards": 40, "no_peers": 8},
    "staleness": {"0": 100, "1": 68},
}


async def grow_runs(session: AsyncSession, project_id: UUID, now: datetime, chance: Random) -> dict[str, UUID]:
    """The run of each state: done, failed, cancelled, running, queued."""
    done, failed, cancelled = RunState.DONE, RunState.FAILED, RunState.CANCELLED
    made = {"done": await _run(session, project_id, RunKind.LOGGED, _STEPS, chance)}
    await _end(session, made["done"], done, now - timedelta(days=3), result=_result())
    made["failed"] = await _run(session, project_id, RunKind.SFT, 3, chance)
    await _end(session, made["failed"], failed, now - timedelta(days=2), failure=_FAILURE)
    made["cancelled"] = await _run(session, project_id, RunKind.ROLLOUT, 0, chance)
    await _end(session, made["cancelled"], cancelled, now - timedelta(days=1))
    made["running"] = await _run(session, project_id, RunKind.ROLLOUT, 9, chance)
    row = tables.TrainingRun
    started = {"state": RunState.RUNNING, "started_at": now - timedelta(minutes=40), "attempt": 1}
    part = msgspec.to_builtins(RunPart("rollouts", 31, 48))
    await session.execute(update(row).where(row.id == made["running"]).values(part=part, **started))
    made["queued"] = (await runs.create(session, project_id, RunSettings(kind=RunKind.LOGGED))).id
    await schedule.put(session, project_id, schedule.ScheduleRequest(every_hours=24, every_scored_tasks=300))
    return made


async def grow_examination(
    session: AsyncSession, project_id: UUID, releases: Sequence[tables.Release], now: datetime
) -> UUID:
    """A run that has examined releases, the active one first."""
    run = await runs.create(session, project_id, RunSettings(kind=RunKind.EXAM))
    await _end(session, run.id, RunState.DONE, now - timedelta(days=4), result=_examined(releases))
    return run.id


async def _run(session: AsyncSession, project_id: UUID, kind: RunKind, steps: int, chance: Random) -> UUID:
    environment = "office" if kind is RunKind.ROLLOUT else ""
    run = await runs.create(session, project_id, RunSettings(kind=kind, environment=environment, steps=_STEPS))
    claimed = await runs.claim(session, "worker", 3600, run.id)
    assert claimed is not None
    assert claimed.owner is not None
    for index in range(1, steps + 1):
        metrics = _metrics(index, kind, chance)
        await runs.append_step(session, run.id, claimed.owner, index, metrics, total=_STEPS)
    return run.id


def _metrics(index: int, kind: RunKind, chance: Random) -> dict[str, Json]:
    grown = index / _STEPS
    metrics: dict[str, Json] = {
        "loss": 0.4 - 0.2 * grown + chance.gauss(0, 0.02),
        "grad_norm": 0.8 + chance.gauss(0, 0.05),
        "update_seconds": 21.0 + chance.gauss(0, 1),
    }
    if kind is RunKind.SFT:
        return metrics
    metrics |= {
        "outcome": 0.45 + 0.3 * grown + chance.gauss(0, 0.03),
        "skill_bonus": 0.1 + 0.2 * grown,
        "reward_1": 0.4 + 0.3 * grown + chance.gauss(0, 0.03),
        "reward_2": 0.6 + 0.6 * grown + chance.gauss(0, 0.03),
        "turns": 4.2 - 1.1 * grown + chance.gauss(0, 0.1),
        "generated_tokens": 610 - 160 * grown + chance.gauss(0, 15),
        "trained_fraction": 0.7 - 0.1 * grown,
        "clip_fraction": 0.01 + 0.02 * grown + abs(chance.gauss(0, 0.004)),
        "entropy": 0.62 - 0.2 * grown + chance.gauss(0, 0.02),
        "kl_to_engine": 0.0004 + abs(chance.gauss(0, 0.0002)),
        "kl_to_start": 0.002 * index,
        "ratio_mean": 1.0 + chance.gauss(0, 0.002),
        "tokens": 24_000 + round(chance.gauss(0, 900)),
        "read_tokens": 61_000 + round(chance.gauss(0, 2_000)),
        "samples": 40,
    }
    if kind is RunKind.ROLLOUT:
        metrics |= {"success": 0.5 + 0.3 * grown + chance.gauss(0, 0.03), "write_rate": 0.6}
    if index == 3:
        metrics["warnings"] = ["functions are rarely written (12% of tasks)"]
    return metrics


def _result() -> dict[str, Json]:
    reason = "it solves more scenarios: SGC +12.5 [+3.8, +21.2] points"
    return {"adapter": "0" * 32, "release_id": None, "decision": "passed", "reason": reason, "data": _DATA}


def _examined(found: Sequence[tables.Release]) -> dict[str, Json]:
    def about(mean: float) -> dict[str, float]:
        return {"mean": mean, "low": mean - 7, "high": mean + 7}

    shown: list[Json] = [
        {
            "id": str(each.id),
            "number": each.number,
            "model": each.model,
            "figures": {"scenarios": 60, "tasks": 180}
            | {name: about(60.0 - index * 9) for name in ("sgc", "tgc", "turns", "tokens")},
            "difference": {"scenarios": 60, "sgc": about(-9.0 * index)} if index else None,
        }
        for index, each in enumerate(found)
    ]
    return {"reason": f"release {found[0].number} solves 60.0 % of 60 scenarios", "evidence": {"releases": shown}}


async def _end(session: AsyncSession, run_id: UUID, state: RunState, at: datetime, **values: Json) -> None:
    row = tables.TrainingRun
    times = {"started_at": at - timedelta(minutes=52), "created_at": at - timedelta(hours=1), "finished_at": at}
    await session.execute(
        update(row).where(row.id == run_id).values(state=state, owner=None, lease_until=None, **times, **values)
    )
