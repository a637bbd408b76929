"""The audit log: who changed what serves and what is permitted, and when."""

import re
from collections.abc import Mapping
from textwrap import shorten

from litestar import Controller, Response, get
from litestar.params import FromQuery

from app.api.access import Db
from app.console.visit import Visitor, page
from app.db import audit
from app.db.tables import AuditAction
from app.errors import InvalidError
from app.records import Json

_ENTRIES = 50
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class AuditPages(Controller):
    path = "/audit"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def index(
        self,
        visit: Visitor,
        session: Db,
        action: FromQuery[str] = "",
        actor: FromQuery[str] = "",
        of: FromQuery[str] = "",
        cursor: FromQuery[str | None] = None,
    ) -> Response[str]:
        """`of=all` is of every project that the key may see, also of those that were deleted."""
        everywhere = of == "all" or visit.chosen is None
        project = visit.access.project_id if everywhere else visit.project.id
        found = await audit.page(
            session, project, actions=_actions(action), actor=actor, cursor=cursor, limit=_ENTRIES
        )
        return page(visit, "audit.html", found=found, actions=list(AuditAction), everywhere=everywhere, gist=gist)


def gist(detail: Mapping[str, Json]) -> str:
    """What is worth reading at a glance: short values without ids, and the names of what else there is.

    >>> gist({"key": "7e4f291e-8a9f-4b6e-8e28-3eea80a59b6d", "name": "ci", "scopes": ["tasks"]})
    'name ci, scopes'
    >>> gist({"before": {"skills": "open", "weight": 1.0}, "after": {"skills": "review", "weight": 1.0}})
    'skills'
    """
    before, after = detail.get("before"), detail.get("after")
    if isinstance(before, dict) and isinstance(after, dict):
        changed = [name for name in after if before.get(name) != after[name]]
        return ", ".join([*changed, *(name for name in detail if name not in ("before", "after"))])
    texts = [_text(name, value) for name, value in detail.items() if value not in (None, "", [], {})]
    return shorten(", ".join(filter(None, texts)), 100, placeholder=" …") or "details"


def _text(name: str, value: Json) -> str:
    if isinstance(value, str) and _ID.fullmatch(value):
        return ""
    return f"{name} {value}" if isinstance(value, str | int | float) else name


def _actions(name: str) -> tuple[AuditAction, ...]:
    """Raises InvalidError."""
    if not name:
        return ()
    try:
        return (AuditAction(name),)
    except ValueError as error:
        raise InvalidError(f"there is no action {name!r}: choose one of the list") from error
