"""The whole schema, in the order of the concepts: each table, with the states of its rows and their moves.

Every change needs a migration.
"""

from datetime import date, datetime
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID, uuid4

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Computed,
    DateTime,
    Double,
    Enum,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    SmallInteger,
    UniqueConstraint,
    Uuid,
    case,
    cast,
    false,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSON, JSONB, TSVECTOR
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column

from app.base.run_settings import RunKind
from app.base.values import HOSTED, ScoreSource, Stop
from app.db.database import CleanText


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        str: CleanText,
        bytes: LargeBinary,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[str]: ARRAY(CleanText),
        StrEnum: Enum(
            StrEnum, native_enum=False, length=32, values_callable=lambda kind: [each.value for each in kind]
        ),
    }


class Entity(Base):
    """A row with an id and the time of its creation."""

    __abstract__ = True

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4, sort_order=-1)
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class Leased(Base):
    """A row of a queue, which one process at a time works on; see `lease.LeaseQueue`."""

    __abstract__ = True

    owner: Mapped[str | None]  # the claim that holds the lease: see `lease.new_claim`
    lease_until: Mapped[datetime | None]
    attempt: Mapped[int] = mapped_column(default=0)
    finished_at: Mapped[datetime | None]


class Due(Leased):
    """A message to a server of a project; see `lease.DueQueue`."""

    __abstract__ = True

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    next_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())  # of the next attempt


def listing_indexes(table: str, by: str = "", *, sparse: bool = False) -> tuple[Index, Index]:
    """What a listing reads, newest first, that is filtered by a column: one index for a project, one for all.

    `sparse` leaves out the rows where the column is NULL.
    """
    suffix, columns = (f"_{by}", (by, "created_at", "id")) if by else ("", ("created_at", "id"))
    where = text(f"{by} IS NOT NULL") if sparse else None
    return (
        Index(f"ix_{table}_listing{suffix}", "project_id", *columns, postgresql_where=where),
        Index(f"ix_{table}_newest{suffix}", *columns, postgresql_where=where),
    )


# Projects


class Project(Entity):
    """The unit of isolation: APIs, skills, tasks, trajectories, releases and keys belong to one project."""

    __tablename__ = "projects"

    name: Mapped[str] = mapped_column(unique=True)
    skill_rev: Mapped[int] = mapped_column(BigInteger, default=0)  # every write to a skill takes the next number
    settings: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")  # ProjectSettings
    webhook_secret: Mapped[str | None]  # encrypted
    verifier_secret: Mapped[str | None]  # encrypted


class Key(Entity):
    """An API key. Only its hash is stored. Without a project it is valid for all."""

    __tablename__ = "keys"

    name: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)  # sha256, hex
    hint: Mapped[str]  # the first characters, for people
    scopes: Mapped[list[str]]
    project_id: Mapped[UUID | None] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    revoked_at: Mapped[datetime | None]


class SignIn(Entity):
    """A session of the console, or the link that starts one. Only the hash of its secret is stored."""

    __tablename__ = "sign_ins"
    __table_args__ = (Index("ix_sign_ins_expires_at", "expires_at"),)

    hash: Mapped[str] = mapped_column(unique=True)  # sha256, hex
    key_id: Mapped[UUID] = mapped_column(ForeignKey("keys.id", ondelete="CASCADE"), index=True)
    link: Mapped[bool]  # True: it starts a session, once
    by_link: Mapped[bool] = mapped_column(default=False, server_default=false())  # the session: a link began it
    expires_at: Mapped[datetime]


class Secret(Entity):
    """A value that the gateway fills in. It is encrypted, and never shown again."""

    __tablename__ = "secrets"
    __table_args__ = (UniqueConstraint("project_id", "name"),)

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    value: Mapped[str]  # encrypted
    used_at: Mapped[datetime | None]  # by a task


class ProjectTurn(Base):
    """The virtual time at which a task of the project was last claimed; see `fair_queue`."""

    __tablename__ = "project_turns"

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    turn: Mapped[float | None] = mapped_column(Double)  # NULL: never


class ProjectUsage(Base):
    """What a project used on one day (UTC), as the sum over `writer`.

    Runners are spread over several rows, and submissions have their own, so that a process which stops in the
    middle of a transaction keeps few others waiting.
    """

    __tablename__ = "project_usage"

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    writer: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    submitted: Mapped[int] = mapped_column(BigInteger, server_default="0")
    done: Mapped[int] = mapped_column(BigInteger, server_default="0")
    failed: Mapped[int] = mapped_column(BigInteger, server_default="0")
    cancelled: Mapped[int] = mapped_column(BigInteger, server_default="0")
    turns: Mapped[int] = mapped_column(BigInteger, server_default="0")
    generated_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    calls: Mapped[int] = mapped_column(BigInteger, server_default="0")
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    cost: Mapped[float] = mapped_column(server_default="0")  # of hosted models whose price is known
    other_cost: Mapped[float] = mapped_column(server_default="0")  # the part of it that was for no task


# APIs


class PracticeSource(StrEnum):
    DOCUMENT = "document"
    READ = "read"  # of the real API is read, too


