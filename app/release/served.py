"""When each release of a project served, from the audit log. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias
from uuid import UUID

from app.db.tables import AuditAction

Moment: TypeAlias = tuple[datetime, UUID, AuditAction]
"""When something happened to a release."""


class Period(NamedTuple):
    """A time in which a release served, as the active one or as a canary. It still does where `until` is None."""

    release_id: UUID
    since: datetime
    until: datetime | None
    canary: bool = False


def periods(first: UUID, began: datetime, moments: Iterable[Moment]) -> list[Period]:
    """Oldest first. `first` is the release that served from the beginning, before anything was logged.

    >>> one, two = UUID(int=1), UUID(int=2)
    >>> at = [datetime(2026, 1, day) for day in range(1, 5)]
    >>> log = [(at[1], two, AuditAction.CANARY_BEGAN), (at[2], two, AuditAction.ACTIVATED)]
    >>> [(each.release_id.int, each.since.day, each.canary) for each in periods(one, at[0], log)]
    [(1, 1, False), (2, 2, True), (2, 3, False)]
    """
    in_order = sorted(moments)
    active = _active([(began, first), *((at, who) for at, who, what in in_order if what is AuditAction.ACTIVATED)])
    return sorted([*active, *_canaries(in_order)], key=lambda each: each.since)


def _active(starts: Sequence[tuple[datetime, UUID]]) -> list[Period]:
    """A release that is activated again while it is active goes on."""
    found: list[Period] = []
    for at, release_id in starts:
        if found and found[-1].release_id == release_id:
            continue
        if found:
            found[-1] = found[-1]._replace(until=at)
        found.append(Period(release_id, at, None))
    return found


def _canaries(moments: Sequence[Moment]) -> list[Period]:
    """One at a time: it ends when it is ended or promoted, or when the next one begins."""
    found: list[Period] = []
    for at, release_id, action in moments:
        running = bool(found) and found[-1].until is None
        ends = action is AuditAction.CANARY_BEGAN or (
            action in (AuditAction.CANARY_ENDED, AuditAction.ACTIVATED)
            and running
            and found[-1].release_id == release_id
        )
        if running and ends:
            found[-1] = found[-1]._replace(until=at)
        if action is AuditAction.CANARY_BEGAN:
            found.append(Period(release_id, at, None, canary=True))
    return found
