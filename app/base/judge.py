"""Judges: plug-ins that score finished tasks without a check of their own.

A judge is a plug-in: a function `load_judge(*, option: type = default, ...)` that returns a `Judge` or a
`GroupJudge`, registered in the entry-point group `sage.judges` or named "module:attribute". SAGE_JUDGE names it.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec
import structlog

from app.base import plugins
from app.base.errors import AppError, InvalidError, SettingError
from app.base.plugins import PluginSpec, load_options
from app.base.values import Trajectory

log = structlog.get_logger(__name__)

GROUP = "sage.judges"
_SECONDS = 60.0  # for one judgement

Judge: TypeAlias = Callable[[Trajectory], Awaitable[float | None]]
"""The score of a finished task in [0, 1]; None if it cannot decide. Asked when the task ends."""


@runtime_checkable
class GroupJudge(Protocol):
    """Compares tasks of one kind. Asked when a training run needs scores."""

    group_size: int  # tasks that are compared at once, at most

    async def score_group(self, rubric: str, group: Sequence[Trajectory]) -> Sequence[float | None]:
        """The scores in [0, 1], in the order of the group; None where it cannot decide.

        `rubric` is the project's, "" without one. Raises AppError that names the reason if there are no scores.
        """
        ...


class NamedJudge(msgspec.Struct, frozen=True):
    """A judge, and the name under which its scores are compared with people's."""

    plugin: str
    text: str  # of the setting
    each: Judge | None = None  # one of the two
    group: GroupJudge | None = None

    def name(self, rubric: str = "") -> str:
        """Differs where the options or the rubric do.

        >>> NamedJudge("strict", "strict?x=1").name()
        'strict 5ef12c20'
        """
        digest = hashlib.sha256(f"{self.text}\n{rubric}".encode()).hexdigest()
        return f"{self.plugin} {digest[:8]}"


def load_judge(text: str) -> NamedJudge | None:
    """The judge that SAGE_JUDGE names; None for "". Raises SettingError if the name or an option does not fit."""
    if not text:
        return None
    try:
        spec = PluginSpec.parse(text)
        load = plugins.load(GROUP, spec.name)
        judge = load(**load_options(load, spec))
    except InvalidError as error:
        raise SettingError(f"SAGE_JUDGE={text!r}: {error}") from error
    if isinstance(judge, GroupJudge):
        return NamedJudge(spec.name, text, group=judge)
    return NamedJudge(spec.name, text, each=judge)


class Judgement(NamedTuple):
    """A score in [0, 1], or none: then the problem, unless the judge abstained."""

    score: float | None = None
    problem: str | None = None


async def ask_judge(judge: NamedJudge, trajectory: Trajectory, *, seconds: float = _SECONDS) -> Judgement:
    """A judge that compares groups has nothing to say here. One that fails scores nothing: the task is done."""
    if judge.each is None:
        return Judgement()
    try:
        async with asyncio.timeout(seconds) as limit:
            score = await judge.each(trajectory)
        if score is None or 0 <= score <= 1:
            return Judgement(score)
        problem = f"its score {score!r:.50} is not in [0, 1]"
    except AppError as error:
        problem = str(error)
    except Exception as error:  # code of other packages, whose messages may hold anything
        if not limit.expired():
            log.exception("a judge failed", judge=judge.plugin, task=str(trajectory.task.id))
            return Judgement(problem=f"it raised {type(error).__name__}; the log of the server has the reason")
        problem = f"it took longer than {seconds:g} s"
    log.warning("a task could not be judged", judge=judge.plugin, task=str(trajectory.task.id), cause=problem)
    return Judgement(problem=problem)
