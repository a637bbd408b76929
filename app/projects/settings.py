"""The settings of one project. Every field has a default, and only what differs from it is stored.

With the parts that are settings of their own: limits, rules of approval, staging servers, webhook and verifier.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec

from app.base.errors import InvalidError
from app.base.fields import Text
from app.base.settings import Settings
from app.base.values import Json

Risk: TypeAlias = Literal["none", "low", "medium", "high", "critical"]
"""The levels of the extension `x-risk` of an API document."""

ApprovalMode: TypeAlias = Literal["never", "first", "write", "always", "document"]

OperationPattern: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9_*?]{1,64}\.[A-Za-z0-9_*?]{1,200}(?!\n)$",
        description="`app.operation`; `*` stands for any characters, `?` for one",
    ),
]

_STRICTNESS: Sequence[ApprovalMode] = ("never", "document", "first", "write", "always")
_OF_RISK: dict[Risk, ApprovalMode] = {"medium": "write", "high": "always", "critical": "always"}


class ApprovalRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which calls wait for a person: `always`, `write` (unless the operation is read-only) or `never`.

    `document` follows the operation's `x-risk` in the API document: `high` and `critical` wait always, `medium` as
    `write`, all others never. `first` is `document`, and also lets an operation that may change something wait
    until a task of the project that was scored as a success has called it.
    """

    default: ApprovalMode = "document"
    """Mode of the operations that no pattern matches."""
    operations: Annotated[dict[OperationPattern, ApprovalMode], msgspec.Meta(max_length=1_000)] = {}
    """Modes by `app.operation`, with `*` and `?` as wildcards; the pattern with the most other characters wins."""
    timeout_seconds: Annotated[float, msgspec.Meta(ge=1, le=2_592_000)] = 86_400
    """A call that nobody decided on for this long counts as refused."""
    max_writes: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 10
    """Calls of one task that may change something and that nobody approved; the next one waits. An approved one
    lets as many go out, itself among them. 0: no limit."""

    def wants(
        self,
        api: str,
        *,
        safe: bool,
        risk: Risk | None,
        former: Sequence[str] = (),
        own: ApprovalMode | None = None,
    ) -> bool:
        """Whether each call of an operation waits. `safe` operations are read-only."""
        mode = self.mode(api, risk=risk, former=former, own=own)
        return mode == "always" or (mode == "write" and not safe)

    def mode(
        self,
        api: str,
        *,
        risk: Risk | None,
        former: Sequence[str] = (),
        own: ApprovalMode | None = None,
    ) -> ApprovalMode:
        """The mode of an operation, which is never `document`. `own` is what is set for it alone.

        Rules for one of its `former` names still hold: where they differ from those for its name, the stricter do.
        """
        ruled = [mode for each in former if (mode := self._ruled(each)) is not None]
        named = self._ruled(api) if own is None else max(own, self.operations.get(api, own), key=_STRICTNESS.index)
        ruled += [] if named is None else [named]
        strictest: ApprovalMode = max(ruled, key=_STRICTNESS.index, default=self.default)
        if strictest not in ("document", "first"):
            return strictest
        declared: ApprovalMode = _OF_RISK.get(risk, "never") if risk else "never"
        return declared if strictest == "document" else max(strictest, declared, key=_STRICTNESS.index)

    def _ruled(self, api: str) -> ApprovalMode | None:
        """The mode of the pattern that matches best."""
        matching = [pattern for pattern in self.operations if fnmatchcase(api, pattern)]
        if not matching:
            return None
        closest = max(matching, key=lambda each: (_literal(each), _STRICTNESS.index(self.operations[each])))
        return self.operations[closest]


def _literal(pattern: str) -> int:
    return sum(letter not in "*?" for letter in pattern)


