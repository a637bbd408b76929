"""The hours of a run of practice: how many are used, and what each stage may still take. Kept between attempts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.files import write_atomically
from app.base.run_settings import MIN_SCENARIOS
from app.base.values import Json
from trainer.run_job import RunProgress

Stage: TypeAlias = Literal["samples", "demonstrations", "supervised", "rollouts", "exam"]

DEMONSTRATIONS: Final = 0.06  # of the hours, at most: supervised steps take many times longer to read them
SUPERVISED_UNTIL: Final = 0.6  # of the hours: rollouts have 0.15 of them, even if all stages take what they may
_EXAM: Final = 0.15  # of the hours, unless the fewest scenarios take longer
_GUARD: Final = 0.05  # of the hours, of each of two models
_GUARDED: Final = 10, 60  # scenarios of the guard, at least and at most
_TASKS: Final = 3  # of a scenario
_MODELS: Final = 2
_WORTHWHILE: Final = 0.5  # of the time that the smallest exam takes must be left for it to begin
_NOTED: Final = 5.0  # seconds
_FILE: Final = "hours.json"


class Sheet(msgspec.Struct):
    """What an attempt leaves to the next."""

    spent: dict[Stage, float] = {}  # seconds
    collected: bool = False  # all demonstrations
    demonstrations: int = 0  # kept, once all are collected
    tried: int = 0
    dropped: dict[str, int] = {}  # why others were
    paraphrased: int = 0  # of those tried
    paraphraser_failure: str = ""  # the last one
    step_seconds: list[float] = []  # of the first supervised steps
    steps: int = 0  # supervised, once their speed is known
    taught: str = ""  # the adapter after them
    rounds: int = 0  # of rollouts
    rolled_out: int = 0  # tasks
    rollout_seconds: float = 0.0
    round_seconds: float = 0.0  # of rollouts with their updates
    exam: int | None = None  # scenarios, once it is decided; 0: there is no time left
    guard: int = 0


class Hours:
    """The time of one run, whose exam looks at each model so many times, at most. `clock` gives seconds."""

    def __init__(
        self, directory: Path, hours: float, looks: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._clock, self._looks = directory / _FILE, clock, looks
        self.total = hours * 3600
        self.sheet = Sheet()
        if self._path.exists():
            self.sheet = msgspec.json.decode(self._path.read_bytes(), type=Sheet)
        self._stage: Stage | None = None
        self._since = 0.0

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Its time counts for the stage, also if it fails."""
        self._stage, self._since = stage, self._clock()
        try:
            yield
        finally:
            self.save()
            self._stage = None

    def save(self) -> None:
        if self._stage is not None:
            now = self._clock()
            self.sheet.spent[self._stage] = self.sheet.spent.get(self._stage, 0.0) + now - self._since
            self._since = now
        write_atomically(msgspec.json.encode(self.sheet), self._path)

    def note(self) -> None:
        """Save it, if that is some time ago: a process that is killed forgets no more than that."""
        if self._clock() - self._since > _NOTED:
            self.save()

    @property
    def used(self) -> float:
        running = self._clock() - self._since if self._stage is not None else 0.0
        return sum(self.sheet.spent.values()) + running

    @property
    def share(self) -> float:
        return self.used / self.total

    def is_left_for_demonstrations(self) -> bool:
        running = self._clock() - self._since if self._stage == "demonstrations" else 0.0
        return self.sheet.spent.get("demonstrations", 0.0) + running < DEMONSTRATIONS * self.total

    def decide_steps(self, epoch: int) -> int:
        """How many supervised steps there are, by the speed of the first ones: an epoch at most."""
        sheet = self.sheet
        if not sheet.steps:
            usual = sorted(sheet.step_seconds)[len(sheet.step_seconds) // 2]
            more = int(max(0.0, SUPERVISED_UNTIL * self.total - self.used) / usual)
            sheet.steps = min(epoch, len(sheet.step_seconds) + more)
            self.save()
        return sheet.steps

    def add_round(self, tasks: int, rollout_seconds: float, seconds: float) -> None:
        """A round of rollouts and its update is done."""
        self.sheet.rounds += 1
        self.sheet.rolled_out += tasks
        self.sheet.rollout_seconds += rollout_seconds
        self.sheet.round_seconds += seconds
        self.save()

    def is_left_for_round(self, most: int) -> bool:
        """Whether another round of rollouts leaves the exam, of `most` scenarios, the time that it takes."""
        sheet = self.sheet
        usual = sheet.round_seconds / sheet.rounds if sheet.rounds else 0.0
        return self.used + usual < self.total - self._reserve(most)

    def rounds_left(self, most: int) -> int:
        """About how many more rounds of rollouts there are, after the first one."""
        left = self.total - self._reserve(most) - self.used
        return max(0, int(left / (self.sheet.round_seconds / self.sheet.rounds)))

    def decide_exam(self, most: int) -> int:
        """How many scenarios the exam has: 0 if no time is left for the smallest one."""
        sheet = self.sheet
        if sheet.exam is None:
            left = self.total - self.used
            fits = left > 0 and left >= _WORTHWHILE * MIN_SCENARIOS * self._scenario_seconds
            sheet.exam = self._exam_size(most) if fits else 0
            sheet.guard = self._guard_size
            self.save()
        return sheet.exam

    def _reserve(self, most: int) -> float:
        if not self.sheet.rolled_out:
            return (_EXAM + _MODELS * _GUARD) * self.total
        return (self._looks * self._exam_size(most) + self._guard_size) * self._scenario_seconds

    @property
    def _scenario_seconds(self) -> float:
        """Of both models on one scenario."""
        sheet = self.sheet
        return _MODELS * _TASKS * sheet.rollout_seconds / sheet.rolled_out if sheet.rolled_out else 0.0

    def _exam_size(self, most: int) -> int:
        second = self._looks * self._scenario_seconds
        return min(most, max(MIN_SCENARIOS, int(_EXAM * self.total / second) if second else 0))

    @property
    def _guard_size(self) -> int:
        fewest, most = _GUARDED
        second = self._scenario_seconds
        return min(most, max(fewest, int(_MODELS * _GUARD * self.total / second) if second else 0))


class PracticeProgress:
    """Shows the stage of a run of practice and its hours. Implements `RunProgress`; `before` are steps of earlier
    stages.
    """

    def __init__(self, progress: RunProgress, hours: Hours, stage: Stage, before: int = 0) -> None:
        self._progress, self._hours, self._stage, self._before = progress, hours, stage, before

    def part(self, phase: str, done: int, total: int) -> None:
        self._hours.note()
        self._progress.part(f"{phase}, {min(self._hours.share, 1):.0%} of the hours", done, total)

    async def step(self, index: int, total: int, metrics: dict[str, Json]) -> None:
        self._hours.save()
        shown = metrics | {"stage": self._stage, "hours": self._hours.used / 3600}
        await self._progress.step(self._before + index, self._before + total, shown)

    async def hold(self, session: AsyncSession) -> None:
        await self._progress.hold(session)
