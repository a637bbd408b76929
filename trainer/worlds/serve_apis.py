"""The demo APIs: the office suite on a socket, with an index of the contents of the project `demo`."""

from typing import Any

import uvicorn
from litestar import Litestar, Request, get

from trainer.worlds.office.documents import APP_NAMES
from trainer.worlds.office.services import create_services
from trainer.worlds.office.worlds import Worlds

_SITE = 0
_FIRST_TASK = {
    "instruction": "archive every one of my mails from iris",
    "scenario": "archive the mails of a sender",
}


def create_demo_apis(admin_token: str, worlds: Worlds | None = None) -> Litestar:
    """The office services, and at /demo the URL of each API's document and a first task to submit."""
    services = create_services(admin_token, worlds)
    services.register(show_demo)
    return services


def serve(host: str, port: int, admin_token: str, *, busy: float = 0.0) -> None:
    """Serve until a signal stops the process.

    `busy` is the share of log-ins refused with 503; the address book refuses none. A port in use ends the process
    with a line that says so.
    """
    uvicorn.run(
        create_demo_apis(admin_token, Worlds(busy=busy)),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,  # longer than clients keep idle connections, which would meet closed ones
    )


@get("/demo", include_in_schema=False)
async def show_demo(request: Request[Any, Any, Any]) -> dict[str, dict[str, str]]:
    base = str(request.base_url).rstrip("/")
    return {
        "documents": {app: f"{base}/sites/{_SITE}/{app}/openapi.json" for app in APP_NAMES},
        "task": _FIRST_TASK,
    }
