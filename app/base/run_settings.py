"""The settings of a training run: one type for REST, the command line, the schedule and the trainer."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from app.base import plugins
from app.base.errors import InvalidError
from app.base.plugins import PluginSpec
from app.base.text import did_you_mean

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
ZonedTime = Annotated[datetime, msgspec.Meta(tz=True)]  # without one, its meaning would depend on the machine

PRACTICE = "practice"  # the environment: the double of an API of the project
TRAINED_TEMPERATURE = 1.0  # `logged` samples have it: engines report logprobs for it, whatever theirs
MIN_SCENARIOS = 30  # of an evaluation: with fewer, the gate cannot decide
MIN_KINDS = 10  # of tasks that an exam can be tried on: fewer say too little about other work
MIN_KNOWN = 0.8  # of its scenarios: those whose results no record tells are not like the others
MIN_JUDGED = 0.5  # of the kinds of an exam: by a smaller part, often the easiest, the gate does not decide


class RunKind(StrEnum):
    """Where a run's experience comes from."""

    ROLLOUT = "rollout"  # fresh rollouts in an environment
    LOGGED = "logged"  # what was served, with its scores
    SFT = "sft"  # supervised steps on the best of what was served, or on imported trajectories
    EXAM = "exam"  # nowhere: nothing is trained, releases are examined
    PRACTICE = "practice"  # lessons and fresh rollouts on the double of an API of the project


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names and defaults follow SAGE (arXiv 2512.17102) and LOOP (arXiv 2502.01600), scaled to a small policy."""

    # The run
    kind: RunKind = RunKind.LOGGED
    """Source of experience: fresh rollouts, logged tasks, or demonstrations for supervised steps. `exam` trains
    nothing: it examines releases on `environment`. `practice` teaches an API of the project on a double of it.
    """
    hours: Annotated[float, msgspec.Meta(ge=0.05, le=48)] = 2.5
    """`practice`: hours that the whole run takes, its exam included. They decide how much it learns."""
    start: Literal["active", "base"] = "active"
    """Adapter to continue from: the active release's, or a new one."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0
    """Seed of scenarios, sampling and initial weights."""

    # Experience
    environment: str = ""
    """Environment of rollouts and of the gate, as `NAME?OPTION=VALUE`; `sage environments` lists them. Empty: the
    exam of what the project holds out, if it is large enough, else none.
    """
    steps: PositiveCount = 24
    """Rounds of experience and update; fewer if the data of a `logged` run ends earlier."""
    pairs: PositiveCount = 6
    """Groups per step: chains of tasks, each rolled out `group` times."""
    group: Annotated[int, msgspec.Meta(ge=2, le=1024)] = 8
    """Rollouts of each chain (G)."""
    chain: Annotated[int, msgspec.Meta(ge=1, le=16)] = 2
    """Tasks per chain."""
    skills: bool = True
    """Offer skills. False: every task alone, without a library."""
    extraction: Literal["inline", "post_hoc"] = "inline"
    """How skills come about in rollouts: from functions that a task writes for itself, or from one that is written
    after a task that succeeded, and does it again in a fresh world.
    """
    memory: str = ""
    """What rollouts are shown, as text, of the tasks of their chain before them: a name of the entry-point group
    `sage.memories` with its options, beside skills or, with `skills=false`, instead.
    """
    retrieval: str = "scenario"
    """How skills are found for a task in rollouts: a name of the entry-point group `sage.retrieval`. With
    `query_ngram`, `query_embedding` and `skill_embedding`, which use no labels, tasks with similar instructions
    form a chain, else tasks of one scenario. The gate finds skills as tasks do (SAGE_RETRIEVAL).
    """
    since: ZonedTime | None = None
    """`logged` and `sft`: use tasks that ended at this time or later. Without it, a `logged` run uses what has
    ended since the start of the last one from which the serving weights come, and a share of what came before.
    """
    replay: Share = 0.25
    """`logged`, without `since`: share of the scored tasks that earlier runs could learn from already, the newest.
    Where their releases had other weights, as a rule, they count with `max_staleness` only.
    """
    until: ZonedTime | None = None
    """`logged` and `sft`: use tasks that ended before this time. Of all these the newest 5,000 are read."""
    max_staleness: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """`logged`: changes of weights between the release that served a task and the active one, at most. 0: only
    tasks of the weights that are trained.
    """
    data: str = ""
    """`sft`: conversations to learn from instead of what was served: the id of a dataset, or a place under a
    prefix of `SAGE_DATA_PREFIXES`."""

    # Reward
    reward: str = "skill_value"
    """A rule of the entry-point group `sage.rewards`. `skill` is the paper's."""

    # Objective
    normalise: bool = False
    """Divide advantages by their standard deviation in the group."""
    clip_low: Share = 0.2
    """The ratio is clipped below 1 minus this."""
    clip_high: Annotated[float, msgspec.Meta(gt=0, le=10)] = 0.2
    """The ratio is clipped above 1 plus this."""
    kl: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Weight of the KL penalty against the starting policy."""
    max_kl: Annotated[float, msgspec.Meta(ge=0)] = 0.05
    """A step that takes the policy farther than this from the one that sampled is shortened: the KL divergence per
    token, in nats, as the metric `kl_of_step`. 0: no limit.
    """

    # Update
    lr: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Learning rate. 0: the `learning_rate` that the model's card names, as that of `seed` does, or else 0.0001;
    of kind `sft` 0.001.
    """
    lora_rank: Annotated[int, msgspec.Meta(ge=1, le=512)] = 16
    """Rank of a new adapter; its alpha is twice that."""
    epochs: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    """Optimizer steps per step of the run, on the same batch of rollouts."""
    micro_batch_tokens: Annotated[int, msgspec.Meta(ge=32)] = 16_384
    """Tokens of one forward pass at most, on each device; on a CPU fewer if they would keep more than 1.25 GB."""
    gradient_checkpointing: bool = False
    """Recompute activations instead of keeping them."""

    # Gate
    gate: Literal["exam", "canary"] = "exam"
    """What decides where no exam can: the run names no environment and the project's own work is too little, too
    few results are known, or the run skips the exam (`gate_scenarios=0`). `exam` waits for a person, `canary` lets
    live tasks decide. They also decide about a candidate that is neither better nor worse on recorded calls, which
    show no gain on tasks that were never solved; `exam` rejects it.
    """
    gate_scenarios: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 200
    """Held-out scenarios of the gate, three tasks each; of `practice` at most. 0: no exam."""
    releases: Annotated[str, msgspec.Meta(pattern=r"^( *[0-9]{1,9} *(, *[0-9]{1,9} *){0,6})?(?!\n)$")] = ""
    """`exam`: numbers of the releases to examine beside the active one, as `3, 12`; seven at most."""
    foreign_exam: bool = False
    """Let the gate decide in an environment that lacks APIs of the project, or their operations. Its scores there
    say little about the project's work.
    """
    canary_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 10.0
    """Share of new tasks that a candidate which passed serves first, as a canary. 0 serves all at once; 100 does
    so with nothing to compare it with.
    """
    promote: bool = True
    """Activate a candidate that passes. False: it waits for a person, so `gate=canary` is refused."""

    def __post_init__(self) -> None:
        if self.gate == "canary" and not self.canary_percent:
            raise ValueError("gate=canary needs canary_percent above 0")


