"""How often a request is repeated before it fails."""

import time

import httpx
import pytest

from app.machine.downloads import get


@pytest.mark.parametrize(
    ("failure", "asked"),
    [(httpx.ConnectError, 2), (httpx.ConnectTimeout, 2), (httpx.ReadTimeout, 5), (httpx.UnsupportedProtocol, 1)],
)
def test_a_network_that_is_down_is_reported_soon(
    failure: type[httpx.TransportError], asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = list[str]()

    def fail(request: httpx.Request) -> httpx.Response:
        attempts.append(request.url.path)
        raise failure("down", request=request)

    monkeypatch.setattr(time, "sleep", lambda _: None)
    with httpx.Client(transport=httpx.MockTransport(fail)) as client, pytest.raises(failure):
        get(client, "http://127.0.0.1/simple")
    assert len(attempts) == asked
