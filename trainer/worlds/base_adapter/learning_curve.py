"""The learning curve of a training that is killed and resumed: what was read, what it cost, what it gave."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from trainer.atomic_write import write_atomically
from trainer.evaluation.policy_metrics import PolicyMetrics


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the training: a line of its journal."""

    step: int
    examples: int
    tokens: int
    learned_tokens: int
    cpu_seconds: float  # of all processes
    loss: float


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The training up to a step. Sums count from the first step, and work that a kill undid only once."""

    step: int
    examples: int
    tokens: int
    learned_tokens: int
    cpu_minutes: float  # of training alone
    loss: float  # mean of the steps since the last point
    held_out_loss: float
    adapter: str  # its content hash
    device: str = ""  # of each process
    exams: dict[str, PolicyMetrics] = {}  # by environment


class StepJournal:
    """A file with a line per step. Steps that are repeated after a kill replace their lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: list[StepRecord] | None = None

    def add(self, record: StepRecord) -> None:
        if self._records is None:
            self._records = [each for each in read_steps(self._path) if each.step < record.step]
            write_atomically(b"".join(map(_line, self._records)), self._path)
        with self._path.open("ab") as file:
            file.write(_line(record))


def read_steps(path: Path) -> list[StepRecord]:
    """The whole lines: a last one that a kill cut short is left out."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    return [msgspec.json.decode(line, type=StepRecord) for line in whole.splitlines()]


def point_at(
    step: int, records: Sequence[StepRecord], *, since: int, held_out_loss: float, adapter: str, device: str
) -> CurvePoint:
    """The point at a step, with the loss since another."""
    done = [each for each in records if each.step <= step]
    recent = [each.loss for each in done if each.step > since]
    return CurvePoint(
        step=step,
        examples=sum(each.examples for each in done),
        tokens=sum(each.tokens for each in done),
        learned_tokens=sum(each.learned_tokens for each in done),
        cpu_minutes=sum(each.cpu_seconds for each in done) / 60,
        loss=sum(recent) / len(recent),
        held_out_loss=held_out_loss,
        adapter=adapter,
        device=device,
    )


def _line(record: StepRecord) -> bytes:
    return msgspec.json.encode(record) + b"\n"
