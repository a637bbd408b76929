"""Serves the office suite on a socket, for agents that live outside of this process."""

import uvicorn

from trainer.environments.office.services import create_services


def serve(host: str, port: int, admin_token: str) -> None:
    """Serves until it is told to stop. An occupied port ends the process with a line that says so."""
    uvicorn.run(create_services(admin_token), host=host, port=port, log_level="warning", access_log=False)
