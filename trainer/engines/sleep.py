"""Model servers on the GPU that trains: they give up its memory while a run updates, and wake whatever happens.

vLLM's sleep of level 1: weights wait in the memory of the host, the KV cache is dropped, requests under way wait
and are computed again. What knows no /sleep is refused with the flags that it lacks.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http import HTTPStatus

import httpx
import msgspec
import structlog

from app.errors import EngineError, SettingError
from app.settings import Settings, urls_in

log = structlog.get_logger(__name__)

_TIMEOUT = httpx.Timeout(300, connect=5)  # gigabytes go to the host's memory and back
_TRIES = 5  # to wake a server
_PAUSE = 0.25  # seconds, doubled each time
_KEEP = {"level": "1", "mode": "keep"}  # vLLM would otherwise abort what is under way


class _Model(msgspec.Struct):
    enable_sleep_mode: bool = False


class _Config(msgspec.Struct):
    model_config: _Model


class _Info(msgspec.Struct):
    vllm_config: _Config


class _State(msgspec.Struct):
    is_sleeping: bool


def asleep_for(settings: Settings) -> AbstractContextManager[None]:
    """For one stretch of updates: the deployment's model servers sleep meanwhile, if it says that they do."""
    urls = sleepers(settings)
    return asleep(urls) if urls else nullcontext()


def sleepers(settings: Settings) -> list[str]:
    """The model servers that sleep while a run updates: all that are known, since one GPU is all there is."""
    if settings.engine_sleep == "never":
        return []
    return list(dict.fromkeys(urls_in(settings.engine_urls) + urls_in(settings.rollout_engine_urls)))


@contextmanager
def asleep(urls: Sequence[str]) -> Iterator[None]:
    """Blocks until all of them sleep, and at the end until all are awake.

    Raises SettingError where one cannot sleep, EngineError where one fails to, or does not wake.
    """
    try:
        with _open() as http:
            for url in urls:
                _put_to_sleep(http, url)
        yield
    finally:
        wake(urls)


def wake(urls: Sequence[str]) -> None:
    """Every one of them is tried; one that is awake is left alone. Raises EngineError."""
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
        _refuse_the_sleepless(http, url)
        http.post(f"{url}/sleep", params=_KEEP).raise_for_status()
    except httpx.ConnectError:
        log.warning("a model server is down, so it holds no memory", url=url)
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        raise EngineError(
            f"the engine at {url} does not fall asleep ({_told(error)}): look into its log"
        ) from error


def _refuse_the_sleepless(http: httpx.Client, url: str) -> None:
    """Without the flag vLLM says that it sleeps, too, and frees nothing."""
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
    cause = "it says that it sleeps still"
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE * 2 ** (attempt - 1))
        try:
            if not _sleeps(http, url):
                return
            http.post(f"{url}/wake_up").raise_for_status()
            if not _sleeps(http, url):
                return
        except httpx.ConnectError:
            log.warning("a model server is down, and will come up awake", url=url)
            return
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == HTTPStatus.NOT_FOUND:
                return  # it knows no sleep
            cause = _told(error)
    raise EngineError(f"the engine at {url} does not wake ({cause}): restart it")


def _sleeps(http: httpx.Client, url: str) -> bool:
    reply = http.get(f"{url}/is_sleeping").raise_for_status()
    return msgspec.json.decode(reply.content, type=_State).is_sleeping


def _open() -> httpx.Client:
    return httpx.Client(timeout=_TIMEOUT, trust_env=False)


def _told(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
