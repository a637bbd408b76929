"""A training run in responses."""

from datetime import datetime
from typing import Literal, Self
from uuid import UUID

import msgspec

from app.base.values import Json, RunPart
from app.db import tables
from app.run_settings import RunKind, RunSettings
from app.web.fields import columns, console_path


class RunLinks(msgspec.Struct, frozen=True):
    """Related resources."""

    self: str
    steps: str
    events: str
    console: str

    @classmethod
    def of(cls, run_id: UUID) -> Self:
        own = f"/v1/training-runs/{run_id}"
        return cls(own, f"{own}/steps", f"{own}/events", console_path("runs", run_id))


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list. `step` of `steps` are done; `steps` is 0 while it is unknown. `part` is what it does now,
    if that is counted.
    """

    id: UUID
    project: str
    kind: RunKind
    state: tables.RunState
    step: int
    steps: int
    part: RunPart | None
    failure: str | None  #: "InvalidError: what is wrong, and what to do"
    cancel_requested: bool
    attempt: int
    schedule_id: UUID | None  #: of the schedule that queued it
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, run: tables.TrainingRun, project: str) -> "RunSummary":
        return RunSummary(project=project, **columns(run, RunSummary, "project"))


class RunPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    runs: list[RunSummary]
    next_cursor: str | None


class StepView(msgspec.Struct, frozen=True):
    """The metrics of one step. Steps are numbered from 1."""

    index: int
    metrics: dict[str, Json]
    created_at: datetime

    @classmethod
    def of(cls, row: tables.RunStep) -> Self:
        return cls(row.index, row.metrics, row.created_at)


class RunUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """How far the steps of a run may take the policy.

    `lr` is the learning rate in force: that of the run's `setting`, or else what its `model` or, for `sft`, its
    `kind` has (`lr_from`), and then null until the run learns.
    """

    lr: float | None
    lr_from: Literal["setting", "model", "kind"]
    max_kl: float | None  #: nats a token that a step may lead from the policy that sampled; 0: any; null: `sft`

    @classmethod
    def of(cls, run: tables.TrainingRun) -> Self | None:
        """None for a run that trains nothing."""
        if run.kind is RunKind.EXAM:
            return None
        supervised, own = run.kind is RunKind.SFT, run.settings.get("lr") or None
        source: Literal["model", "kind"] = "kind" if supervised else "model"
        return cls(
            lr=own or run.learning_rate,
            lr_from="setting" if own else source,
            max_kl=None if supervised else run.settings.get("max_kl", RunSettings().max_kl),
        )


class RunView(RunSummary, frozen=True, kw_only=True):
    """A run with its settings, the metrics of its last step, and its result: adapter, release, decision, and the
    `evidence` of the gate. That of a run of kind `exam` has the `releases`, each with its `figures` and the
    `difference` to the active one, which comes first.
    """

    settings: dict[str, Json]
    estimate: str | None  #: of kind `practice`, until it has ended: what its hours buy
    update: RunUpdate | None  #: null for kind `exam`
    last_step: StepView | None
    result: dict[str, Json] | None
    links: RunLinks

    @classmethod
    def full(
        cls,
        run: tables.TrainingRun,
        project: str,
        last_step: tables.RunStep | None,
        estimate: str | None = None,
    ) -> "RunView":
        return RunView(
            project=project,
            settings=run.settings,
            estimate=estimate,
            update=RunUpdate.of(run),
            last_step=StepView.of(last_step) if last_step else None,
            result=run.result,
            links=RunLinks.of(run.id),
            **columns(run, RunSummary, "project"),
        )