class Api(Entity):
    """An API document of a project. The gateway adds its static bearer token."""

    __tablename__ = "apis"
    __table_args__ = (
        UniqueConstraint("project_id", "name"),
        Index("ix_apis_refresh", "refresh_at", postgresql_where=text("refresh_at IS NOT NULL")),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    source: Mapped[str]  # the URL it came from, or "upload"
    server: Mapped[str | None]  # overrides the document's server
    document: Mapped[dict[str, Any]] = mapped_column(JSON)  # not JSONB, which forgets the order of arguments
    digest: Mapped[str]
    token: Mapped[str | None]  # encrypted
    bind: Mapped[dict[str, Any]] = mapped_column(
        default=dict, server_default="{}"
    )  # see `arguments.bind_parameters`
    secrets_for: Mapped[str | None]  # the server that its secrets were given for; null: of any version of it
    token_origins: Mapped[list[str]] = mapped_column(default=list, server_default="{}")  # besides that server's
    presentation: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")  # `apis.presentation`
    checked_at: Mapped[datetime | None]  # its document was fetched again
    check_failure: Mapped[str | None]  # why it could not be, the last time
    refresh_at: Mapped[datetime | None]  # when its MCP server is to be asked for its tools again
    refresh_tries: Mapped[int] = mapped_column(SmallInteger, default=0, server_default="0")
    practice: Mapped[PracticeSource] = mapped_column(  # what its double is made of
        default=PracticeSource.DOCUMENT, server_default=PracticeSource.DOCUMENT
    )
    comparison: Mapped[dict[str, Any] | None] = mapped_column(JSONB)  # `apis.store.Comparison`, the latest

    @property
    def has_token(self) -> bool:
        return self.token is not None


class ApiChange(Entity):
    """The difference that a document had when it was fetched again. Operations by name."""

    __tablename__ = "api_changes"
    __table_args__ = (Index("ix_api_changes_api_id", "api_id", "created_at"),)

    api_id: Mapped[UUID] = mapped_column(ForeignKey("apis.id", ondelete="CASCADE"))
    digest: Mapped[str]  # of the new document
    applied: Mapped[bool]  # False: a person has to register it
    added: Mapped[list[str]]
    removed: Mapped[list[str]]
    changed: Mapped[list[str]]
    eased: Mapped[list[str]]  # that would need a person's approval less often, or not be writes any more
    skills: Mapped[list[str]]  # ids of those that no longer fit, and were quarantined


_CORRECT = """jsonb_array_length(jsonb_path_query_array(questions, '$[*]?(@."correct" == true)'))"""


class TrialState(StrEnum):
    WAITING = "waiting"  # or under way, while a process holds it
    DONE = "done"
    NOT_TRIED = "not_tried"  # `reason` says why
    OFF = "off"  # a person does not want it


class ApiTrial(Due):
    """The latest trial of an API. Unfinished rows are a queue."""

    __tablename__ = "api_trials"
    __table_args__ = (
        Index("ix_api_trials_queue", "project_id", "next_at", postgresql_where=text("finished_at IS NULL")),
    )

    api_id: Mapped[UUID] = mapped_column(ForeignKey("apis.id", ondelete="CASCADE"), primary_key=True)
    state: Mapped[TrialState] = mapped_column(default=TrialState.WAITING)
    reason: Mapped[str | None]
    inputs: Mapped[str | None]  # hash of the document, the weights, the prompt and the model it was begun with
    release_id: Mapped[UUID | None] = mapped_column(  # whose model was asked
        ForeignKey("releases.id", ondelete="SET NULL"), index=True
    )
    credentials: Mapped[str | None]  # the names of those that there were
    questions: Mapped[list[Any]] = mapped_column(JSONB, default=list)  # `trials.Tried`: with turns, up to a MB
    # PostgreSQL counts them at each write, so that no list of trials reads them
    correct: Mapped[int] = mapped_column(Computed(_CORRECT, persisted=True))
    asked: Mapped[int] = mapped_column(Computed("jsonb_array_length(questions)", persisted=True))


class ApiCredential(Entity):
    """What the gateway sends for one security scheme of an API, for all tasks or for those of one principal.

    Also the record of uses of an API's static token, which is stored with the API.
    """

    __tablename__ = "api_credentials"
    __table_args__ = (UniqueConstraint("api_id", "scheme", "principal"),)

    api_id: Mapped[UUID] = mapped_column(ForeignKey("apis.id", ondelete="CASCADE"))
    scheme: Mapped[str]
    principal: Mapped[str]  # "": all that have none of their own
    value: Mapped[str | None]  # encrypted JSON of a `Credential`
    kind: Mapped[str]  # of the scheme
    authorized: Mapped[bool]  # False: a person has to connect it first
    expires_at: Mapped[datetime | None]  # of an access token
    renewing_until: Mapped[datetime | None]  # a process asks for a new token until then
    connected_at: Mapped[datetime | None]  # a person has consented
    wanted_scopes: Mapped[list[str] | None]  # that the API asked for, and only a person can grant
    used_at: Mapped[datetime | None]  # by a task
    failed_at: Mapped[datetime | None]
    failure: Mapped[str | None]  # the last one, without secrets


class OAuthAttempt(Base):
    """A person was sent to an authorization server, and has not come back yet."""

    __tablename__ = "oauth_attempts"

    state: Mapped[str] = mapped_column(primary_key=True)  # sha256 of the parameter
    credential_id: Mapped[UUID] = mapped_column(ForeignKey("api_credentials.id", ondelete="CASCADE"))
    verifier: Mapped[str]  # of PKCE, encrypted
    value: Mapped[str | None]  # the credential that was asked for, as that of `ApiCredential`
    redirect_url: Mapped[str]
    expires_at: Mapped[datetime]


class ApprovalState(StrEnum):
    WAITING = "waiting"  # and its task with it
    APPROVED = "approved"
    REFUSED = "refused"
    EXPIRED = "expired"  # nobody decided in time
    WITHDRAWN = "withdrawn"  # its task was cancelled


class Approval(Entity):
    """One API call of a task, and the decision about it."""

    __tablename__ = "approvals"
    __table_args__ = (
        *listing_indexes("approvals"),
        *listing_indexes("approvals", "state"),
        Index("ix_approvals_due", "expires_at", postgresql_where=text("state = 'waiting'")),
        Index("uq_approvals_one_waiting", "task_id", unique=True, postgresql_where=text("state = 'waiting'")),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), index=True)
    seq: Mapped[int]  # of the call
    turn: Mapped[int]
    api: Mapped[str]  # "app.operation"
    arguments: Mapped[dict[str, Any]]  # masked
    shown: Mapped[str | None]  # the `ShownCall` that a person decides by, encrypted; null once somebody has
    digest: Mapped[str]  # of the exact arguments; "" once the task has ended
    state: Mapped[ApprovalState] = mapped_column(default=ApprovalState.WAITING)
    expires_at: Mapped[datetime]
    decided_at: Mapped[datetime | None]
    decided_by: Mapped[str | None]  # "key <name>" or "server"
    reason: Mapped[str] = mapped_column(default="")  # that the agent reads if it was refused


# Tasks


_COUNTED = [
    "id",
    "state",
    "scenario",
    "release_id",
    "score",
    "turns",
    "generated_tokens",
    "started_at",
    "stop",
    "reads_only",
    "repairs",
]  # by `statistics`, `task_outcomes` and `skill_savings`


