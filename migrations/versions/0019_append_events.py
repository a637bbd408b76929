"""Append the events of a task in one round trip: the function waits for other writers, numbers, inserts, notifies."""

from alembic import op

revision = "0019"
down_revision = "0018"

_APPEND = """
CREATE FUNCTION append_task_events(of_task uuid, new jsonb) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    last integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(of_task::text, 0));
    SELECT coalesce(max(seq), 0) INTO last FROM task_events WHERE task_id = of_task;
    INSERT INTO task_events (task_id, seq, kind, data)
        SELECT of_task, last + number, event ->> 0, event -> 1
        FROM jsonb_array_elements(new) WITH ORDINALITY AS given (event, number);
    PERFORM pg_notify('sage_events', of_task::text);
    RETURN last + jsonb_array_length(new);
END
$$
"""


def upgrade() -> None:
    op.execute(_APPEND)


def downgrade() -> None:
    op.execute("DROP FUNCTION append_task_events")