def rollout_environment(settings: RunSettings) -> str:
    """The environment that a run of rollouts names. Raises InvalidError where it names none."""
    if not settings.environment.partition("?")[0]:
        raise InvalidError(
            "a run of kind rollout needs the setting environment: name one that `sage environments` lists"
        )
    return settings.environment


def practice_option(settings: RunSettings, name: str) -> str:
    """An option of the environment of a run, if that is practice, else "": `api` is the API that it practises on,
    `paraphraser` the hosted model that words its lessons.

    >>> [practice_option(RunSettings(environment=each), "api") for each in ("practice?api=desk", "gym")]
    ['desk', '']
    """
    spec = PluginSpec.parse(settings.environment)
    return spec.options.get(name, "") if spec.name == PRACTICE else ""


def release_numbers(settings: RunSettings) -> list[int]:
    """
    >>> release_numbers(RunSettings(releases="12, 3,12"))
    [3, 12]
    """
    return sorted({int(each) for each in settings.releases.split(",") if each.strip()})


def check_runnable(settings: RunSettings) -> None:
    """Raises InvalidError for a run that is bound to fail, or whose gate cannot decide.

    A run may name registered parts only: with "module:attribute" a key could call any function on the worker.
    """
    environment = settings.environment.partition("?")[0]
    for field, name in (
        ("environment", environment),
        ("retrieval", settings.retrieval),
        ("reward", settings.reward),
        ("memory", settings.memory.partition("?")[0]),
    ):
        if ":" in name:
            raise InvalidError(
                f"{field}={name!r}: a run may name registered parts only; register it as an entry point"
            )
    plugins.find("sage.retrieval", settings.retrieval)
    plugins.find("sage.rewards", settings.reward)
    _check_memory(settings)
    if settings.kind is RunKind.ROLLOUT:
        rollout_environment(settings)
    if settings.kind is RunKind.PRACTICE and not practice_option(settings, "api"):
        raise InvalidError(
            f"a run of kind practice needs an API of the project: set environment={PRACTICE}?api=NAME"
        )
    if settings.kind is not RunKind.PRACTICE and practice_option(settings, "paraphraser"):
        raise InvalidError("only runs of kind practice have lessons to paraphrase: leave the paraphraser out")
    _check_gate(settings)