class TaskState(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    WAITING = "waiting"  # for a person's approval of a call; nothing of it runs
    DONE = "done"  # the rollout ended; `stop` is the reason
    FAILED = "failed"  # it could not be executed, or nothing was done; `failure` is the reason
    CANCELLED = "cancelled"


class Exploration(StrEnum):
    """Whether a task is sampled at temperature 1, for runs to learn from, and what it may call then."""

    NO = "no"
    READS = "reads"  # what changes nothing, and operations that are opened to exploration
    WRITES = "writes"  # all that tasks may, but operations that are closed to it
    STOPPED = "stopped"  # it explored, wanted more, and began again without


TASK_MOVES = {
    TaskState.ACCEPTED: {TaskState.RUNNING, TaskState.CANCELLED},
    TaskState.RUNNING: {TaskState.WAITING, TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED},
    TaskState.WAITING: {TaskState.RUNNING, TaskState.CANCELLED},
    TaskState.DONE: set[TaskState](),  # but a task with a call in doubt is taken back to RUNNING: see `settle`
    TaskState.FAILED: set[TaskState](),
    TaskState.CANCELLED: set[TaskState](),
}
TASK_END_STATES = {state for state, moves in TASK_MOVES.items() if not moves}


class Task(Entity, Leased):
    """A submitted task. The accepted rows are the queue."""

    __tablename__ = "tasks"
    __table_args__ = (
        UniqueConstraint("project_id", "idempotency_key"),
        Index("ix_tasks_queue", "created_at", postgresql_where=text("state IN ('accepted', 'running')")),
        Index(
            "ix_tasks_waiting",
            "project_id",
            text("priority DESC"),
            "created_at",
            "id",
            postgresql_where=text("state = 'accepted'"),
        ),
        Index("ix_tasks_running", "project_id", "lease_until", postgresql_where=text("state = 'running'")),
        *listing_indexes("tasks"),
        *listing_indexes("tasks", "state"),
        *listing_indexes("tasks", "stop", sparse=True),
        *listing_indexes("tasks", "scenario", sparse=True),
        Index(
            "ix_tasks_finished",
            "project_id",
            "finished_at",
            postgresql_include=_COUNTED,
            postgresql_where=text("finished_at IS NOT NULL"),
        ),
        Index("ix_tasks_skill_runs", "project_id", "id", postgresql_where=text("skill_run IS NOT NULL")),
        Index("ix_tasks_release", "release_id", "started_at"),
        listing_indexes("tasks", "release_id", sparse=True)[1],
        Index("ix_tasks_rerun_of", "rerun_of", postgresql_where=text("rerun_of IS NOT NULL")),
        Index("ix_tasks_repairs", "project_id", "created_at", postgresql_where=text("repairs IS NOT NULL")),
        Index("ix_tasks_principal", "project_id", "principal"),
        Index(
            "ix_tasks_scored",
            "project_id",
            "score",
            postgresql_include=["score_source"],  # schedules count without a judge's
            postgresql_where=text("score IS NOT NULL"),
        ),
        Index("ix_tasks_score", "score", postgresql_where=text("score IS NOT NULL")),
        Index(
            "ix_tasks_contradicted",
            "project_id",
            "created_at",
            "id",
            postgresql_where=text("highest_score IS NOT NULL"),
        ),
        Index("ix_tasks_judged", "project_id", "judged_by", postgresql_where=text("judged_by IS NOT NULL")),
        Index("ix_tasks_suspects", "lease_until", postgresql_where=text("deaths > 0 AND state = 'running'")),
        CheckConstraint("score BETWEEN 0 AND 1", name="score"),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id"))  # pinned when it is first claimed
    pinned: Mapped[bool] = mapped_column(
        default=False, server_default=false()
    )  # its release, or its code, was chosen by its submitter: it is not compared with others
    rerun_of: Mapped[UUID | None] = mapped_column(ForeignKey("tasks.id", ondelete="SET NULL"))
    # a skill that an API change broke; the task only reads, also once that skill is erased: no foreign key
    repairs: Mapped[UUID | None]
    reads_only: Mapped[bool] = mapped_column(default=False, server_default=false())  # as an expert's does
    key_id: Mapped[UUID | None]  # that submitted it; NULL for the server's own. Keys may go: no foreign key
    principal: Mapped[str] = mapped_column(default="", server_default="")  # on whose behalf it is carried out
    priority: Mapped[int] = mapped_column(SmallInteger, default=0, server_default="0")  # higher goes first
    instruction: Mapped[str]
    conversation: Mapped[str] = mapped_column(default="", server_default="")  # what was said before
    scenario: Mapped[str | None]
    variables: Mapped[dict[str, Any]] = mapped_column(default=dict)  # of the documents' server URLs
    use_skills: Mapped[bool] = mapped_column(default=True)
    exploration: Mapped[Exploration | None]  # NULL: it was not chosen, or not yet
    check_code: Mapped[str | None]  # Python that scores the finished task
    skill_run: Mapped[dict[str, Any] | None] = mapped_column(
        JSONB(none_as_null=True)
    )  # `values.SkillRun`; NULL: the policy works on the instruction
    idempotency_key: Mapped[str | None]
    request_digest: Mapped[str | None]  # of the submission, to distinguish a repetition from a conflict
    state: Mapped[TaskState] = mapped_column(default=TaskState.ACCEPTED)
    stop: Mapped[Stop | None]
    answer: Mapped[Any] = mapped_column(JSONB(none_as_null=True), nullable=True)
    failure: Mapped[str | None]
    score: Mapped[float | None]  # in [0, 1]: of the latest feedback, or without any of the next source
    score_source: Mapped[ScoreSource | None]
    scored_by: Mapped[UUID | None]  # the key over which a person's score came; NULL: at the console, by a link
    checked: Mapped[bool] = mapped_column(default=False)  # it had a score of its check or a judge when it ended
    overruled_score: Mapped[float | None]  # the first score that a source that counts for more has replaced
    lowest_score: Mapped[float | None]  # of all that were given; NULL, as the highest: at most one was
    highest_score: Mapped[float | None]
    judged_by: Mapped[str | None]  # the judge whose score it is, or the overruled one
    turns: Mapped[int] = mapped_column(default=0)
    generated_tokens: Mapped[int] = mapped_column(default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")  # of all its prompts
    cost: Mapped[float | None]  # of its hosted model, in the unit of the prices; NULL where these are unknown
    calls: Mapped[int] = mapped_column(default=0)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    deaths: Mapped[int] = mapped_column(default=0, server_default="0")  # of runners that had it
    lone_deaths: Mapped[int] = mapped_column(default=0, server_default="0")  # in a row, of those without another
    lone_kills: Mapped[int] = mapped_column(
        default=0, server_default="0"
    )  # of these, by what was outside, or unknown
    sandbox_failures: Mapped[int] = mapped_column(default=0, server_default="0")  # for which it was postponed
    broken_answers: Mapped[int] = mapped_column(default=0, server_default="0")  # after which it was postponed
    alone: Mapped[bool] = mapped_column(default=False, server_default=false())  # its latest runner had no other
    prompt: Mapped[str | None]  # hash of the prompt that it began under
    started_at: Mapped[datetime | None]  # of the first attempt; also the clock the sandbox shows

    @property
    def seed(self) -> int:
        """The same for all attempts at it, and for its shadows."""
        return self.id.int & 0x7FFFFFFF


class Trajectory(Entity):
    """The trajectory of a task, as msgpack of `values.Trajectory`; columns repeat only what is queried."""

    __tablename__ = "trajectories"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), unique=True)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id"))
    record: Mapped[bytes]


class Feedback(Entity):
    """A person's score of a task."""

    __tablename__ = "feedback"
    __table_args__ = (CheckConstraint("score BETWEEN 0 AND 1", name="score"),)

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), index=True)
    score: Mapped[float]
    comment: Mapped[str | None]
    author: Mapped[str | None]  # "key <name>"; NULL before this was recorded
    turn: Mapped[int | None]  # that it is about, counted from 0; NULL: the whole task
    lowest: Mapped[float] = mapped_column(default=0.0)  # of the scale that the score was given on
    highest: Mapped[float] = mapped_column(default=1.0)


