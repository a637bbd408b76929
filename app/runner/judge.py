"""Judges: plug-ins that score finished tasks without a check of their own.

A judge is a plug-in: a function `load_judge(*, option: type = default, ...) -> Judge`, registered in the
entry-point group `sage.judges` or named "module:attribute". SAGE_JUDGE names it.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from app.errors import InvalidError, SettingError
from app.plugins import registry
from app.plugins.plugin_options import PluginSpec, load_options
from app.records import Trajectory

log = structlog.get_logger(__name__)

GROUP = "sage.judges"
_SECONDS = 60.0  # for one judgement

Judge = Callable[[Trajectory], Awaitable[float | None]]
"""The score of a finished task in [0, 1]; None if it cannot decide."""


def load_judge(text: str) -> Judge | None:
    """The judge that SAGE_JUDGE names; None for "". Raises SettingError if the name or an option does not fit."""
    if not text:
        return None
    try:
        spec = PluginSpec.parse(text)
        load = registry.load(GROUP, spec.name)
        judge: Judge = load(**load_options(load, spec))
    except InvalidError as error:
        raise SettingError(f"SAGE_JUDGE={text!r}: {error}") from error
    return judge


async def ask_judge(judge: Judge, trajectory: Trajectory, *, seconds: float = _SECONDS) -> float | None:
    """The score. A judge that fails, is slow or leaves [0, 1] is logged and scores nothing: the task is done."""
    try:
        async with asyncio.timeout(seconds):
            score = await judge(trajectory)
        if score is None or 0 <= score <= 1:
            return score
        raise ValueError(f"the judge's score {score} lies outside [0, 1]")
    except Exception:  # code of other packages
        log.exception("a task could not be judged", task=str(trajectory.task.id))
        return None
