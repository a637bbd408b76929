"""The settings of one project. Every field has a default, and only what differs from it is stored."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from app.errors import InvalidError
from app.project.approval import ApprovalRules
from app.project.staging import StagingApi
from app.project.task_verifier import Verifier
from app.project.webhook import Webhook
from app.records import Json
from app.settings import Settings

_Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=10**15)] | None
_Cost: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None
_Days: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=36_500)] | None
_EXPLORED = 25.0  # percent

SkillPolicy: TypeAlias = Literal["open", "evidence", "review"]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one project. null is the server's default, the setting `SAGE_LIMIT_<NAME>`; 0 is no limit."""

    requests_per_minute: _Limit = None
    """Requests of one key, in each API process."""
    queued_tasks: _Limit = None
    """Tasks that wait."""
    running_tasks: _Limit = None
    """Tasks that run at once; more of them wait."""
    tasks_per_day: _Limit = None
    """Tasks submitted in a day. Days are UTC."""
    tokens_per_day: _Limit = None
    """Tokens generated in a day by tasks that ended, and by hosted models in answers that broke off. Over it,
    waiting tasks wait for the next day."""
    calls_per_day: _Limit = None
    """API calls in a day of tasks that ended. Over it, waiting tasks wait for the next day."""
    cost_per_day: _Cost = None
    """What hosted models may cost in a day, in the unit of their prices. Over it, waiting tasks wait for the next
    day."""
    dataset_bytes: _Limit = None
    """Bytes of the project's uploaded datasets."""

    @classmethod
    def defaults(cls, settings: Settings) -> "Limits":
        """The server's limits, for projects that have none of their own."""
        return cls(**{name: getattr(settings, f"limit_{name}") for name in cls.__struct_fields__})

    def over(self, defaults: "Limits") -> "Limits":
        """These limits, with those of the server where they are null. 0 becomes None: no limit.

        >>> Limits(queued_tasks=0).over(Limits(queued_tasks=5, running_tasks=2)).running_tasks
        2
        """
        own, others = msgspec.structs.asdict(self), msgspec.structs.asdict(defaults)
        return Limits(**{name: (others[name] if own[name] is None else own[name]) or None for name in own})


class ProjectSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one project, changed by `PATCH /v1/projects/{name}`."""

    # Library
    skills: SkillPolicy = "evidence"
    """How new skills come to be offered: `open` to every task at once, `evidence` as they prove themselves,
    `review` once a person approves them."""
    skill_repairs_per_day: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 10
    """Tasks in 24 hours, at most, that are to write skills anew which a changed API document broke. They only
    read. 0: none, such skills stay in quarantine."""

    # Share of the server
    limits: Limits = Limits()
    """What the project may use: null is the server's default, such as `SAGE_LIMIT_QUEUED_TASKS`, 0 is no limit.
    Only a key for all projects may change it."""
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 1.0
    """Share of the runners while tasks of several projects wait. Only a key for all projects may change it."""

    # Retention
    keep_events: _Days = None
    """Days that the events of a task are kept after its end, except the last one. null: indefinitely."""
    keep_trajectories: _Days = None
    """Days that the trajectory of a task is kept after its end. null: indefinitely. Runs learn from them."""
    keep_tasks: _Days = None
    """Days that a task is kept after its end, with all that belongs to it. null: indefinitely."""

    # Exams on own work
    holdout_percent: Annotated[float, msgspec.Meta(ge=0, le=50)] = 0.0
    """Share of the kinds of tasks that no run learns from: their scored tasks become the exam `own-work`, on which
    the gate examines candidates. A kind is a scenario or, of tasks without one, those with similar instructions
    that called mostly the same."""

    staging: Annotated[dict[str, StagingApi], msgspec.Meta(max_length=1_000)] = {}
    """By the name of an API, the server on which exams and rollouts with `on=staging` may act."""

    # Exploration
    explore_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    """Share of tasks, chosen by a hash, that are sampled at temperature 1 whatever `SAGE_TEMPERATURE` is: runs of
    kind `logged` learn from these alone. null: 25 while a schedule of such runs is enabled, else 0.
    """
    explore_writes: bool = False
    """Whether exploring tasks may make calls that change something, but by operations for which `explore` is set
    to false. If not, they do so only by those for which it is true: one that wants more begins again without
    exploring.
    """

    # Canaries and watches
    canary_days: Annotated[float, msgspec.Meta(ge=1e-4, le=365)] = 14.0
    """Days after which the trial of a canary that passed the gate ends, however few tasks it had."""
    canary_loss: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.2
    """At the end of its trial, a canary that passed the gate is promoted if a larger loss of reward, and a larger
    increase of the share of errors, are ruled out. 1: unless it is certainly worse."""
    canary_most_percent: Annotated[float, msgspec.Meta(ge=0, le=90)] = 50.0
    """Share of the new tasks to which a canary that passed the gate is raised as more failures are ruled out.
    0: it keeps the share that it began with.
    """
    watch_days: Annotated[float, msgspec.Meta(ge=0, le=365)] = 14.0
    """Days for which a release is watched after it was promoted, at most. 0: it is not watched."""
    watch_tasks: Annotated[int, msgspec.Meta(ge=1, le=20_000)] = 2_000
    """Tasks of a release for which it is watched, at most."""
    watch_margin: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.05
    """A watched release is rolled back once its reward is certainly lower by more than this than that of the
    release before, or its share of failures higher."""

    # Approvals and webhook
    approvals: ApprovalRules = msgspec.field(default_factory=ApprovalRules)
    """Which API calls wait for a person."""

    webhook: Webhook | None = None
    """Where events are sent, if anywhere."""

    # Scoring
    verifier: Verifier | None = None
    """The server that scores tasks without a check, if there is one. They are not judged then."""
    rubric: Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00]*$")] = ""
    """What a judge is told to look for in the project's tasks."""
    judge_agreement: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.8
    """Runs learn from a judge's scores once it certainly decides as people do in at least this share of tasks, of
    at least 30: see `GET /v1/judge/agreement`. 0: they do at once."""


def explored_percent(settings: ProjectSettings, *, learns: bool) -> float:
    """The share of tasks that explore; `learns`: runs that learn from them are scheduled.

    >>> given = ProjectSettings(explore_percent=5)
    >>> [explored_percent(each, learns=learns) for each in (ProjectSettings(), given) for learns in (True, False)]
    [25.0, 0.0, 5, 5]
    """
    given = settings.explore_percent
    return given if given is not None else _EXPLORED * learns


def changed(settings: ProjectSettings, patch: Mapping[str, Json]) -> ProjectSettings:
    """Apply a JSON merge patch (RFC 7396): null restores a default. Raises InvalidError that names the field."""
    merged = _merge(msgspec.to_builtins(settings), patch)
    try:
        return msgspec.convert(merged, ProjectSettings)
    except msgspec.ValidationError as error:
        raise InvalidError(f"settings: {error}") from error


def stored(settings: ProjectSettings) -> dict[str, Any]:
    """The fields that differ from their defaults, as JSON."""
    default = msgspec.to_builtins(ProjectSettings())
    return {name: value for name, value in msgspec.to_builtins(settings).items() if value != default[name]}


def _merge(target: Json, patch: Mapping[str, Json]) -> dict[str, Any]:
    merged: dict[str, Any] = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value) if isinstance(value, Mapping) else value
    return merged
