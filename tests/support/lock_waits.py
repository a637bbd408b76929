"""Whether a statement waits for a lock."""

from sqlalchemy import text

from app.db.database import Sessions


async def waits_for_a_lock(sessions: Sessions) -> bool:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with sessions() as session:
        return bool(await session.scalar(waiting))
