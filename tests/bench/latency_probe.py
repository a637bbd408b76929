"""Response times of a URL, from a process of its own: `python -m tests.bench.latency_probe URL KEY SECONDS`."""

import http.client
import json
import sys
import time
from urllib.parse import urlsplit

_PAUSE = 0.02  # between two requests


def measure(url: str, key: str, seconds: float) -> list[float]:
    """Milliseconds of each request, one after the other on one connection."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        connection.request("GET", parts.path, headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == http.HTTPStatus.OK, answer.status
        times.append(1000 * (time.perf_counter() - began))
        time.sleep(_PAUSE)
    return times


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], sys.argv[2], float(sys.argv[3])), sys.stdout)
