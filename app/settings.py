"""All configuration, read once from the environment and then never changed."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import msgspec

from app.errors import SettingError

_SEED = Path(__file__).parent / "seed_policy"
_PLAIN = {"database_url", "broker_url", "engine_urls", "embeddings_url"}  # names other tools set, too
_HTTP = {"engine_urls", "rollout_engine_urls", "embeddings_url"}

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Each field is read from SAGE_<NAME>, the four URLs from <NAME>. An empty URL means: embedded, here."""

    data_dir: Path = Path("data")  # database, broker folders, adapters, keys of this machine
    host: str = "127.0.0.1"
    port: Port = 8000
    database_url: str = ""
    broker_url: str = ""
    engine_urls: str = ""  # comma-separated vLLM base URLs
    rollout_engine_urls: str = ""  # comma-separated; where runs roll out. Default: an engine of the trainer's own
    embeddings_url: str = ""  # serves /v1/embeddings; default: the first engine
    engine_port: Port = 8001  # of the embedded model server
    engine_at_once: Count = 64  # requests in flight to one model server
    engine_timeout_seconds: Seconds = 600  # of one answer, after which another model server is asked
    engine_load_timeout_seconds: Seconds = 120  # of loading an adapter, and of all else that generates nothing
    engine_base_apart: bool = False  # for model servers that mix up base and adapter requests of one batch
    engine_sleep: Literal["never", "update"] = "never"  # do model servers give up the GPU while a run updates?
    engine_device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # of the embedded model server
    demo: bool = True  # run the demo APIs and offer them in the project "demo"?
    demo_port: Port = 8100
    model: str = "seed"  # a model directory; "seed" is the one in the package
    prompt_profile: Literal["", "full", "compact"] = ""  # "" takes the one that the model's card names
    retrieval: Literal["fused", "query_ngram", "query_embedding", "skill_embedding", "scenario"] = "fused"
    skills_offered: Annotated[int, msgspec.Meta(ge=0, le=100)] = 3  # at most, per task
    tasks_at_once: Count = 16  # rollouts in flight per API process
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.0
    max_turns: Count = 12
    max_turn_tokens: Count = 512  # generated in one turn
    max_task_tokens: Count = 8192  # generated in one task
    max_task_calls: Count = 200
    max_task_seconds: Seconds = 300
    lease_seconds: Seconds = 30  # a task whose runner is silent for so long is taken up by another
    adapter_store: str = ""  # a directory or an fsspec URL (s3://...) that all hosts share; "": only data_dir
    train_processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1  # that compute a run's updates together
    train_shard: bool = False  # each of them holds a part of the model (FSDP2) instead of all of it
    sandbox_cpu_seconds: Seconds = 5
    sandbox_wall_seconds: Seconds = 60
    sandbox_memory_mb: Count = 256
    api_timeout_seconds: Seconds = 30  # of one call to a live API
    allow_private_hosts: bool = True  # may live APIs lie on loopback and private addresses?
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def model_dir(self) -> Path:
        return _SEED if self.model == "seed" else Path(self.model)

    @property
    def adapters_dir(self) -> Path:
        """Every adapter of this deployment, under the hash of its content."""
        return self.data_dir.absolute() / "adapters"

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Raises SettingError with the variable's name where a value does not fit."""
        values: dict[str, Any] = {}
        for name in cls.__struct_fields__:
            variable = name.upper() if name in _PLAIN else f"SAGE_{name.upper()}"
            if variable in env:
                kind = cls.__annotations__[name]
                try:
                    values[name] = msgspec.convert(env[variable], kind, strict=False, dec_hook=_from_text)
                except msgspec.ValidationError as error:
                    raise SettingError(f"{variable}={env[variable]!r}: {error}") from error
                if name in _HTTP and env[variable] and not _are_http(env[variable]):
                    raise SettingError(f"{variable}={env[variable]!r}: write http://host:port, or https://")
        return cls(**values)


def urls_in(text: str) -> list[str]:
    """
    >>> urls_in("http://a, http://b,")
    ['http://a', 'http://b']
    """
    return [url.strip() for url in text.split(",") if url.strip()]


def _are_http(text: str) -> bool:
    """
    >>> _are_http("http://a:8000, https://b/vllm"), _are_http("a:8000"), _are_http("http://a:x"), _are_http(",")
    (True, False, False, False)
    """
    return bool(urls_in(text)) and all(map(_is_http, urls_in(text)))


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a port that is no number, or a bracket that does not close
        return False
    return bool(named) and not parts.query and not parts.fragment and not re.search(r"\s", url)


def _from_text(kind: type, text: str) -> object:
    """For the types msgspec does not know, such as Path."""
    return kind(text)
