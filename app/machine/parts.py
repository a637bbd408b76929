"""Composes the parts that the API and the runners share. Only this module and those of `app.processes` decide
which implementations are used.
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from app.agent.prompts import Profile
from app.base.encryption import KeyRing
from app.base.errors import SettingError
from app.base.files import remove_left
from app.base.log import configure_logging
from app.base.run_settings import RunSettings
from app.base.settings import Settings, urls_in
from app.db.database import Database, Sessions, open_database
from app.db.notify import NotificationListener, check_pooler
from app.engine.client import HttpEngine, Topology
from app.engine.health import HealthChecks
from app.engine.replica import ServerRequirements
from app.engine.tokenizer import ChatTokenizer
from app.engine.vllm import HttpEmbedder
from app.machine.model_checks import load_served
from app.releases.adapter_store import AdapterDirectory, AdapterStore
from app.skills.index_files import IndexFiles, IndexUpkeep
from app.skills.library import Library
from app.skills.search import Retrieval, load_retrieval


class Parts(NamedTuple):
    """The parts that are loaded once, before a process starts its work."""

    settings: Settings
    keys: KeyRing
    tokenizer: ChatTokenizer
    profile: Profile
    retrieval: Retrieval


def load_parts() -> Parts:
    """Reads the settings and configures the log.

    Raises SettingError and ModelError for mistakes that waiting does not fix. Services that may still be starting,
    such as the database or the engine, need not be there.
    """
    settings = Settings.from_env()
    configure_logging(settings.log_level)
    for name in ("database_url", "engine_urls"):
        if not getattr(settings, name):
            raise SettingError(f"{name.upper()} is not set: set it, or run `sage up`, which starts its own")
    check_pooler(settings)
    tokenizer, profile = load_served(settings.model_dir, settings.prompt_profile, settings.template_kwargs)
    parts = Parts(
        settings=settings,
        profile=profile,
        keys=KeyRing.open(settings),
        retrieval=load_retrieval(settings.retrieval),
        tokenizer=tokenizer,
    )
    _check_servers(settings, tokenizer)
    return parts


class SharedServices(NamedTuple):
    """What both kinds of processes have open."""

    database: Database
    engine: HttpEngine
    adapters: AdapterDirectory
    library: Library


@asynccontextmanager
async def open_services(parts: Parts, *, connections: int) -> AsyncIterator[SharedServices]:
    """`connections` to the database are kept open, up to ten more are opened when needed."""
    settings = parts.settings
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(
                settings.database_url,
                connections=connections,
                keys=parts.keys,
                direct_url=settings.direct_url,
                transaction_seconds=settings.lease_seconds,
            )
        )
        engine = await stack.enter_async_context(open_engine(settings, parts.tokenizer))
        await asyncio.to_thread(remove_left, settings.adapters_dir)
        store = AdapterStore(settings.adapters_dir, settings.adapter_store)
        adapters = AdapterDirectory(settings.adapters_dir, settings.model_dir, store, base=settings.local_model)
        files = IndexFiles(settings.skill_index_dir)
        upkeep = IndexUpkeep(database.sessions, files, settings.database_url)
        await stack.enter_async_context(upkeep.loop())
        yield SharedServices(database, engine, adapters, _library(stack, parts, database.sessions, files))


def _library(stack: AsyncExitStack, parts: Parts, sessions: Sessions, files: IndexFiles) -> Library:
    settings = parts.settings
    embedder = HttpEmbedder(settings.embeddings_url or settings.model_servers[0])
    stack.push_async_callback(embedder.close)
    return Library(
        sessions,
        open_embedder=embedder.resolve_model,
        retrieval=parts.retrieval,
        files=files,
    )


def open_listener(settings: Settings) -> NotificationListener:
    """An async context manager."""
    return NotificationListener(settings.direct_url, pooler=bool(settings.database_direct_url))


def open_engine(settings: Settings, tokenizer: ChatTokenizer) -> HttpEngine:
    """The model servers of the settings. An async context manager."""
    return HttpEngine(
        urls_in(settings.engine_urls),
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
        topology=Topology(router=settings.engine_router_url),
    )


def _check_servers(settings: Settings, tokenizer: ChatTokenizer) -> None:
    """Raises SettingError if a model server that is up lacks a flag. Runs in a thread: this one may have a running
    loop.
    """

    async def check() -> None:
        async with open_engine(settings, tokenizer) as engine:
            await engine.check()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, check()).result()
