"""Send a person to an authorization server, and wait until they are back."""

import sys
import time
import webbrowser
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from app.base.text import visible

_PAUSE_SECONDS = 0.5

Credential = Mapping[str, Any]
"""As the server shows it."""


def open_address(consent: Mapping[str, Any], *, browser: bool | None) -> None:
    """Show the address on standard error, and open it in a browser: by default on a terminal, if one has a window.

    Raises ClickException for an address that no browser opens.
    """
    url = consent["url"]
    if not url.startswith(("https://", "http://")):
        raise click.ClickException(f"the document names no address that a browser could open: {visible(url)}")
    until = datetime.fromisoformat(consent["expires_at"]).astimezone()
    click.echo(f"open this address and consent, until {until:%H:%M:%S}:\n{visible(url)}", err=True)
    if browser or (browser is None and sys.stderr.isatty() and _has_window()):
        webbrowser.open(url)


def wait_for_consent(
    look: Callable[[], Credential | None], before: Credential | None, consent: Mapping[str, Any]
) -> Credential:
    """The credential that `look` shows once a person has consented.

    Raises ClickException if they refuse, if there is no token for them, or if the address is too old.
    """
    until = datetime.fromisoformat(consent["expires_at"])
    old = before or {}
    while True:
        now = look() or {}
        if now.get("connected_at") not in (None, old.get("connected_at")):
            return now
        by_a_task = now.get("failed_at") == now.get("used_at")
        if now.get("failed_at") not in (None, old.get("failed_at")) and not by_a_task:
            raise click.ClickException(f"not connected: {visible(now['failure'])}")
        if datetime.now(UTC) > until:
            raise click.ClickException("nobody has consented, and the address is too old now: ask for another one")
        time.sleep(_PAUSE_SECONDS)


def _has_window() -> bool:
    """Whether the default browser is none of those that take the terminal."""
    try:
        return type(webbrowser.get()) is not webbrowser.GenericBrowser
    except webbrowser.Error:
        return False