def _check_memory(settings: RunSettings) -> None:
    """A run's memory is written by its policy: with an address and a variable of the worker, a key could have any
    secret of the deployment sent anywhere.
    """
    if not settings.memory:
        return
    spec = PluginSpec.parse(settings.memory)
    plugins.find("sage.memories", spec.name)
    if others := sorted({"url", "model", "key_env"} & spec.options.keys()):
        raise InvalidError(
            f"memory={settings.memory}: in a run the policy itself writes it, so leave out {', '.join(others)}"
        )


def _check_gate(settings: RunSettings) -> None:
    if settings.releases and settings.kind is not RunKind.EXAM:
        raise InvalidError("releases are what a run of kind exam examines: set kind=exam, or leave them out")
    compares = settings.kind in (RunKind.EXAM, RunKind.PRACTICE)  # in any case
    if compares and settings.gate_scenarios < MIN_SCENARIOS:
        raise InvalidError(
            f"gate_scenarios={settings.gate_scenarios} is too few to compare releases by: set at least "
            f"{MIN_SCENARIOS}"
        )
    if settings.gate == "canary" and not settings.promote:
        raise InvalidError(
            "gate=canary lets live tasks decide about a candidate, and promote=false a person: set promote=true, "
            "or leave gate=canary out"
        )
    if settings.gate == "canary" and settings.canary_percent == 100:
        raise InvalidError(
            "gate=canary compares a candidate with the active release, and canary_percent=100 leaves that one no "
            "tasks: set canary_percent to 50 or less"
        )
    if 0 < settings.gate_scenarios < MIN_SCENARIOS:
        raise InvalidError(
            f"gate_scenarios={settings.gate_scenarios} is too few for the gate to decide: set at least "
            f"{MIN_SCENARIOS}, or 0 to skip the gate"
        )


def read_settings(given: dict[str, Any]) -> RunSettings:
    """Raises InvalidError that names the setting that is unknown or does not fit."""
    unknown = sorted(set(given) - set(RunSettings.__struct_fields__))
    if unknown:
        known = RunSettings.__struct_fields__
        hints = [hint for each in unknown if (hint := did_you_mean(each, known))]
        named = " ".join(hints) or f"it has {', '.join(known)}"
        raise InvalidError(f"a run has no setting {', '.join(unknown)}; {named}")
    try:
        return msgspec.convert(given, RunSettings, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the run's settings do not fit: {error}") from error