WebhookEvent: TypeAlias = Literal[
    "approval.wanted", "task.done", "task.failed", "task.cancelled", "release.rolled_back"
]


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An address that is told of events. `PATCH` also takes a `secret`, which is never shown again."""

    url: Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^https?://")]
    """Receives one POST for each event, signed with the secret."""
    events: Annotated[tuple[WebhookEvent, ...], msgspec.Meta(min_length=1, max_length=20)] = get_args(WebhookEvent)
    """The events to send; without it all."""

    def masked(self) -> "Webhook":
        """Without the path and query of the URL, which may hold a token.

        >>> Webhook(url="https://example.org:8443/hooks/token?key=1").masked().url
        'https://example.org:8443/***'
        """
        return msgspec.structs.replace(self, url=_without_path(self.url))


def _without_path(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/***"


def is_callable_url(url: str) -> bool:
    """Whether an address can be called, and holds no password."""
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and parts.port != 0 and parts.username is None and not parts.fragment
    except ValueError:  # of a port that is not a number, or a bracket that does not close
        return False
    return valid and url.isprintable() and " " not in url


SecretName = Annotated[Text, msgspec.Meta(min_length=1, max_length=200)]


_Text = Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00\r\n]*(?!\n)$")]
_Name = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\s\x00;=,]+(?!\n)$")]
_FileName = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(?!\n)$")]
_Reference = Annotated[str, msgspec.Meta(max_length=210, pattern=r"^secret:[^\x00\n]+(?!\n)$")]


class StagingCredential(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What staging gets for one security scheme, as in `credentials` of the API; secrets as `secret:NAME`.

    An API key or a token is a `value`. For a scheme of OAuth it is a token that lasts: none is asked for.
    """

    value: _Reference | None = None
    """Key or token, as `secret:NAME`."""
    username: _Text | None = None
    """Of `basic`, with `password`."""
    password: _Reference | None = None
    """As `secret:NAME`."""
    certificate: _FileName | None = None
    """A file in `SAGE_CLIENT_CERTIFICATES`: chain and key in PEM."""
    place: Literal["header", "query", "cookie"] | None = None
    """Of a scheme that the document does not declare, with `name`."""
    name: _Name | None = None
    """Name of that header, parameter or cookie."""
    prefix: _Name | None = None
    """What stands before the value there, such as `Token`."""


class StagingApi(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A second server of one API. Nothing of its first one is sent there, neither tokens nor bound secrets."""

    server: Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^https?://[^\s{}/]+(/\S*)?(?!\n)$")]
    """Its base URL, of another origin than those that tasks call; with the variables of the document, if any."""
    token_secret: SecretName | None = None
    """The stored secret that is sent as its bearer token."""
    credentials: Annotated[dict[SecretName, StagingCredential], msgspec.Meta(max_length=50)] = {}
    """By the name of a security scheme. Nothing is needed where staging asks for nothing."""
    secrets: Annotated[dict[SecretName, SecretName], msgspec.Meta(max_length=100)] = {}
    """For each secret that is bound to a parameter of the API, the stored secret that staging gets instead."""
    reset: Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?!\n)$")] | None = None
    """An operation of the API without arguments, called before each trial to restore what trials change."""
    reset_url: Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^https?://")] | None = None
    """Receives a signed POST before each trial instead, and answers once what trials change is restored."""
    reset_secret: SecretName | None = None
    """The stored secret `whsec_<base64>` that signs it, as messages to a webhook are."""
    stateless: bool = False
    """Whether nothing needs to be restored, as what one trial changes there concerns no other."""

    def __post_init__(self) -> None:
        if self.reset is not None and self.reset_url is not None:
            raise ValueError("name either `reset` or `reset_url`")
        if self.stateless and (self.reset or self.reset_url):
            raise ValueError("`stateless` needs no reset: leave one of them out")
        if (self.reset_url is None) != (self.reset_secret is None):
            raise ValueError("`reset_url` and `reset_secret` need each other: the POST is signed with the secret")
        for name, url in (("server", self.server), ("reset_url", self.reset_url)):
            if url is not None and not is_callable_url(url):
                raise ValueError(f"`{name}`: write http://host/path or https://, without a user or fragment")

    @property
    def is_restored(self) -> bool:
        """Whether no trial meets what another one changed."""
        return self.stateless or self.reset is not None or self.reset_url is not None

    def masked(self) -> "StagingApi":
        """Without the path and query of `reset_url`, which may hold a token."""
        return msgspec.structs.replace(self, reset_url=self.reset_url and _without_path(self.reset_url))


class Verifier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that is asked for the score of each task that is done and had no check. `PATCH` also takes a
    `secret`, which is never shown again.
    """

    url: Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^https?://")]
    """Receives one POST for each task, signed with the secret as messages to a webhook are."""

    def masked(self) -> "Verifier":
        """Without the path and query of the URL, which may hold a token."""
        return Verifier(url=_without_path(self.url))


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
    watch_days: Annotated[float, msgspec.Meta(ge=0, le=365)] = 14.0
    """Days for which a release is watched after it was promoted, or until it has had 2,000 tasks. 0: it is not
    watched."""
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
    rubric: Annotated[Text, msgspec.Meta(max_length=10_000)] = ""
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