class TaskEvent(Base):
    """An event of the task's event stream."""

    __tablename__ = "task_events"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class TaskTurn(Base):
    """A turn of the policy, stored before its code runs and replayed by a resumed task."""

    __tablename__ = "task_turns"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    record: Mapped[bytes]  # msgpack of values.Turn, encrypted
    ended: Mapped[bool] = mapped_column(default=False)  # the record also holds the observation


class TaskCall(Base):
    """An API call, committed before it goes out and completed with its result."""

    __tablename__ = "task_calls"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    api: Mapped[str]
    arguments: Mapped[dict[str, Any]]  # {} where they are encrypted
    sealed_arguments: Mapped[bytes | None]  # JSON, encrypted
    repeatable: Mapped[bool]  # safe to send again if the result was lost
    record: Mapped[bytes | None]  # msgpack of values.Call, encrypted; NULL while the call is in flight


class TaskWords(Base):
    """The words of a task's instruction. Apart from the task, because its row changes often, and they never do."""

    __tablename__ = "task_words"
    __table_args__ = (
        Index("ix_task_words_words", "words", postgresql_using="gin"),
        Index("ix_task_words_listing", "project_id", "created_at", "task_id"),
        Index("ix_task_words_newest", "created_at", "task_id"),
    )

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    project_id: Mapped[UUID]
    created_at: Mapped[datetime]
    words: Mapped[Any] = mapped_column(TSVECTOR)


class VerificationState(StrEnum):
    PENDING = "pending"
    SCORED = "scored"
    ABSTAINED = "abstained"  # it answered that it cannot score the task
    FAILED = "failed"  # given up; `problem` is the reason


class Verification(Due):
    """The question about one task. `attempt` counts the times it was asked."""

    __tablename__ = "verifications"
    __table_args__ = (
        Index("ix_verifications_queue", "project_id", "next_at", postgresql_where=text("state = 'pending'")),
        Index("ix_verifications_leased", "project_id", postgresql_where=text("owner IS NOT NULL")),
    )

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    state: Mapped[VerificationState] = mapped_column(default=VerificationState.PENDING)
    problem: Mapped[str | None]  # of the latest attempt
    reason: Mapped[str | None]  # of the answer


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"  # given up, until somebody has it sent again


