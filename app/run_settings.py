"""What a training run may be asked for: one type for REST, the command line, the schedule and the trainer."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from app.errors import InvalidError

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Above = Annotated[float, msgspec.Meta(gt=0)]
Whole = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]  # without a time zone it would mean another on each machine
Retrieval = Literal["fused", "query_ngram", "query_embedding", "skill_embedding", "scenario"]

ENVIRONMENTS = ("office",)  # that the trainer has
LEAST_SCENARIOS = 30  # of an exam: from fewer no gate can tell anything


class RunKind(StrEnum):
    """Where a run's experience comes from."""

    ROLLOUT = "rollout"  # fresh rollouts in a practice environment
    LOGGED = "logged"  # what was served, with its scores
    SFT = "sft"  # supervised steps on the best of what was served, or on imported trajectories


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names and defaults follow SAGE (arXiv 2512.17102) and LOOP (arXiv 2502.01600), scaled to a small policy."""

    kind: RunKind = RunKind.LOGGED
    start: Literal["active", "base"] = "active"  # the adapter to go on from: the active release's, or none
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0

    # experience
    environment: str = ""  # the practice environment, such as "office" or "office?site=0"; "" for none
    steps: Whole = 24  # optimizer steps; of a logged run at most, if its data ends earlier
    pairs: Whole = 6  # chains of tasks per step
    group: Annotated[int, msgspec.Meta(ge=2, le=1024)] = 8  # rollouts of each chain: G
    chain: Annotated[int, msgspec.Meta(ge=1, le=16)] = 2  # tasks per chain
    chain_by: Literal["scenario", "nearest"] = "scenario"  # what makes a chain: a label, or instructions alike
    skills: bool = True  # False: every task alone, without a library
    retrieval: Retrieval = "scenario"
    since: Moment | None = None  # logged and sft: tasks that ended in this window
    until: Moment | None = None
    limit: Whole = 5_000  # tasks of the window, newest first
    max_staleness: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 2  # releases between a sample and the active one
    data: str = ""  # sft: a JSONL file of chats instead of what was served

    # reward
    reward: str = "skill"  # a rule of the entry-point group `sage.rewards`, or "module:attribute"

    # objective
    normalise: bool = False  # divide advantages by their spread in the group
    clip_low: Share = 0.2
    clip_high: Annotated[float, msgspec.Meta(gt=0, le=10)] = 0.2
    kl: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # weight of the penalty for leaving the start
    max_weight: Above = 2.0  # importance weights of stale samples are cut off here

    # update
    lr: Above = 1e-3
    lora_rank: Annotated[int, msgspec.Meta(ge=1, le=512)] = 16
    lora_alpha: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 32
    grad_clip: Above = 1.0
    epochs: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1  # optimizer steps on each batch of rollouts
    micro_batch_tokens: Annotated[int, msgspec.Meta(ge=32)] = 16_384  # read at once, on each device
    gradient_checkpointing: bool = False
    liger: bool = False  # liger's kernels: on an NVIDIA GPU, with the package liger-kernel

    # gate
    gate_scenarios: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 200  # held out, three tasks each; 0: no gate
    canary_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0
    """Of the new tasks, which a candidate that passed serves until live figures tell; 0: it serves all at once."""
    promote: bool = True  # False: a candidate that passes waits for a person

    def __post_init__(self) -> None:
        if self.chain_by == "nearest" and self.skills and self.retrieval == "scenario":
            raise ValueError(
                "chain_by=nearest has no labels to find skills by: set retrieval=query_ngram or another"
            )


def practice_environment(settings: RunSettings) -> str:
    """The environment in which a run of rollouts practises. Raises InvalidError where it names none."""
    if not settings.environment.partition("?")[0]:
        raise InvalidError(
            f'a run of kind rollout needs somewhere to practise: set environment="{ENVIRONMENTS[0]}"'
        )
    return settings.environment


def refuse_hopeless(settings: RunSettings) -> None:
    """Raises InvalidError for a run that would fail, or decide nothing, whatever happens."""
    name, there = settings.environment.partition("?")[0], ", ".join(ENVIRONMENTS)
    if name and name not in ENVIRONMENTS:
        raise InvalidError(f"no environment is called {name!r}: there is {there}")
    if settings.kind is RunKind.ROLLOUT:
        practice_environment(settings)
    if 0 < settings.gate_scenarios < LEAST_SCENARIOS:
        raise InvalidError(
            f"gate_scenarios={settings.gate_scenarios} are too few for the gate to tell anything: ask for "
            f"{LEAST_SCENARIOS} or more, or for 0, which holds no gate"
        )


def read_settings(given: dict[str, Any]) -> RunSettings:
    """Raises InvalidError that names the setting that is unknown or does not fit."""
    unknown = sorted(set(given) - set(RunSettings.__struct_fields__))
    if unknown:
        known = ", ".join(RunSettings.__struct_fields__)
        raise InvalidError(f"a run has no setting {', '.join(unknown)}; it has {known}")
    try:
        return msgspec.convert(given, RunSettings, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the run's settings do not fit: {error}") from error
