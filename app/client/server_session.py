"""A server, and the terminal on which its answers are shown."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import click

from app.client.listing import Listing
from app.client.sage_client import SageClient
from app.client.terminal_output import python_code, show_fields, show_json, show_table, terminal


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