class WebhookDelivery(Entity, Due):
    """A message about an event of a task or a release, stored in the transaction of the event.

    `attempt` counts the times it was sent.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_queue", "project_id", "next_at", postgresql_where=text("state = 'pending'")),
        Index("ix_webhook_deliveries_leased", "project_id", postgresql_where=text("owner IS NOT NULL")),
        *listing_indexes("webhook_deliveries"),
        *listing_indexes("webhook_deliveries", "state"),
        Index("ix_webhook_deliveries_finished", "finished_at"),
    )

    task_id: Mapped[UUID | None] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), index=True)
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id", ondelete="CASCADE"), index=True)
    event: Mapped[str]
    body: Mapped[str]  # the same at every attempt
    state: Mapped[DeliveryState] = mapped_column(default=DeliveryState.PENDING)
    status: Mapped[int | None]  # HTTP status of the latest answer
    error: Mapped[str | None]  # of the latest attempt


# Skills


class SkillState(StrEnum):
    QUARANTINED = "quarantined"  # offered only to tasks of its principal, or to nobody while it is held
    PROBATION = "probation"  # offered to all, or to its principal's tasks while another version serves the others
    ACTIVE = "active"
    SUPERSEDED = "superseded"  # replaced by another version of the name, or removed by a rollback
    RETIRED = "retired"  # taken out by hand or with a rejected release, can be restored
    DELETED = "deleted"  # its source is gone; the row stays for what refers to it


LIVE_SKILLS = (SkillState.QUARANTINED, SkillState.PROBATION, SkillState.ACTIVE)
_OUT = {SkillState.SUPERSEDED, SkillState.RETIRED, SkillState.DELETED}
SKILL_MOVES = {
    SkillState.QUARANTINED: {
        SkillState.QUARANTINED,
        SkillState.PROBATION,
        *_OUT,
    },  # again, after another violation
    SkillState.PROBATION: {SkillState.QUARANTINED, SkillState.ACTIVE, *_OUT},
    SkillState.ACTIVE: {SkillState.QUARANTINED, SkillState.PROBATION, *_OUT},
    SkillState.SUPERSEDED: {*LIVE_SKILLS, SkillState.DELETED},  # a rollback restores the state of its time
    SkillState.RETIRED: {*LIVE_SKILLS, SkillState.DELETED},
    SkillState.DELETED: set[SkillState](),
}
NEXT_SKILL_STATE = {
    SkillState.QUARANTINED: SkillState.PROBATION,
    SkillState.PROBATION: SkillState.ACTIVE,
}  # once it is earned or approved


class Skill(Entity):
    """A function that the agent wrote and that passed its checks. Never edited: a change is a new version."""

    __tablename__ = "skills"
    __table_args__ = (
        UniqueConstraint("project_id", "name", "version"),
        *listing_indexes("skills"),
        *listing_indexes("skills", "state"),
        *listing_indexes("skills", "scenario", sparse=True),
        Index("ix_skills_newest_principal", "principal", "created_at", "id"),
        Index("ix_skills_newest_name", "name", "created_at", "id"),
        Index("ix_skills_api_terms", func.skill_api_terms(literal_column("apis")), postgresql_using="gin"),
        Index("ix_skills_rev", "project_id", "rev"),
        Index("ix_skills_embedder", "state", "embedder"),
        Index("ix_skills_release", "release_id"),
        Index(
            "uq_skills_one_active_version",
            "project_id",
            "name",
            unique=True,
            postgresql_where=text("state = 'active'"),
        ),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    version: Mapped[int]
    state: Mapped[SkillState] = mapped_column(default=SkillState.ACTIVE)
    signature: Mapped[str]
    source: Mapped[str]
    apis: Mapped[list[str]]  # "app.operation" it called when it was validated: all it may ever call
    instruction: Mapped[str]
    described: Mapped[bool] = mapped_column(default=False, server_default=false())  # `instruction` describes it
    slots: Mapped[list[str]] = mapped_column(default=list)  # its words that were arguments: a search skips them
    scenario: Mapped[str | None]
    task_id: Mapped[UUID | None] = mapped_column(  # that made it
        ForeignKey("tasks.id", ondelete="SET NULL"), index=True
    )
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id"))
    principal: Mapped[str] = mapped_column(default="", server_default="")  # whose task made it
    taint: Mapped[str] = mapped_column(default="", server_default="")  # the text from outside it may stem from
    manifest: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # NULL: `apis`
    former: Mapped[SkillState | None]  # the live state that it left; NULL: none, or active in an earlier version
    held: Mapped[bool] = mapped_column(default=False, server_default=false())  # offered to nobody until approved
    violations: Mapped[int] = mapped_column(default=0, server_default="0")  # calls beyond its manifest
    reason: Mapped[str] = mapped_column(default="", server_default="")  # for its state
    moved_by: Mapped[str] = mapped_column(default="", server_default="")  # the actor who gave it its state
    embedder: Mapped[str | None]  # the model of both vectors; NULL until it is asked for them
    query_vector: Mapped[bytes | None]  # of the instruction, float32; NULL also if it refuses the text
    source_vector: Mapped[bytes | None]
    rev: Mapped[int] = mapped_column(BigInteger)


class SkillOffer(Base):
    """A skill that a task was offered, and its use: an edge from the task that wrote it."""

    __tablename__ = "skill_offers"
    __table_args__ = (
        Index("ix_skill_offers_latest", "skill_id", "created_at"),
        Index("ix_skill_offers_used", "skill_id", "created_at", postgresql_where=text("calls > 0")),
    )

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    skill_id: Mapped[UUID] = mapped_column(ForeignKey("skills.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int]
    ranks: Mapped[dict[str, Any]]
    calls: Mapped[int] = mapped_column(default=0)
    returned: Mapped[int] = mapped_column(default=0)  # calls that returned without raising
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class WithheldSkill(Base):
    """A skill that a task would have been offered, had it not been chosen to do without."""

    __tablename__ = "withheld_skills"
    __table_args__ = (Index("ix_withheld_skills_latest", "skill_id", "created_at"),)

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    skill_id: Mapped[UUID] = mapped_column(ForeignKey("skills.id", ondelete="CASCADE"), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class TaskSelection(Base):
    """The skills that were found for a task, and why each was offered to it or not."""

    __tablename__ = "task_selections"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    record: Mapped[dict[str, Any]]  # as `skills.selection` writes it


class SkillReplay(Base):
    """A skill run again on the recorded calls of a task."""

    __tablename__ = "skill_replays"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    skill_id: Mapped[UUID] = mapped_column(
        ForeignKey("skills.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    matched: Mapped[bool]  # it made the same calls and returned
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class RepairOutcome(StrEnum):
    RESTORED = "restored"  # to its state from before the change
    REPAIRED = "repaired"  # another skill does its work with the changed API
    RETIRED = "retired"  # what was tried did not help, or nothing could be tried
    LEFT = "left"  # where it is: in quarantine, or where somebody else moved it meanwhile


class SkillRepair(Entity, Leased):
    """A skill that was quarantined for a change. Unfinished rows are a queue; a skill has one at a time."""

    __tablename__ = "skill_repairs"
    __table_args__ = (
        UniqueConstraint("skill_id", "change_id"),
        Index("ix_skill_repairs_queue", "next_at", postgresql_where=text("finished_at IS NULL")),
        Index("ix_skill_repairs_change_id", "change_id"),
    )

    skill_id: Mapped[UUID] = mapped_column(ForeignKey("skills.id", ondelete="CASCADE"))
    change_id: Mapped[UUID] = mapped_column(ForeignKey("api_changes.id", ondelete="CASCADE"))
    was: Mapped[SkillState]  # its state before the change
    fits: Mapped[bool]  # its manifest fits the new document, as far as that shows
    tested: Mapped[bool] = mapped_column(default=False)  # on recorded calls, or there were none
    tries: Mapped[int] = mapped_column(default=0)  # tasks that were to repair it
    task_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("tasks.id", ondelete="SET NULL"), index=True
    )  # the latest
    tried: Mapped[list[str]] = mapped_column(default=list)  # what was done, in words
    outcome: Mapped[RepairOutcome | None]
    next_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())  # when to go on


# Releases


class HostedModel(Entity):
    """An endpoint of chat completions that a project may use as policy, expert or judge.

    `releases.model` is `records.hosted(id)` where it is the policy.
    """

    __tablename__ = "hosted_models"
    __table_args__ = (UniqueConstraint("project_id", "name"),)

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    url: Mapped[str]
    model: Mapped[str]  # its name there
    key: Mapped[str | None]  # encrypted; never shown
    trusted: Mapped[bool]  # its URL is by a key for all projects: it may be at any address of this network
    price_in: Mapped[float | None]  # of a million tokens of prompts; NULL: unknown, so its cost is
    price_out: Mapped[float | None]
    abilities: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # by its latest probe
    probed_at: Mapped[datetime | None]
    failure: Mapped[str | None]  # why its latest probe, or request, failed


class ReleaseState(StrEnum):
    CANDIDATE = "candidate"
    PASSED = "passed"  # the gate is for it; it serves once the model servers have proven that they have it
    CANARY = "canary"  # serves a share of the new tasks
    ACTIVE = "active"
    REJECTED = "rejected"
    RETIRED = "retired"


RELEASE_MOVES = {
    ReleaseState.CANDIDATE: {ReleaseState.PASSED, ReleaseState.CANARY, ReleaseState.ACTIVE, ReleaseState.REJECTED},
    ReleaseState.PASSED: {ReleaseState.CANDIDATE, ReleaseState.CANARY, ReleaseState.ACTIVE, ReleaseState.REJECTED},
    ReleaseState.CANARY: {ReleaseState.CANDIDATE, ReleaseState.ACTIVE, ReleaseState.REJECTED},
    ReleaseState.ACTIVE: {ReleaseState.RETIRED},
    ReleaseState.REJECTED: {ReleaseState.CANARY, ReleaseState.ACTIVE},  # only by hand
    ReleaseState.RETIRED: {
        ReleaseState.CANARY,
        ReleaseState.ACTIVE,
        ReleaseState.REJECTED,
    },  # a roll-back, or being rolled back by a watch
}
SERVING_STATES = (ReleaseState.ACTIVE, ReleaseState.CANARY)  # new tasks may be pinned to it


class Release(Entity):
    """Weights, skills, tools and prompt that serve as a unit. A rollout keeps the release it began with.

    `skills` are those when it last stopped serving, for a roll-back; while it serves, the library changes.
    `tools` and `prompt` are those it serves with. NULL in a release that never served.
    """

    __tablename__ = "releases"
    __table_args__ = (
        UniqueConstraint("project_id", "number"),
        CheckConstraint("canary_percent > 0 AND canary_percent <= 100", name="canary_percent"),
        Index("uq_releases_one_active", "project_id", unique=True, postgresql_where=text("state = 'active'")),
        Index("uq_releases_one_canary", "project_id", unique=True, postgresql_where=text("state = 'canary'")),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    number: Mapped[int]
    state: Mapped[ReleaseState] = mapped_column(default=ReleaseState.CANDIDATE)
    model: Mapped[str] = mapped_column(default="base")  # as in `values.Policy`
    hosted: Mapped[str | None] = column_property(  # the name of its hosted model
        select(HostedModel.name)
        .where(
            HostedModel.id
            == cast(case((func.starts_with(model, HOSTED), func.substr(model, len(HOSTED) + 1))), Uuid)
        )
        .correlate_except(HostedModel)
        .scalar_subquery()
    )
    removed_model: Mapped[str | None]  # the name that its hosted model had until it was removed
    skills: Mapped[str | None] = mapped_column(ForeignKey("skill_sets.hash"), index=True)
    tools: Mapped[str | None] = mapped_column(ForeignKey("tool_sets.hash"), index=True)
    prompt: Mapped[str | None]  # hash of the templates that the policy reads
    training_run_id: Mapped[UUID | None] = mapped_column(  # that made it
        ForeignKey("training_runs.id", ondelete="SET NULL"), index=True
    )
    evidence: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # the gate's figures
    canary_percent: Mapped[float | None]  # of the new tasks, while it is a canary or once the gate passed it
    canary_at: Mapped[datetime | None]  # it last began to be one
    canary_shares: Mapped[list[Any] | None] = mapped_column(
        JSONB(none_as_null=True)
    )  # its shares since, with times
    activated_at: Mapped[datetime | None]  # the last time
    watched_against: Mapped[UUID | None]  # while it is watched: the release that its weights replaced
    watched_since: Mapped[datetime | None]  # when they did, in this release or an earlier one

    @property
    def policy(self) -> str:
        """As people know its model: by the name of a hosted one."""
        return self.hosted or (f"{self.removed_model} (removed)" if self.removed_model else self.model)


class SkillSet(Base):
    """A set of skills, by the hash of their ids. Never changes."""

    __tablename__ = "skill_sets"

    hash: Mapped[str] = mapped_column(primary_key=True)
    skills: Mapped[list[str]]  # sorted; each an id, followed by the state of a skill that was not active


class ToolSet(Base):
    """A set of API documents and how they are presented, by the hash of both. Never changes."""

    __tablename__ = "tool_sets"

    hash: Mapped[str] = mapped_column(primary_key=True)
    documents: Mapped[dict[str, Any]]  # name of the API -> digest of its document
    presentations: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")  # of those with one


class ToolDocument(Base):
    """An OpenAPI document of a tool set."""

    __tablename__ = "tool_documents"

    digest: Mapped[str] = mapped_column(primary_key=True)
    document: Mapped[dict[str, Any]] = mapped_column(JSON)  # not JSONB, which forgets the order of arguments


class PromptText(Base):
    """What a policy read around its tasks, by the hash that its releases have. Never changes."""

    __tablename__ = "prompt_texts"

    hash: Mapped[str] = mapped_column(primary_key=True)
    text: Mapped[str]


class AuditAction(StrEnum):
    ACTIVATED = "activated"  # `detail` has the swap report: hashes, differences of logprobs, seconds per replica
    REFUSED = "refused"  # the model servers do not serve it as it was trained; nothing changed
    RESTORED = "restored"  # a model server that was out, or restarted, loaded it and has proven it
    CANARY_BEGAN = "canary began"
    CANARY_RAISED = "canary raised"  # it serves more of the new tasks
    CANARY_ENDED = "canary ended"
    WATCH_ENDED = "watch ended"  # `detail` has the metrics: the release was kept, or rolled back
    APPROVAL_DECIDED = "approval decided"  # about an API call of a task
    CALL_SETTLED = "call settled"  # of a task: whether it arrived
    SECRET_STORED = "secret stored"  # `detail` has its name
    SECRET_DELETED = "secret deleted"
    SECRETS_ROTATED = "secrets rotated"  # encrypted with another key; `detail` has its id, and how many were
    SETTINGS_CHANGED = "settings changed"  # of the project; `detail` has those before and after
    TASKS_ERASED = "tasks erased"  # `detail` has numbers and ids
    PROJECT_CREATED = "project created"
    PROJECT_DELETED = "project deleted"  # `detail` has what its deletion removed with it
    API_CHANGED = "api changed"  # or added; `detail` has what it was before and after, without secrets
    API_DELETED = "api deleted"
    OPERATION_CHANGED = "operation changed"  # of an API: `detail` has its name, and what was set before and after
    KEY_CREATED = "key created"  # `detail` has its id, name, prefix and scopes
    KEY_REVOKED = "key revoked"
    HOSTED_ADDED = "model added"  # a hosted one; `detail` has it, without its key
    HOSTED_CHANGED = "model changed"  # `detail` has it before and after
    HOSTED_REMOVED = "model removed"
    RELEASE_PROPOSED = "release proposed"  # of an adapter or a hosted model
    RUN_QUEUED = "run queued"
    RUN_RETRIED = "run retried"
    RUN_CANCELLED = "run cancelled"
    SCHEDULE_CHANGED = "schedule changed"
    SCHEDULE_DELETED = "schedule deleted"
    DATASET_STORED = "dataset stored"
    DATASET_DELETED = "dataset deleted"
    EXAM_STORED = "exam stored"
    EXAM_DELETED = "exam deleted"  # in all versions
    FEEDBACK_GIVEN = "feedback given"  # `detail` has the task and the score
    SKILL_REPAIR = "skill repair"  # a task is to write it anew; `detail` has both
    SKILL_MOVED = "skill moved"  # to another state; `detail` has both, the reason and the evidence


class AuditEntry(Entity):
    """A change of what serves: actor, action and details. Entries are only added, and outlive their project."""

    __tablename__ = "audit_entries"
    __table_args__ = (
        *listing_indexes("audit_entries"),
        Index("ix_audit_entries_release", "release_id", "created_at", "id"),
    )

    project_id: Mapped[UUID | None]  # which may be gone; NULL: it concerns all projects
    project: Mapped[str | None]  # its name at that time
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id", ondelete="SET NULL"))
    actor: Mapped[str]  # "key <name>", "gate", "canary", "watch" or "server"
    action: Mapped[AuditAction]
    detail: Mapped[dict[str, Any]]


class Shadow(Leased):
    """A finished task done again by a release, without side effects. Unfinished rows are a queue.

    A `recorded` one is a replay: its calls are answered by those of the task.
    """

    __tablename__ = "shadows"
    __table_args__ = (Index("ix_shadows_queue", "created_at", postgresql_where=text("finished_at IS NULL")),)

    release_id: Mapped[UUID] = mapped_column(ForeignKey("releases.id", ondelete="CASCADE"), primary_key=True)
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True, index=True)
    recorded: Mapped[bool] = mapped_column(primary_key=True, default=False)
    score: Mapped[float | None]  # the check's
    stop: Mapped[str | None]
    failure: Mapped[str | None]
    turns: Mapped[int] = mapped_column(default=0)
    generated_tokens: Mapped[int] = mapped_column(default=0)
    same_changes: Mapped[bool | None]  # of a replay: whether it made the changes that the task made
    record: Mapped[bytes | None]  # of a replay: its trajectory, as msgpack of `values.Trajectory`
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


# Exams and training


class ExamSource(StrEnum):
    SUBMITTED = "submitted"  # its tasks came with the request
    LOG = "log"  # chosen from the tasks that were served
    HOLDOUT = "holdout"  # kept back by the project's setting `holdout_percent`


class Exam(Entity):
    """One version of a named set of tasks. It never changes, but a task of the log that is deleted is gone."""

    __tablename__ = "exams"
    __table_args__ = (UniqueConstraint("project_id", "name", "version"),)

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    version: Mapped[int]  # from 1 for each name
    digest: Mapped[str]  # sha256 of its tasks, hex
    source: Mapped[ExamSource]


class PlacedTask(Base):
    """The kind of a scored task without a scenario. It stays what it was when the task was placed, whatever
    becomes of the tasks that it is like.
    """

    __tablename__ = "placed_tasks"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[str]


class ExamTask(Base):
    """A task of an exam."""

    __tablename__ = "exam_tasks"

    exam_id: Mapped[UUID] = mapped_column(ForeignKey("exams.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    instruction: Mapped[str]
    scenario: Mapped[str | None]
    variables: Mapped[dict[str, Any]]
    check_code: Mapped[str | None]
    task_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("tasks.id", ondelete="CASCADE"), index=True
    )  # in the log


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # `failure` is the reason
    CANCELLED = "cancelled"


RUN_MOVES = {
    RunState.QUEUED: {RunState.RUNNING, RunState.CANCELLED},
    RunState.RUNNING: {RunState.DONE, RunState.FAILED, RunState.CANCELLED, RunState.QUEUED},
    RunState.DONE: set[RunState](),
    RunState.FAILED: {RunState.QUEUED},
    RunState.CANCELLED: {RunState.QUEUED},
}
OPEN_RUNS = (RunState.QUEUED, RunState.RUNNING)


class Schedule(Entity):
    """A project's training schedule: by hours or by scored tasks, whichever comes first."""

    __tablename__ = "schedules"
    __table_args__ = (
        CheckConstraint("every_hours > 0", name="every_hours"),
        CheckConstraint("every_scored_tasks > 0", name="every_scored_tasks"),
        CheckConstraint("num_nonnulls(every_hours, every_scored_tasks) > 0", name="ever"),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), unique=True)
    every_hours: Mapped[float | None]
    every_scored_tasks: Mapped[int | None]
    settings: Mapped[dict[str, Any]]  # of the runs: run_settings.RunSettings
    enabled: Mapped[bool] = mapped_column(default=True)
    next_at: Mapped[datetime | None]  # NULL without every_hours
    scored_seen: Mapped[int] = mapped_column(BigInteger, default=0)  # number of `proven` scores when it last fired
    rev: Mapped[int] = mapped_column(BigInteger, default=0)  # compared and set by whoever fires or edits it
    fired_at: Mapped[datetime | None]


