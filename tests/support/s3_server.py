"""An S3 server on this machine: moto's, in a process of its own, as the S3 clients of others know it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.processes import free_ports

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """The address of one that holds an empty bucket."""
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _answering(url, process)
            httpx.put(f"{url}/{bucket}", trust_env=False).raise_for_status()
            yield url
        finally:
            process.terminate()


def _answering(url: str, process: subprocess.Popen[bytes]) -> None:
    while True:
        assert process.poll() is None, "it ended instead of starting: is moto installed?"
        try:
            httpx.get(url, trust_env=False)
            return
        except httpx.TransportError:
            time.sleep(0.1)
