"""The table of trials of APIs: what the server asked the model about each, and what it answered."""

from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Computed, ForeignKey, Index, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Due

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
    questions: Mapped[list[Any]] = mapped_column(JSONB, default=list)  # `api_trials.Tried`: with turns, up to a MB
    # PostgreSQL counts them at each write, so that no list of trials reads them
    correct: Mapped[int] = mapped_column(Computed(_CORRECT, persisted=True))
    asked: Mapped[int] = mapped_column(Computed("jsonb_array_length(questions)", persisted=True))
