"""Training runs and releases in tables."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from app.client.words import Listing, readable_error

if TYPE_CHECKING:
    from app.client.terminal import ServerSession


def show_result(session: "ServerSession", run: Mapping[str, Any]) -> None:
    """Show the result of a run that has ended."""
    session.show(run, lambda run: run["result"] or {"result": "none"})


def run_fields(run: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run, with the metrics of its last step."""
    shown = {name: value for name, value in run.items() if name not in ("links", "last_step")}
    shown["failure"] = readable_error(run["failure"] or "")
    return shown | ({"last step": run["last_step"]["metrics"]} if run["last_step"] else {})


def release_evidence(release: Mapping[str, Any]) -> dict[str, Any]:
    """With what it says to do in the words of the command line."""
    found = release["evidence"] or {}
    return {name: readable_error(value) if isinstance(value, str) else value for name, value in found.items()}


def _run_row(run: Mapping[str, Any]) -> tuple[object, ...]:
    done = f"{run['step']}/{run['steps'] or '?'}" if run["step"] else "-"
    return (
        run["id"],
        run["kind"],
        run["state"],
        done,
        _moment(run["created_at"]),
        readable_error(run["failure"] or ""),
    )


def _release_row(release: Mapping[str, Any]) -> tuple[object, ...]:
    verdict = readable_error((release["evidence"] or {}).get("reason", ""))
    made, since = _moment(release["created_at"]), "-"
    if release["state"] == "active":
        since = _moment(release["activated_at"])
    state = f"{release['state']}, watched" if release["watched"] else release["state"]
    return release["number"], state, release["model"], made, since, verdict


def _moment(text: str | None) -> str:
    return text[:19].replace("T", " ") if text else "-"


RUNS = Listing(("run", "kind", "state", "steps", "created", "failure"), _run_row, items="runs")
RELEASES = Listing(("release", "state", "model", "created", "active since", "reason of the gate"), _release_row)
