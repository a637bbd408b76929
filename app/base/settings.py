"""All configuration, read once from the environment and then never changed.

What a setting holds as text, such as a list of networks or of URLs, is read and checked here too.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import msgspec

from app.base import plugins
from app.base.errors import InvalidError, SettingError
from app.base.model_catalog import DEFAULT_MODEL, SEED, find_model
from app.base.text import did_you_mean
from app.base.values import Json

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Pause = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Limit = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Cost = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
EngineDtype = Literal["auto", "float32", "bfloat16", "int8"]

BY_DNS = "dns+"  # before a URL in ENGINE_URLS

_PREFIX = "SAGE_"
_OF_COMMANDS = {"SAGE_URL", "SAGE_KEY"}
_PLAIN = {  # names that other tools also set
    "database_url",
    "database_direct_url",
    "broker_url",
    "engine_urls",
    "embeddings_url",
    "otel_exporter_otlp_endpoint",
    "notify_socket",
}
_HTTP = {
    "engine_router_url",
    "rollout_engine_urls",
    "embeddings_url",
    "model_url",
    "otel_exporter_otlp_endpoint",
}
_EXAMPLE = '{"enable_thinking": false}'
_OF_EACH_PROMPT = {"messages", "tools", "documents", "add_generation_prompt"}  # variables that the server sets


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Each field is read from SAGE_<NAME>, URLs that other tools also set from <NAME>."""

    # This machine
    data_dir: Path = Path("data")
    """Directory of everything this machine keeps: embedded database, broker files, adapters, run logs."""
    host: str = "127.0.0.1"
    """Address the API listens on."""
    port: Port = 8000
    """Port of the API."""
    public_url: str = ""
    """Address at which people reach this server, such as https://sage.example.com, for links back to it: OAuth's
    redirects. By default `SAGE_HOST` and `SAGE_PORT`; never what a request names as its host."""
    chat_wait_seconds: Seconds = 600
    """`/v1/chat/completions` waits for its task for so long. The task itself goes on."""
    shutdown_delay_seconds: Pause = 0
    """After SIGTERM, the API serves on for so long while `/readyz` answers 503, for load balancers to notice."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""
    min_free_disk_mb: Limit = 500
    """Below this space on the disk of the data directory, or of a database on this machine, no task is claimed;
    what is under way can still be recorded. 0: claim until it is full."""
    hang_seconds: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 60
    """`sage up` restarts an API, a model server or demo APIs that answer nothing for this long, and a runner or a
    worker that gives no sign of life; a worker does so with its runs."""
    notify_socket: str = ""
    """Unix socket that runners and workers send signs of life to; `sage up` and systemd set it."""

    # Monitoring
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    """Port, at `SAGE_HOST`, of a runner's metrics for Prometheus; the next ones are of the other runners that
    `sage up` starts. 0: none. The API has its own at `/metrics`."""
    otel_exporter_otlp_endpoint: str = ""
    """URL of an OpenTelemetry collector (OTLP over HTTP) that gets the traces of tasks; needs the extra `otel`.
    Empty: no traces."""

    # Database and broker
    database_url: str = ""
    """Any PostgreSQL 15 or newer. Empty: an embedded one in the data directory."""
    database_direct_url: str = ""
    """The same database without a pooler, if `DATABASE_URL` goes through one, such as PgBouncer in transaction
    mode: for notifications, locks and migrations. Empty: `DATABASE_URL`."""
    broker_url: str = ""
    """Redis or RabbitMQ for Celery. Empty: files in the data directory."""

    # Secrets
    secret_key: str = ""
    """Keys that encrypt stored secrets, comma-separated: the first encrypts, all decrypt. At least 32 random
    characters each. The same on all hosts. Empty: the file `secret.key` in the data directory."""

    # Model
    model: str = DEFAULT_MODEL
    """A model directory, or the name of a model from `sage models`; `seed` is the model in the package. With
    `SAGE_MODEL_URL`: the name of a model there."""
    model_url: str = ""
    """An OpenAI-compatible endpoint whose model new projects use, such as http://localhost:11434. `sage up` then
    loads no language model but `seed`, which is in the package. Empty: models are local."""
    model_key: str = ""
    """The key for `SAGE_MODEL_URL`, which stays in the environment."""
    prompt_profile: Literal["", "full", "brief", "compact"] = ""
    """System prompt to use. Empty: the one named by the model's card, or `full`."""
    chat_template_kwargs: str = ""
    """Variables of the model's chat template, a JSON object such as `{"enable_thinking": false}`."""

    # Model servers
    engine_urls: str = ""
    """Base URLs of model servers, comma-separated. `dns+http://NAME:PORT` is a server at each address that DNS has
    for the name, as behind a headless service of Kubernetes. Empty: the embedded one."""
    engine_model: str = ""
    """The base model as model servers are started with it (`vllm serve NAME`). New adapters carry this name, so
    that vLLM's `lora_filesystem_resolver` serves them. Empty: `SAGE_MODEL`."""
    engine_router_url: str = ""
    """A router in front of the model servers, such as a gateway of Kubernetes, which gets every generation;
    `ENGINE_URLS` then names the servers behind it, which load and prove adapters one by one. Empty: none."""
    rollout_engine_urls: str = ""
    """Model servers for training rollouts, comma-separated. Empty: an engine of the trainer's own."""
    embeddings_url: str = ""
    """A server of `/v1/embeddings`. Empty: the first model server."""
    engine_port: Port = 8001
    """Port of the embedded model server."""
    engine_device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device of the embedded model server."""
    engine_dtype: EngineDtype = "auto"
    """Weights of the embedded model server. `auto`: bfloat16 if they were saved in half precision and the machine
    is faster with it, otherwise float32; the trainer's own engine takes float32. `int8`: for CPUs; weights
    take less than half of float32's memory, prompts are read a little faster, tokens come as fast, and it is about
    as accurate as bfloat16."""
    engine_kv_mb: Count = 512
    """Memory of the embedded model server for keys and values of running and recent sequences, besides its
    weights. A request waits until its prompt and all of its tokens fit."""
    engine_adapters: Count = 8
    """Adapters that the embedded model server holds at once. Those that nothing needs make room for others; a task
    whose adapter finds none waits."""
    engine_timeout_seconds: Seconds = 600
    """Limit for one completion, after which another model server, or a hosted model again, is tried."""
    engine_load_timeout_seconds: Seconds = 120
    """Limit for loading an adapter and for every request that generates nothing."""
    engine_sleep: Literal["never", "update"] = "never"
    """`update`: model servers release the GPU while a run updates its weights."""
    adapter_store: str = ""
    """A directory or fsspec URL (`s3://bucket/prefix`) shared by all hosts. Empty: the data directory alone."""

    # Tasks
    runners: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """Runner processes that `sage up` starts. 0: one per core."""
    max_tasks_in_flight: Count = 8
    """Tasks executed concurrently by one runner."""
    lease_seconds: Seconds = 30
    """A task whose runner has been silent for this long is taken over by another."""
    runner_memory_mb: Count = 2048
    """Memory of one runner: allocations beyond it fail, and a runner that comes near it is replaced."""
    drain_seconds: Pause = 0
    """After SIGTERM, a runner lets its tasks go on for this long before it suspends them, for others to resume."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.0
    """Sampling temperature; 0 is greedy. Runs of kind `logged` learn from tasks sampled at 1: at another
    one, from the share that explores (the project's `explore_percent`)."""
    max_turns: Count = 12
    """Turns of one task."""
    max_turn_tokens: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """Tokens generated in one turn. 0: 512, and 4096 for hosted models that think."""
    max_task_tokens: Count = 8192
    """Tokens generated in one task."""
    max_task_calls: Count = 200
    """API calls of one task."""
    max_task_seconds: Seconds = 300
    """Wall time of one task."""
    judge: str = ""
    """Scores finished tasks without a check: `NAME?OPTION=VALUE`, a name of the entry-point group `sage.judges` or
    `module:attribute`. Empty: they stay unscored."""

    # Limits
    limit_queued_tasks: Limit = 100_000
    """Tasks of a project that wait. 0 is no limit, here and below; a project may have limits of its own."""
    limit_running_tasks: Limit = 0
    """Tasks of a project that run at once; more of them wait."""
    limit_tasks_per_day: Limit = 0
    """Tasks that a project may submit in a day (UTC)."""
    limit_tokens_per_day: Limit = 0
    """Tokens that a project's tasks may generate in a day. Over it, new ones are refused and others wait."""
    limit_calls_per_day: Limit = 0
    """API calls that a project's tasks, their checks and shadows may make in a day. Over it, new tasks are refused
    and others wait."""
    limit_cost_per_day: Cost = 0
    """What hosted models may cost a project in a day, in the unit of their prices. Over it, new tasks are refused
    and others wait. A model without prices costs nothing."""
    limit_dataset_bytes: Limit = 10_000_000_000
    """Bytes of a project's uploaded datasets."""
    limit_requests_per_minute: Limit = 30_000
    """Requests of one key to one API process."""
    trusted_proxies: str = ""
    """Addresses and networks of proxies, comma-separated. Only their `X-Forwarded-For` is believed."""

    # Skills
    retrieval: str = "fused"
    """How skills are found for a task: a name of the entry-point group `sage.retrieval`, or `module:attribute`;
    `fused` combines the others."""
    skills_withheld: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.05
    """Share of tasks that are offered no skills although some fit, chosen by a hash of the task. They show what
    the skills are worth (`GET /v1/skills/value`), and runs learn from them to do without."""

    # Sandbox and live APIs
    sandbox_cpu_seconds: Seconds = 5
    """CPU time of one turn's code."""
    sandbox_memory_mb: Count = 256
    """Memory that one session may add to a warm interpreter."""
    sandbox_project_memory_mb: Count = 4096
    """Memory of all sessions of a project on one machine, where cgroup v2 is delegated to the server. They may be
    one process for every 8 MB of it."""
    api_timeout_seconds: Seconds = 30
    """Limit for one call to a live API."""
    allow_private_hosts: bool = True
    """Allow live APIs on loopback and private addresses. Services of the deployment, and link-local addresses, are
    closed all the same."""
    api_refresh_hours: Annotated[float, msgspec.Meta(ge=0, le=8_760)] = 24
    """Documents of APIs are fetched again after this time, and changes applied. 0: never."""
    ca_file: Path | None = None
    """PEM file of certificate authorities that live APIs, webhooks and verifiers may have besides public ones."""
    client_certificates: Path | None = None
    """Directory of client certificates for mutual TLS: PEM files, each with its chain and key, that credentials of
    APIs name."""
    mcp_commands: str = ""
    """A TOML file with the MCP servers that run as commands of this machine, in bubblewrap. Empty: none."""

    # Training
    train_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Format of the frozen base model's weights: `auto` is bfloat16 on CUDA, and on CPUs that multiply it faster
    for weights that were saved in half precision; else float32. LoRA weights and the optimizer are always
    float32."""
    train_processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Processes on the worker's host that compute a run's updates together, one per GPU. On a CPU, so many engines
    sample its rollouts, each with a KV cache of its own, where SAGE_ROLLOUT_ENGINE_URLS is empty."""
    train_remote_processes: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    """Processes on other hosts that take part, started there with torchrun."""
    train_rendezvous: str = ""
    """`host:port` of the worker's host, where the processes of other hosts find it. Use a private network."""
    train_shard: bool = False
    """With several processes: each holds a part of the model (FSDP2) instead of all of it."""

    data_prefixes: str = ""
    """Places that runs of kind `sft` may read besides uploads, comma-separated: directories, for keys for all
    projects alone, and URLs with s3://, gs:// or abfs://."""

    # Demo
    demo_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8100
    """Port of the demo APIs, which `sage up` runs and registers in the project `demo`. 0: none."""

    @property
    def model_dir(self) -> Path:
        """Of the local model. Raises ModelError for a name of no model on this machine."""
        return find_model(self.local_model, self.data_dir)

    @property
    def local_model(self) -> str:
        """The base model of the model servers."""
        return SEED if self.model_url else self.model

    @property
    def template_kwargs(self) -> dict[str, Json]:
        return object_in(self.chat_template_kwargs)

    @property
    def served_model(self) -> str:
        """The name of the base model on the command line of model servers."""
        return self.engine_model or self.local_model

    @property
    def model_servers(self) -> list[str]:
        """Of `ENGINE_URLS`; one at the name where that stands for several."""
        return [url.removeprefix(BY_DNS) for url in urls_in(self.engine_urls)]

    @property
    def direct_url(self) -> str:
        """The database, for what is bound to one connection."""
        return self.database_direct_url or self.database_url

    @property
    def runner_count(self) -> int:
        """Runners on this machine."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return self.runners or cores or 1

    @property
    def datasets_dir(self) -> Path:
        """Uploaded datasets, unless they are in the store that all hosts share."""
        return self.data_dir.absolute() / "datasets"

    @property
    def skill_index_dir(self) -> Path:
        """What searches need of large projects' skills: a cache that all processes of this host map."""
        return self.data_dir.absolute() / "skill_index"

    @property
    def adapters_dir(self) -> Path:
        """Every adapter of this deployment, under the hash of its content."""
        return self.data_dir.absolute() / "adapters"

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Self:
        """Raises SettingError with the name of the variable that has an invalid value."""
        settings = cls(**_values_in(env, cls.__annotations__))
        settings._check_servers()
        return settings

    @classmethod
    def misnamed(cls, env: Mapping[str, str] = os.environ) -> list[str]:
        """Remarks on variables that are not read, and resemble one that is."""
        found = _unread_variables(env, cls.__annotations__)
        return [f"{variable} is no setting, and is not read: {hint}" for variable, hint in found.items()]

    def _check_servers(self) -> None:
        """Raises SettingError for a setting of model servers that excludes another."""
        router = self.engine_router_url
        if len(urls_in(router)) > 1:
            raise SettingError(f"SAGE_ENGINE_ROUTER_URL={router!r}: name one router")
        if router and not self.engine_urls:
            raise SettingError(
                f"SAGE_ENGINE_ROUTER_URL={router!r}: set ENGINE_URLS to the model servers behind it"
            )
        if self.engine_sleep != "never" and urls_in(self.engine_urls) != self.model_servers:
            raise SettingError(
                f"SAGE_ENGINE_SLEEP={self.engine_sleep}: only model servers that are named one by one can sleep; "
                f"set it to never, or ENGINE_URLS to URLs without {BY_DNS}"
            )


