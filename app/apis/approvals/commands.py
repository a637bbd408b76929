"""`sage approvals`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from app.client.options import ListingGroup, page_options, project_option, server_command
from app.client.words import Listing, arguments_text, listing_of

if TYPE_CHECKING:
    from app.client.terminal import ServerSession

APPROVAL_STATES = ("waiting", "approved", "refused", "expired", "withdrawn")
_LISTING = listing_of("id", "state", "requested_at", "task_id", "operation", items="approvals")
_DECISIONS = {
    "approve": "Let a call be made; its task goes on.",
    "refuse": "Refuse a call; the agent is told why, and its task goes on.",
}


@click.group(cls=ListingGroup)
def approvals() -> None:
    """Decide about API calls that wait for a person."""


@approvals.command("list")
@server_command
@project_option
@click.option("--state", type=click.Choice(APPROVAL_STATES), help="list only those in this state")
@click.option("--task", "task_id", type=click.UUID, help="of this task")
@page_options
def list_approvals(session: "ServerSession", **only: Any) -> None:
    """List approvals, newest first."""
    session.show_list("/v1/approvals", _LISTING, **only)


@approvals.command("show")
@server_command
@click.argument("approval", type=click.UUID)
def show_approval(session: "ServerSession", approval: UUID) -> None:
    """Show the call with its arguments, why it waits, what its task called before, and the decision."""
    shown = session.server.request("GET", f"/v1/approvals/{approval}")
    before = Listing(("change", "done before"), _call_row, "before")
    session.show(shown, table=before if shown["before"] else None)


def _call_row(call: Mapping[str, Any]) -> tuple[str, str]:
    failed = f"  {call['error']}" if call["error"] else ""
    return "yes" if call["change"] else "no", f"{call['operation']}({arguments_text(call['arguments'])}){failed}"


def _add_decision(decision: str, summary: str) -> None:
    @approvals.command(decision, help=summary)
    @server_command
    @click.argument("approval", type=click.UUID)
    @click.option("--reason", default="", help="kept; the agent reads it if the call is refused")
    def decide(session: "ServerSession", approval: UUID, reason: str) -> None:
        body = {"decision": decision, "reason": reason}
        decided = session.server.request("POST", f"/v1/approvals/{approval}", body)
        session.confirm(decided, f"{decided['operation']} is {decided['state']}")


for _decision, _summary in _DECISIONS.items():
    _add_decision(_decision, _summary)
