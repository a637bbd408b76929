"""One test over a table: all rows are checked, and then the failure names each row that is wrong."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import pytest


class Row:
    """What is to hold of a row stands in `with row:`. A timeout or a skip is not the row's, and passes through."""

    def __init__(self, name: tuple[object, ...]) -> None:
        self._name = name
        self.failure = ""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        failed = isinstance(error, pytest.fail.Exception) and "DID NOT RAISE" in str(error)
        if not (failed or isinstance(error, Exception)):
            return False
        place = traceback.extract_tb(trace)[-1]
        said = str(error).encode(errors="backslashreplace").decode().replace("\n", "\n    ")
        self.failure = f"{self}: {type(error).__name__} at {place.filename}:{place.lineno}\n    {said}"
        return True

    def __str__(self) -> str:
        return ", ".join(map(_shown, self._name))


def _shown(part: object) -> str:
    return (part.encode("unicode_escape").decode() if isinstance(part, str) else ascii(part))[:80]


@contextmanager
def every_row() -> Iterator[Callable[..., Row]]:
    """Gives the function that begins a row of this name. A table without rows proves nothing, and fails."""
    rows: list[Row] = []

    def begin(*name: object) -> Row:
        rows.append(Row(name))
        return rows[-1]

    yield begin
    assert rows, "the table has no rows"
    wrong = [row.failure for row in rows if row.failure]
    if wrong:
        pytest.fail(f"{len(wrong)} of {len(rows)} rows are wrong:\n" + "\n".join(wrong), pytrace=False)
