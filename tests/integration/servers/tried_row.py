"""What was tried with a server, as a row of the manual's table.

`python -m tests.integration.servers.tried_row` writes the rows of the last `make test-servers` into the page.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from tests.integration.servers.installed import CACHE, ROOT

PAGE = ROOT / "app" / "manual" / "apis.md"
_ROWS = CACHE / "rows"
_TABLE = re.compile(r"(?<=\| --- \| --- \| --- \| --- \| --- \| --- \|\n)(\|.*\n)*")


@dataclass
class TriedRow:
    """`done` are the steps that worked, `not_done` what does not, each as asserted by its test."""

    server: str  # with its version and registry
    document: str
    authentication: str
    operations: int = 0
    left_out: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    not_done: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        reasons = "".join(f"; {count} left out: {why}" for why, count in Counter(self.left_out).items())
        cells = (
            self.server,
            self.document,
            f"{self.operations:,}{reasons}",
            self.authentication,
            "; ".join(self.done),
            "; ".join(self.not_done) or "nothing seen",
        )
        return f"| {' | '.join(cells)} |\n"

    def check(self) -> None:
        """The manual has this row."""
        _ROWS.mkdir(parents=True, exist_ok=True)
        (_ROWS / f"{_key(self.markdown())}.md").write_text(self.markdown())
        assert self.markdown() in PAGE.read_text(), (
            f"{PAGE.name} says something else than:\n{self.markdown()}If that is right, run "
            "`python -m tests.integration.servers.tried_row`"
        )


def main() -> None:
    """Write the rows of the last run over those of the same servers, and keep the order by name."""
    page = PAGE.read_text()
    table = _TABLE.search(page)
    assert table is not None
    rows = {_key(row): row for row in table[0].splitlines(keepends=True)}
    rows |= {each.stem: each.read_text() for each in _ROWS.glob("*.md")}
    PAGE.write_text(_TABLE.sub(lambda _: "".join(rows[key] for key in sorted(rows)), page, count=1))


def _key(row: str) -> str:
    """Of its server, whatever the version."""
    return row.removeprefix("| ").split()[0].lower()


if __name__ == "__main__":
    main()
