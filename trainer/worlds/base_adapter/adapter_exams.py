"""Evaluations of the adapter and of the base model without it, greedy, each kept on disk when it is done."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from tqdm import tqdm

from app.settings import Settings
from trainer.atomic_write import write_atomically
from trainer.environment import Split
from trainer.evaluation.local_session import LocalEvaluation, open_local_evaluation
from trainer.evaluation.policy_metrics import PolicyMetrics, TaskResult, measure
from trainer.worlds.held_out import file_name

VALIDATION = {"gym": "gym", "strangers": "strangers", "office": "office"}
SEED = 7
LIBRARY = {True: "on", False: "off"}
_BASE_SHARE = 20
_TURNS = 8  # twice what a task needs
_AT_ONCE = 32  # chains


class AdapterExam(msgspec.Struct, frozen=True, kw_only=True):
    """One environment, with and without an adapter's directory, and the files of its results."""

    title: str
    environment: str
    adapter: Path | None
    split: Split
    scenarios: int
    libraries: tuple[bool, ...]
    files: Path  # their directory

    @property
    def policy(self) -> str:
        return "base" if self.adapter is None else "adapter"

    def file(self, library: bool) -> Path:
        return self.files / f"{file_name(self.title)}-{self.policy}-library-{LIBRARY[library]}.json"

    @property
    def missing(self) -> list[bool]:
        return [each for each in self.libraries if not self.file(each).exists()]


def run_exam(exam: AdapterExam, settings: Settings) -> dict[bool, PolicyMetrics]:
    """Metrics with the library on and off. What an earlier call finished is read, not repeated."""
    if exam.missing:
        asyncio.run(_evaluate(exam, settings))
    return {library: measure(_read(exam.file(library))) for library in exam.libraries}


def final_exams(
    adapter: Path, scenarios: int, files: Path, environments: Mapping[str, str]
) -> Iterator[AdapterExam]:
    """Each environment by the adapter, and its first scenarios by the base alone, which is slow at failing."""
    for title, environment in environments.items():
        for policy in (adapter, None):
            yield AdapterExam(
                title=title,
                environment=environment,
                adapter=policy,
                split="test",
                scenarios=scenarios if policy else -(-scenarios // _BASE_SHARE),
                libraries=(True, False) if policy else (True,),
                files=files,
            )


def validation_exams(adapter: Path, scenarios: int, files: Path) -> Iterator[AdapterExam]:
    """A few scenarios of validation with the library on: how the training goes."""
    for title, environment in VALIDATION.items():
        yield AdapterExam(
            title=title,
            environment=environment,
            adapter=adapter,
            split="validation",
            scenarios=scenarios,
            libraries=(True,),
            files=files,
        )


async def _evaluate(exam: AdapterExam, settings: Settings) -> None:
    evaluation = LocalEvaluation(
        environment=exam.environment,
        adapter=str(exam.adapter or ""),
        split=exam.split,
        scenarios=exam.scenarios,
        at_once=_AT_ONCE,
    )
    limited = msgspec.structs.replace(settings, max_turns=min(settings.max_turns, _TURNS))
    async with open_local_evaluation(evaluation, limited) as evaluate:
        for library in exam.missing:
            with tqdm(desc=f"{exam.title}, {exam.policy}, library {LIBRARY[library]}", unit="task") as bar:
                results = await evaluate(SEED, library, bar.update)
            write_atomically(msgspec.json.encode(results), exam.file(library))


def _read(file: Path) -> Sequence[TaskResult]:
    return msgspec.json.decode(file.read_bytes(), type=list[TaskResult])
