"""Serves the office suite on a socket, for agents that live outside of this process."""

import uvicorn

from trainer.environments.office.services import create_services
from trainer.environments.office.worlds import Worlds


def serve(host: str, port: int, admin_token: str, *, busy: float = 0.0) -> None:
    """Serves until it is told to stop; `busy` is the share of log-ins turned away, except by the address book.

    An occupied port ends the process with a line that says so.
    """
    services = create_services(admin_token, Worlds(busy=busy))
    uvicorn.run(services, host=host, port=port, log_level="warning", access_log=False)
