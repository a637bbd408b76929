"""Alembic's way in. The caller hands in a connection; the `alembic` command is given a URL instead."""

from typing import Literal

from alembic import context
from sqlalchemy import Connection, NullPool, create_engine

from app.base.settings import Settings
from app.db.database import CleanText, full_url
from app.db.tables import Base


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata, render_item=render)
    context.run_migrations()


def render(kind: str, item: object, _: object) -> str | Literal[False]:
    """A migration names plain types, never ones of the app, which will change."""
    return "sa.Text()" if kind == "type" and isinstance(item, CleanText) else False


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    url = context.config.get_main_option("sqlalchemy.url") or Settings.from_env().database_url
    with create_engine(full_url(url), poolclass=NullPool).begin() as opened:
        run(opened)