def _values_in(env: Mapping[str, str], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the environment has, by name. `kinds` are the types of all.

    Raises SettingError with the name of the variable that has an invalid value.
    """
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        variable = variable_of(name)
        if variable in env:
            try:
                values[name] = msgspec.convert(env[variable], kind, strict=False, dec_hook=_from_text)
            except msgspec.ValidationError as error:
                raise SettingError(f"{variable}={env[variable]!r}: {error}") from error
            _check_value(name, variable, env[variable])
    return values


def _unread_variables(env: Iterable[str], kinds: Iterable[str]) -> dict[str, str]:
    """Variables that resemble a setting and are none, with the question whether that one was meant.

    >>> _unread_variables(["SAGE_TASK_MAX_SECONDS", "SAGE_PORT", "SAGE_URL"], ["max_task_seconds", "port"])
    {'SAGE_TASK_MAX_SECONDS': 'did you mean SAGE_MAX_TASK_SECONDS?'}
    """
    known = {variable_of(name): name for name in kinds}
    found: dict[str, str] = {}
    for variable in sorted(env):
        if variable.startswith(_PREFIX) and variable not in known and variable not in _OF_COMMANDS:
            hint = did_you_mean(variable.removeprefix(_PREFIX).lower(), known.values())
            for name in known.values():
                hint = re.sub(rf"\b{name}\b", variable_of(name), hint)
            found |= {variable: hint} if hint else {}
    return found


def variable_of(name: str) -> str:
    """The environment variable of a setting.

    >>> variable_of("port"), variable_of("database_url")
    ('SAGE_PORT', 'DATABASE_URL')
    """
    return name.upper() if name in _PLAIN else f"SAGE_{name.upper()}"


def _check_value(name: str, variable: str, value: str) -> None:
    """Raises SettingError for a value that does not fit the setting of this name."""
    if name == "engine_urls" and value and not are_http(value.replace(f"{BY_DNS}http:", "http:")):
        raise SettingError(f"{variable}={value!r}: write http://host:port, https://, or {BY_DNS}http://")
    if name in _HTTP and value and not are_http(value):
        raise SettingError(f"{variable}={value!r}: write http://host:port, or https://")
    if name == "trusted_proxies":
        try:
            networks_in(value)
        except ValueError as error:
            raise SettingError(f"{variable}={value!r}: {error}; write addresses or networks") from error
    try:
        if name == "chat_template_kwargs":
            object_in(value)
        if name == "retrieval":
            plugins.find("sage.retrieval", value)
    except (ValueError, InvalidError) as error:
        raise SettingError(f"{variable}={value!r}: {error}") from error


def _from_text(kind: type, text: str) -> object:
    """For the types msgspec does not know, such as Path."""
    if not text:
        raise ValueError("it is empty; name a directory, or leave it unset")  # Path("") would be this one
    return kind(text)


def networks_in(text: str) -> list[IPv4Network | IPv6Network]:
    """Raises ValueError for anything but addresses and networks.

    >>> networks_in("10.0.0.0/8, ::1")
    [IPv4Network('10.0.0.0/8'), IPv6Network('::1/128')]
    """
    return [ip_network(each.strip()) for each in text.split(",") if each.strip()]


def urls_in(text: str) -> list[str]:
    """
    >>> urls_in("http://a, http://b,")
    ['http://a', 'http://b']
    """
    return [url.strip() for url in text.split(",") if url.strip()]


def object_in(text: str) -> dict[str, Json]:
    """The variables of a chat template. Raises ValueError for anything but a JSON object of such.

    >>> object_in('{"enable_thinking": false}'), object_in("")
    ({'enable_thinking': False}, {})
    """
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}); write an object such as {_EXAMPLE}") from error
    if not isinstance(found, dict):
        raise ValueError(f"write a JSON object such as {_EXAMPLE}")
    if taken := sorted(found.keys() & _OF_EACH_PROMPT):
        raise ValueError(f"the server sets {', '.join(taken)} for each prompt; leave it out")
    return found


def are_http(text: str) -> bool:
    """
    >>> are_http("http://a:8000, https://b/vllm"), are_http("a:8000"), are_http("http://a:x"), are_http(",")
    (True, False, False, False)
    """
    return bool(urls_in(text)) and all(map(_is_http, urls_in(text)))


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a port that is not a number, or a bracket that does not close
        return False
    return bool(named) and not parts.query and not parts.fragment and not re.search(r"\s", url)
