"""The terminal on which a server's answers are shown: tables and fields, by rich or as plain aligned lines; and
the session of a command with a server.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import click
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from app.base.text import shortened, visible
from app.client.server import SageClient
from app.client.words import Listing

_GAP = 2  # spaces between columns
_TEXT_WIDTH = 16  # the least that the last column of a table needs on a terminal
_LONGEST = 160  # characters of a cell


def show_json(answer: object) -> None:
    """In ASCII: a terminal must not obey what is in it."""
    click.echo(json.dumps(answer, indent=2))


def show_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """The last column wraps on a terminal; one too narrow for the others gets a block of lines for each row."""
    cells = [[_cell(str(cell)) for cell in row] for row in rows]
    console = terminal()
    if not console.is_terminal:
        click.echo(columns([head, *cells]))
        return
    widths = [max(map(cell_len, column)) + _GAP for column in zip(head, *cells, strict=True)]
    if sum(widths[:-1]) + min(widths[-1], _TEXT_WIDTH) > console.width:
        for row in cells:
            console.print(_grid(zip(head, row, strict=True)), "")
        return
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for name in head:
        table.add_column(name, no_wrap=name != head[-1], overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def show_fields(values: Mapping[str, Any]) -> None:
    """A line for each field that is set; a nested one is named such as `figures candidate sgc`."""
    lines = [line for name, value in values.items() for line in _lines(name, value)]
    console = terminal()
    if console.is_terminal:
        console.print(_grid(lines))
    else:
        click.echo(columns(lines))


def columns(rows: Iterable[Sequence[object]]) -> str:
    """Align the cells of all rows in columns."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "".join(cell + " " * (width - cell_len(cell) + _GAP) for cell, width in zip(row, widths, strict=True))
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def terminal(*, stderr: bool = False) -> Console:
    """Prints text as it is: no markup, no emoji, no colours but those of a style."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def python_code(source: str, console: Console) -> RenderableType:
    """Python, highlighted on a terminal."""
    text = visible(source).rstrip()
    if not console.is_terminal:
        return Text(text)
    return Syntax(text, "python", theme="ansi_dark", background_color="default", word_wrap=True)


def _cell(text: str) -> str:
    """One line, of bounded length."""
    return shortened(visible(" ".join(text.split())), _LONGEST)


def _grid(lines: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in lines:
        grid.add_row(Text(name, "bold"), Text(value))
    return grid


def _lines(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The lines of a field.

    >>> list(_lines("figures", {"sgc": {"mean": 60.0, "low": 51.25, "high": 68.0}, "rules": None}))
    [('figures sgc', '60 [51.25, 68]')]
    """
    if value is None or value == "" or value == [] or value == {}:
        return
    if isinstance(value, dict) and value.keys() == {"mean", "low", "high"}:
        yield name, f"{value['mean']:.4g} [{value['low']:.4g}, {value['high']:.4g}]"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _lines(f"{name} {key}", inner)
    elif isinstance(value, float):
        yield name, f"{value:.4g}"
    else:
        yield name, visible(value if isinstance(value, str) else json.dumps(value))


class ServerSession:
    """Use it as a context manager. `as_json`: answers are printed as the server gave them."""

    def __init__(self, url: str, key: str, *, as_json: bool = False) -> None:
        self.server = SageClient(url, key)
        self.as_json = as_json

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.server.__exit__()

    def show_list(self, path: str, listing: Listing, **query: object) -> None:
        """Request a list, and show it as a table."""
        answer = self.server.request("GET", path, **query)
        if self.as_json:
            show_json(answer)
            return
        head, rows = listing.table_of(answer)
        show_table(head, rows)
        if listing.empty and not rows:
            click.echo(listing.empty, err=True)
        if listing.items is not None and answer.get("next_cursor"):
            click.echo(f"there are more: --cursor {answer['next_cursor']}", err=True)

    def show(
        self,
        answer: Mapping[str, Any],
        fields: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        *,
        code: str = "",
        table: Listing | None = None,
    ) -> None:
        """Show the fields of an answer, or `fields` of it; below them a `table`, and Python: the field `code`."""
        if self.as_json:
            show_json(answer)
            return
        shown = fields(answer) if fields else answer
        below = {code, table.items if table else None}
        show_fields({name: value for name, value in shown.items() if name not in below})
        if table is not None:
            click.echo()
            show_table(*table.table_of(answer))
        if answer.get(code):
            console = terminal()
            console.print("", python_code(answer[code], console), soft_wrap=not console.is_terminal)

    def confirm(self, answer: object, text: str) -> None:
        """Say what has been done. An empty answer is nothing as JSON."""
        if not self.as_json:
            click.echo(text)
        elif answer is not None:
            show_json(answer)
