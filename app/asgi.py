"""Composes the application. Only this module decides which implementations are used."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import httpx
import msgspec
import structlog
from litestar import Litestar

from app.adapters.store import AdapterStore
from app.agent.limits import RolloutLimits
from app.agent.prompt_profiles import Profile, choose_profile, prompt_hash
from app.agent.rollout_loop import Agent
from app.api.app import create_app
from app.api.dependencies import Dependencies
from app.api.notifications import NotificationListener
from app.api.request_log import configure_logging
from app.broker import worker_notifier
from app.db.database import Sessions, open_database
from app.db.migrate import check_schema
from app.encryption import KeyRing
from app.engine.capability import Capabilities, ServerRequirements
from app.engine.health_monitor import HealthChecks
from app.engine.http_engine import HttpEmbedder, HttpEngine
from app.engine.protocol import Engine
from app.engine.retry import RetryingEngine
from app.engine.tokenizer import ChatTokenizer
from app.errors import HostError, SettingError
from app.gateway.http_call import NoCookies
from app.gateway.ssrf import resolve_public
from app.hot_swap.adapter_directory import AdapterDirectory
from app.hot_swap.loader import AdapterLoader
from app.project_settings import Limits
from app.records import Json
from app.release.promote import Promoter
from app.release.reconciler import ReleaseReconciler
from app.run_settings import RunSettings
from app.runner.approval_expiry import ApprovalExpiry
from app.runner.execute import TaskExecutor
from app.runner.judge import Judge, load_judge
from app.runner.runner import Runner, RunnerOptions
from app.runner.shadow import ShadowRunner
from app.runner.webhook_sender import WebhookSender
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Sandbox, SessionLimits
from app.settings import Settings, urls_in
from app.skills.library import Library
from app.skills.retrieval import Retrieval, load_retrieval

__all__ = ["app", "create_app"]

log = structlog.get_logger(__name__)

_FETCH_SECONDS = 30.0  # for an OpenAPI document


def app() -> Litestar:
    """The application that `uvicorn --factory app.asgi:app` serves.

    Raises SettingError and ModelError for mistakes that waiting does not fix. Services that may still be starting,
    such as the database or the engine, are checked by /readyz.
    """
    settings = Settings.from_env()
    configure_logging(settings.log_level)
    for name in ("database_url", "engine_urls"):
        if not getattr(settings, name):
            raise SettingError(f"{name.upper()} is not set: set it, or run `sage up`, which starts its own")
    tokenizer = ChatTokenizer.load(settings.model_dir)
    parts = _Parts(
        settings=settings,
        profile=choose_profile(settings.prompt_profile, tokenizer.card),
        keys=KeyRing.open(settings),
        retrieval=load_retrieval(settings.retrieval),
        judge=load_judge(settings.judge),
        tokenizer=_fit_context(tokenizer, _probe_servers(settings, tokenizer)),
    )
    return create_app(lambda: _open_dependencies(parts))


class _Parts(NamedTuple):
    """The parts that are loaded once, before the application starts."""

    settings: Settings
    keys: KeyRing
    tokenizer: ChatTokenizer
    profile: Profile
    retrieval: Retrieval
    judge: Judge | None


@asynccontextmanager
async def _open_dependencies(parts: _Parts) -> AsyncIterator[Dependencies]:
    """Closed in reverse order, so the runner goes first and hands back its unfinished tasks."""
    settings = parts.settings
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(settings.database_url, keys=parts.keys))
        engine = await stack.enter_async_context(_engine(settings, parts.tokenizer))
        store = AdapterStore(settings.adapters_dir, settings.adapter_store)
        adapters = AdapterDirectory(settings.adapters_dir, settings.model_dir, store, base=settings.model)
        loader = await stack.enter_async_context(AdapterLoader(engine, database.sessions, adapters))
        prompt = prompt_hash(parts.profile, parts.tokenizer)
        promoter = Promoter(database.sessions, loader, prompt)
        reconciler = await stack.enter_async_context(ReleaseReconciler(database.sessions, promoter, prompt))
        sandbox = await stack.enter_async_context(ForkedSandbox())
        log.info(sandbox.describe())
        library = _library(stack, parts, database.sessions)
        agent = _agent(parts, RetryingEngine(loader), sandbox)
        api_client = await stack.enter_async_context(_api_client(settings.max_tasks_in_flight))
        executor = TaskExecutor(database.sessions, agent, library, api_client, settings, parts.judge)
        listener = await stack.enter_async_context(NotificationListener(settings.database_url))
        document_client = await stack.enter_async_context(_document_client(settings.allow_private_hosts))
        runner = await _start_runners(stack, settings, executor, listener)
        await stack.enter_async_context(ApprovalExpiry(database.sessions))
        await _send_webhooks(stack, database.sessions, settings)
        listener.on_release(loader.wake)
        listener.on_release(reconciler.wake)
        yield Dependencies(
            sessions=database.sessions,
            listener=listener,
            wake_runner=runner.wake,
            library=library,
            promoter=promoter,
            adapters=adapters,
            notify_workers=worker_notifier(settings),
            http_client=document_client,
            readiness_checks={
                "database": lambda: check_schema(database.engine),
                "engine": loader.ready,
                "sandbox": lambda: _open_and_close(sandbox),
            },
            occupancy=engine.occupancy,
            limits=Limits.defaults(settings),
        )


def _library(stack: AsyncExitStack, parts: _Parts, sessions: Sessions) -> Library:
    settings = parts.settings
    embedder = HttpEmbedder(settings.embeddings_url or urls_in(settings.engine_urls)[0])
    stack.push_async_callback(embedder.close)
    return Library(
        sessions,
        open_embedder=embedder.resolve_model,
        retrieval=parts.retrieval,
        limit=settings.skills_offered,
    )


def _agent(parts: _Parts, engine: Engine, sandbox: Sandbox) -> Agent:
    limits, temperature = RolloutLimits.of(parts.settings), parts.settings.temperature
    return Agent(engine, parts.tokenizer, parts.profile, sandbox, limits, temperature=temperature)


async def _start_runners(
    stack: AsyncExitStack, settings: Settings, executor: TaskExecutor, listener: NotificationListener
) -> Runner:
    """The runner of tasks and, while there is room, of their shadows."""
    options = RunnerOptions(
        concurrency=settings.max_tasks_in_flight,
        lease_seconds=settings.lease_seconds,
        limits=Limits.defaults(settings),
    )
    runner = await stack.enter_async_context(Runner(executor.sessions, executor.execute, options))
    listener.on_task(runner.wake)
    shadows = ShadowRunner(executor.sessions, executor, lambda: runner.running < settings.max_tasks_in_flight)
    listener.on_release((await stack.enter_async_context(shadows)).wake)
    return runner


async def _send_webhooks(stack: AsyncExitStack, sessions: Sessions, settings: Settings) -> None:
    client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
    sender = WebhookSender(sessions, client, allow_private_hosts=settings.allow_private_hosts)
    await stack.enter_async_context(sender)


def _engine(settings: Settings, tokenizer: ChatTokenizer) -> HttpEngine:
    return HttpEngine(
        urls_in(settings.engine_urls),
        max_in_flight=settings.engine_max_in_flight,
        timeout=settings.engine_timeout_seconds,
        load_timeout=settings.engine_load_timeout_seconds,
        requirements=ServerRequirements(
            adapters=settings.adapters_dir,
            model=settings.model_dir,
            rank=RunSettings().lora_rank,
            vocabulary=tokenizer.vocab_size,
            loras=2,  # a running task keeps its adapter while the next one is loaded
        ),
        checks=HealthChecks(may_sleep=settings.engine_sleep != "never"),
        separate_base=settings.engine_separate_base,
    )


def _probe_servers(settings: Settings, tokenizer: ChatTokenizer) -> list[Capabilities]:
    """The capabilities of the model servers that are up. Runs in a thread: this one may have a running loop."""

    async def check() -> list[Capabilities]:
        async with _engine(settings, tokenizer) as engine:
            return await engine.check()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, check()).result()


def _fit_context(tokenizer: ChatTokenizer, servers: Sequence[Capabilities]) -> ChatTokenizer:
    """Limit the context to that of the model servers, which may be less than the model allows."""
    shortest = min(
        (server.max_model_len or tokenizer.max_length for server in servers), default=tokenizer.max_length
    )
    return msgspec.structs.replace(tokenizer, max_length=min(shortest, tokenizer.max_length))


def _api_client(max_tasks_in_flight: int) -> httpx.AsyncClient:
    """The HTTP client for live APIs. Proxy settings of this machine do not apply to them."""
    limits = httpx.Limits(
        max_connections=8 * max_tasks_in_flight, max_keepalive_connections=2 * max_tasks_in_flight
    )
    return httpx.AsyncClient(limits=limits, trust_env=False, cookies=NoCookies())


def _document_client(allow_private_hosts: bool) -> httpx.AsyncClient:
    async def refuse_private_hosts(request: httpx.Request) -> None:
        try:
            await resolve_public(request)
        except HostError as error:
            raise httpx.ConnectError(error.message, request=request) from error

    hooks = {} if allow_private_hosts else {"request": [refuse_private_hosts]}
    return httpx.AsyncClient(timeout=_FETCH_SECONDS, trust_env=False, event_hooks=hooks, cookies=NoCookies())


async def _open_and_close(sandbox: Sandbox) -> None:
    session = await sandbox.open({}, _no_calls, SessionLimits())
    await session.close()


async def _no_calls(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:  # noqa: ARG001
    raise HostError("PermissionError", f"{api}: calls are not possible in a readiness check")
