"""Model servers that a trainer uses: those of serving or of other runs, and one of its own.

Those on the training GPU sleep while a run updates, and are always woken. vLLM's sleep of level 1: weights move
to host memory, the KV cache is dropped, and requests under way wait to be recomputed. A server without /sleep
is refused, naming its missing flags.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import msgspec
import structlog

from app.base.errors import EngineError, EngineRefusalError, SettingError, first_line
from app.base.processes import end_with_parent, python_module
from app.base.settings import Settings, urls_in
from app.engine.client import HttpEngine
from app.engine.protocol import Completion, Sampling

log = structlog.get_logger(__name__)
_TIMEOUT = httpx.Timeout(300, connect=5)  # gigabytes move to host memory and back
_ATTEMPTS = 5  # at waking a server
_PAUSE_SECONDS = 0.25  # seconds, doubled each time
_KEEP = {"level": "1", "mode": "keep"}  # vLLM would otherwise abort requests under way
_ENGINE_PROCESS_TIMEOUT = 120.0


class SharedServers(HttpEngine):
    """Leaves the servers with the adapters that they had before: nobody else unloads those of a run."""

    def __init__(self, urls: Sequence[str], **settings: Any) -> None:
        super().__init__(urls, **settings)
        self._own: set[str] = set()  # adapters that no server had

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Loads an adapter again that another process has unloaded."""
        try:
            return await super().complete(prompt_ids, model=model, sampling=sampling)
        except EngineRefusalError as error:
            if error.code != HTTPStatus.NOT_FOUND or model not in self._loaded:
                raise
        await self.load_adapter(model, self._loaded[model])
        return await super().complete(prompt_ids, model=model, sampling=sampling)

    async def load_adapter(self, name: str, path: Path) -> None:
        if name not in await self.loaded():
            self._own.add(name)
        await super().load_adapter(name, path)

    async def unload_adapter(self, name: str) -> None:
        """One that was there before stays."""
        if name in self._own:
            await super().unload_adapter(name)
            self._own.remove(name)
        else:
            self._loaded.pop(name, None)

    async def close(self) -> None:
        for name in sorted(self._own):
            try:
                await self.unload_adapter(name)
            except EngineError as error:
                log.warning("an adapter stays loaded", model=name, cause=str(error))
        await super().close()


class _ModelConfig(msgspec.Struct):
    enable_sleep_mode: bool = False


class _Config(msgspec.Struct):
    model_config: _ModelConfig


class _Info(msgspec.Struct):
    vllm_config: _Config


class _SleepState(msgspec.Struct):
    is_sleeping: bool


def sleep_during_updates(settings: Settings) -> AbstractContextManager[None]:
    """Let the deployment's model servers sleep within the context, if SAGE_ENGINE_SLEEP=update."""
    urls = servers_that_sleep(settings)
    return sleep_servers(urls) if urls else nullcontext()


def servers_that_sleep(settings: Settings) -> list[str]:
    """The model servers that sleep while a run updates: all of them, since they share the one GPU."""
    if settings.engine_sleep == "never":
        return []
    return list(dict.fromkeys(settings.model_servers + urls_in(settings.rollout_engine_urls)))


@contextmanager
def sleep_servers(urls: Sequence[str]) -> Iterator[None]:
    """Block until all of them sleep, and on exit until all are awake.

    Raises SettingError if one cannot sleep, EngineError if one fails to sleep or wake.
    """
    try:
        with _open() as http:
            for url in urls:
                _put_to_sleep(http, url)
        yield
    finally:
        wake_servers(urls)


def wake_servers(urls: Sequence[str]) -> None:
    """Wake all of them, even if one fails. Safe to repeat. Raises EngineError."""
    failures = []
    with _open() as http:
        for url in urls:
            try:
                _wake(http, url)
            except EngineError as error:
                log.error("a model server does not wake", cause=str(error))
                failures.append(error)
    if failures:
        raise failures[0]


def _put_to_sleep(http: httpx.Client, url: str) -> None:
    try:
        _check_can_sleep(http, url)
        http.post(f"{url}/sleep", params=_KEEP).raise_for_status()
    except httpx.ConnectError:
        log.warning("a model server is down, so it needs no sleep", url=url)
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        raise EngineError(
            f"the engine at {url} does not fall asleep ({first_line(error)}): check its log"
        ) from error


def _check_can_sleep(http: httpx.Client, url: str) -> None:
    """Without the flag, vLLM reports that it sleeps but frees nothing."""
    reply = http.get(f"{url}/server_info", params={"config_format": "json"})
    if reply.status_code != HTTPStatus.NOT_FOUND:
        info = msgspec.json.decode(reply.raise_for_status().content, type=_Info)
        if info.vllm_config.model_config.enable_sleep_mode:
            return
    raise SettingError(
        f"the engine at {url} cannot sleep: start vLLM on a GPU with VLLM_SERVER_DEV_MODE=1 and "
        "--enable-sleep-mode, or set SAGE_ENGINE_SLEEP=never"
    )


def _wake(http: httpx.Client, url: str) -> None:
    cause = "it still reports that it sleeps"
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS * 2 ** (attempt - 1))
        try:
            if not _sleeps(http, url):
                return
            http.post(f"{url}/wake_up").raise_for_status()
            if not _sleeps(http, url):
                return
        except httpx.ConnectError:
            log.warning("a model server is down, and will start awake", url=url)
            return
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == HTTPStatus.NOT_FOUND:
                return  # it does not support sleep
            cause = first_line(error)
    raise EngineError(f"the engine at {url} does not wake ({cause}): restart it")


def _sleeps(http: httpx.Client, url: str) -> bool:
    reply = http.get(f"{url}/is_sleeping").raise_for_status()
    return msgspec.json.decode(reply.content, type=_SleepState).is_sleeping


def _open() -> httpx.Client:
    return httpx.Client(timeout=_TIMEOUT, trust_env=False)


@asynccontextmanager
async def engine_process(model: Path, device: str) -> AsyncIterator[str]:
    """Yield its URL. Raises EngineError if it does not start."""
    process = await asyncio.create_subprocess_exec(
        *python_module("app.model_server", "--model", str(model), "--port", "0"),
        *("--device", device, "--embeddings", "none"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    try:
        yield await _address(process)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
        await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    """Parse the line that the server prints once it accepts connections: `serving MODEL on URL (DEVICE)`."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_ENGINE_PROCESS_TIMEOUT):
            line = (await process.stdout.readline()).decode()
    except TimeoutError as error:
        raise EngineError(f"the model server is not ready after {_ENGINE_PROCESS_TIMEOUT:g} seconds") from error
    if not line.startswith("serving"):
        raise EngineError(f"the model server ended with code {await process.wait()} before it was ready")
    return line.rpartition(" on ")[2].split()[0]
