"""Releases by their number, as people name them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.client.server import SageClient


def release_id(server: "SageClient", number: int | None, project: str | None) -> str:
    """The id of a release of the project. Raises ServerError, as for all that the server does not know."""
    from app.client.server import ServerError  # noqa: PLC0415  httpx takes a moment, which `--help` need not wait for

    found: list[dict[str, Any]] = server.request("GET", "/v1/releases", project=project)
    for release in found:
        if release["number"] == number:
            return str(release["id"])
    raise ServerError(f"no release {number}: `sage releases` lists them")
