"""A real vLLM as a process: `vllm serve` on the CPU, from an environment of its own."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx

from tests.support.processes import free_ports

ROOT = Path(__file__).parents[3]
SEED_POLICY = ROOT / "app" / "seed_policy"
SLOTS = 4
_START_TIMEOUT = 420.0  # seconds; a start takes 23 seconds of CPU time
_FLAGS = [
    *("--served-model-name", "base", "--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "1024"),
    *("--block-size", "32", "--kv-cache-memory-bytes", str(256 << 20), "--enable-prompt-tokens-details"),
    "--enforce-eager",  # a tiny model is not worth compiling
]
WITH_LORA = ["--enable-lora", "--max-lora-rank", "16", "--max-loras", str(SLOTS), "--max-cpu-loras", "8"]
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "on_cpu",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else all servers use the same cores
    "OMP_NUM_THREADS": "1",
}


def vllm_command() -> str:
    """The one that `make test-vllm` installs, or VLLM_BIN."""
    return os.environ.get("VLLM_BIN", str(ROOT / ".venv-vllm" / "bin" / "vllm"))


class VllmServer:
    """Starts in the background; `wait` returns once it serves. Its children share its process group."""

    def __init__(
        self,
        log: Path,
        flags: Sequence[str] = WITH_LORA,
        *,
        model: Path = SEED_POLICY,
        updating: bool = True,
        dev: bool = False,
        adapters: Path | None = None,
    ) -> None:
        """`updating` allows loading adapters at runtime, `dev` adds the developer routes; it finds those in
        `adapters` by itself.
        """
        self._port = free_ports(1)[0]
        self._log = log
        self._flags = [str(model), "--port", str(self._port), *_FLAGS, *flags]
        self._environment = os.environ | _ENVIRONMENT
        self._environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = str(updating)
        self._environment["VLLM_SERVER_DEV_MODE"] = str(int(dev))
        if adapters is not None:
            self._environment["VLLM_PLUGINS"] += ",lora_filesystem_resolver"
            self._environment["VLLM_LORA_RESOLVER_CACHE_DIR"] = str(adapters)
        self.url = f"http://127.0.0.1:{self._port}"
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [vllm_command(), "serve", *self._flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def restart(self) -> None:
        """Starts again after a `kill`, on the same port."""
        self._process = self._start()

    def wait(self) -> Self:
        until = time.monotonic() + _START_TIMEOUT
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise AssertionError(f"vLLM does not serve:\n{self.said()[-3000:]}")
            time.sleep(0.2)
        return self

    def _serves(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2, trust_env=False).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Kills the whole process group, as the kernel does when memory runs out."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        with suppress(ProcessLookupError):  # its children ended with it
            self.kill()