class TrainingRun(Entity, Leased):
    """A training run. Queued rows are the queue; at most one per project is running."""

    __tablename__ = "training_runs"
    __table_args__ = (
        Index("ix_training_runs_listing", "project_id", "created_at", "id"),
        Index("ix_training_runs_listing_state", "project_id", "state", "created_at", "id"),
        Index("ix_training_runs_queue", "created_at", postgresql_where=text("state IN ('queued', 'running')")),
        Index(
            "uq_training_runs_one_running",
            "project_id",
            unique=True,
            postgresql_where=text("state = 'running'"),
        ),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    schedule_id: Mapped[UUID | None] = mapped_column(  # the schedule that queued it
        ForeignKey("schedules.id", ondelete="SET NULL"), index=True
    )
    kind: Mapped[RunKind]
    settings: Mapped[dict[str, Any]]  # run_settings.RunSettings
    state: Mapped[RunState] = mapped_column(default=RunState.QUEUED)
    losses: Mapped[int] = mapped_column(default=0)  # times its process was lost since it last made progress
    lost_at: Mapped[int] = mapped_column(default=0)  # the furthest step at which its process was lost
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    step: Mapped[int] = mapped_column(default=0)  # done so far
    steps: Mapped[int] = mapped_column(default=0)  # in total; 0: not known yet
    part: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # values.RunPart, while it runs
    started_from: Mapped[str | None]  # "base" or an adapter's hash; NULL until it has read what it learns from
    learning_rate: Mapped[float | None]  # in force; NULL until then
    erased: Mapped[bool] = mapped_column(default=False, server_default=false())  # it read a task that is deleted
    failure: Mapped[str | None]  # "InvalidError: what happened, and what to do"
    result: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    started_at: Mapped[datetime | None]  # of the first attempt


class RunStep(Base):
    """The metrics of one step of a run."""

    __tablename__ = "run_steps"

    run_id: Mapped[UUID] = mapped_column(ForeignKey("training_runs.id", ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)  # from 1
    metrics: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class RunLog(Base):
    """The end of the log of a run."""

    __tablename__ = "run_logs"

    run_id: Mapped[UUID] = mapped_column(ForeignKey("training_runs.id", ondelete="CASCADE"), primary_key=True)
    end: Mapped[str]  # at most 64 KiB


class Adapter(Base):
    """LoRA weights in the adapter directory, named by the hash of their content. Never changes."""

    __tablename__ = "adapters"

    hash: Mapped[str] = mapped_column(primary_key=True)
    base: Mapped[str]  # the model it was trained on
    rank: Mapped[int]
    probe: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # values.Probe, by the trainer
    run_id: Mapped[UUID | None] = mapped_column(ForeignKey("training_runs.id", ondelete="SET NULL"), index=True)
    project_id: Mapped[UUID | None]  # that made or added it, even once that is deleted; NULL: all may serve it
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class Evaluation(Entity):
    """An evaluation of a model: its settings and its figures."""

    __tablename__ = "evaluations"

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    run_id: Mapped[UUID | None] = mapped_column(ForeignKey("training_runs.id", ondelete="SET NULL"), index=True)
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id", ondelete="SET NULL"), index=True)
    model: Mapped[str]  # "base" or an adapter's hash
    environment: Mapped[str]
    settings: Mapped[dict[str, Any]]  # split, scenarios, seeds, retrieval: what it takes to repeat it
    figures: Mapped[dict[str, Any]]


class Dataset(Entity):
    """A file of conversations, which never changes. Its content is in `datasets.DatasetStore`, under the id."""

    __tablename__ = "datasets"
    __table_args__ = (UniqueConstraint("project_id", "digest"),)

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    digest: Mapped[str]  # sha256 of the content, hex
    bytes: Mapped[int] = mapped_column(BigInteger)
    conversations: Mapped[int]


class RetentionKind(StrEnum):
    EVENTS = "events"
    TRAJECTORIES = "trajectories"
    TASKS = "tasks"


class RetentionMark(Base):
    """Up to when a project's rows were deleted: none is looked for twice."""

    __tablename__ = "retention_marks"

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[RetentionKind] = mapped_column(primary_key=True)
    until: Mapped[datetime]  # tasks that ended up to this time, inclusive


class RunTask(Base):
    """A served task that a training run learned from."""

    __tablename__ = "run_tasks"

    run_id: Mapped[UUID] = mapped_column(ForeignKey("training_runs.id", ondelete="CASCADE"), primary_key=True)
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True, index=True)


# Processes


class WorkerEnvironment(Base):
    """An environment of one worker. A row that is not refreshed belongs to a worker that is gone."""

    __tablename__ = "worker_environments"

    worker: Mapped[str] = mapped_column(primary_key=True)  # its host
    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[str]
    options: Mapped[dict[str, Any]]  # JSON schema
    reported_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class RunnerProcess(Base):
    """A runner, which refreshes its row every second. Without that it is stuck, cut off or dead."""

    __tablename__ = "runners"

    id: Mapped[str] = mapped_column(primary_key=True)  # the owner of its tasks' leases
    number: Mapped[int] = mapped_column(BigInteger, Identity())  # of all runners ever started
    host: Mapped[str]
    pid: Mapped[int]
    pid_space: Mapped[str]  # where the pid is valid: `processes.pid_space`
    started_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    seen_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    in_flight: Mapped[int]
    capacity: Mapped[int]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    generating: Mapped[int] = mapped_column(default=0, server_default="0")  # requests under way to model servers
    waiting: Mapped[int] = mapped_column(default=0, server_default="0")  # requests that wait for a model server
    sandbox: Mapped[str]  # its layers of confinement
    prompt: Mapped[str | None]  # hash of the prompt that it serves with
    draining: Mapped[bool] = mapped_column(default=False, server_default=false())  # it claims nothing more
    error: Mapped[str | None]  # why it cannot execute tasks
    faults: Mapped[dict[str, str]] = mapped_column(JSONB, default=dict, server_default="{}")  # by part of it
    loop_failures: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")  # rounds that raised
    loop_restarts: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    dropped_lines: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")  # of its log
