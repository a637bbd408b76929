"""Released migrations never change: databases that have run them would never get the change."""

import hashlib
from pathlib import Path

_MIGRATIONS = Path(__file__).parents[2] / "migrations" / "versions"
_RELEASED = Path(__file__).with_name("released_migrations.sha256")


def test_released_migrations_are_as_they_were_released() -> None:
    """Mend the schema by a new migration. A release appends its migrations to the file."""
    lines = [line.split() for line in _RELEASED.read_text().splitlines()]
    released = {name: digest for digest, name in lines}
    assert released
    found = {name: hashlib.sha256((_MIGRATIONS / name).read_bytes()).hexdigest() for name in released}
    assert found == released
