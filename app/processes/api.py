"""Composes the API process. It accepts tasks and shows them; runners execute them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from litestar import Litestar

from app.adapters.bundled_adapter import BundledAdapter
from app.agent.prompt_profiles import prompt_hash, prompt_text
from app.api.app import create_app
from app.api.dependencies import Dependencies
from app.api.health import remarks
from app.api.http_server import Shutdown
from app.api.readiness import hosted_failures, readiness_checks
from app.api.scope_check import ScopeCheck
from app.apis.document_reader import DocumentReader
from app.broker.celery_broker import worker_notifier
from app.composition import Parts, load_parts, open_listener, open_services
from app.console.routes import console_router
from app.datasets.data_location import DataRules
from app.datasets.dataset_store import DatasetStore
from app.db.disk_space import DiskSpace
from app.db.learning_outlook import Serving
from app.db.migrate import check_schema
from app.engine.model_scope import ModelScope
from app.engine.tokenizer import read_card
from app.garbage_collection import freeze_memory
from app.gateway.certificates import Certificates
from app.gateway.http_client import open_client
from app.gateway.mcp_client.mcp_commands import read_commands
from app.gateway.own_services import OwnServices
from app.hot_swap.loader import AdapterLoader
from app.ports import base_url
from app.project.project_settings import Limits
from app.project.webhook_sender import WebhookSender
from app.release.api_refresh import ApiRefresh
from app.release.first_release import FirstRelease
from app.release.hosted_models import HostedModels
from app.release.mcp_refresh import McpRefresh
from app.release.promote import Promoter
from app.release.reconciler import ReleaseReconciler
from app.runner.approval_expiry import ApprovalExpiry
from app.runner.retention_loop import RetentionLoop
from app.runner.verifier_sender import VerifierSender

__all__ = ["app", "create_app"]

_CONNECTIONS = 20  # to the database, kept open
_ENDPOINT_SECONDS = 10.0  # of retries, for a hosted model to answer before its release serves
_FETCH_SECONDS = 30.0  # for an OpenAPI document


def app(shutdown: Shutdown | None = None) -> Litestar:
    """The application that `uvicorn --factory app.asgi:app` serves. Raises what `load_parts` raises.

    Services that may still be starting, such as the database or the engine, are checked by /readyz.
    """
    parts = load_parts()
    return create_app(lambda: _open_dependencies(parts, shutdown or Shutdown()), [console_router()])


def _scope(parts: Parts) -> ModelScope:
    """By the card of the model, and of the adapter that it comes with; any, where a hosted one is set."""
    if parts.settings.model_url:
        return ModelScope()
    bundled = BundledAdapter.of(parts.settings.model_dir)
    lessons = read_card(bundled.path) if bundled else {}
    return ModelScope.of(parts.settings.model, {**parts.tokenizer.card, **lessons})


@asynccontextmanager
async def _open_dependencies(parts: Parts, shutdown: Shutdown) -> AsyncIterator[Dependencies]:
    settings = parts.settings
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(open_services(parts, connections=_CONNECTIONS))
        sessions = services.database.sessions
        hosted = HostedModels.of(settings)
        loader = await stack.enter_async_context(
            AdapterLoader(
                services.engine,
                sessions,
                services.adapters,
                partial(hosted.open, sessions, patience=_ENDPOINT_SECONDS),
            )
        )
        prompt = prompt_hash(parts.profile, parts.tokenizer)
        scope = _scope(parts)
        promoter = Promoter(sessions, loader, prompt)
        reconciler = await stack.enter_async_context(
            ReleaseReconciler(sessions, promoter, prompt, prompt_text=prompt_text(parts.profile, parts.tokenizer))
        )
        listener = await stack.enter_async_context(open_listener(settings))
        others: dict[str, Any] = {
            "allow_private_hosts": settings.allow_private_hosts,
            "certificates": Certificates.of(settings),
            "own": OwnServices.of(settings),
        }
        documents = await stack.enter_async_context(open_client(timeout=_FETCH_SECONDS, **others))
        webhooks = await stack.enter_async_context(open_client(**others))  # not delayed by slow documents
        verifiers = await stack.enter_async_context(open_client(**others))  # nor by slow webhooks
        reader = await stack.enter_async_context(DocumentReader())
        scope_check = await stack.enter_async_context(ScopeCheck(sessions, reader, scope))
        commands = read_commands(settings.mcp_commands)
        await stack.enter_async_context(McpRefresh(sessions, documents, commands, reader))
        await stack.enter_async_context(ApprovalExpiry(sessions))
        await stack.enter_async_context(ApiRefresh(sessions, reader, documents, settings.api_refresh_hours))
        await stack.enter_async_context(WebhookSender(sessions, webhooks))
        await stack.enter_async_context(VerifierSender(sessions, verifiers))
        await stack.enter_async_context(RetentionLoop(sessions))
        await stack.enter_async_context(services.library.filling())
        listener.on_release(loader.wake)
        listener.on_release(reconciler.wake)
        disk = DiskSpace(sessions, settings)
        freeze_memory()
        yield Dependencies(
            sessions=sessions,
            listener=listener,
            library=services.library,
            promoter=promoter,
            first_release=FirstRelease.of(settings),
            adapters=services.adapters,
            notify_workers=worker_notifier(settings),
            http_client=documents,
            document_reader=reader,
            mcp_commands=commands,
            hosted_endpoints=hosted,
            readiness_checks={
                "database": lambda: check_schema(services.database.engine),
                "engine": services.engine.ready,
                "adapters": loader.ready,
                **remarks({"model": scope_check.warning, "hosted models": partial(hosted_failures, sessions)}),
                **readiness_checks(sessions, disk, shutdown),
            },
            occupancy=services.engine.occupancy,
            model_servers=services.engine.servers,
            disks=disk.disks,
            model_scope=scope,
            tokenizer=parts.tokenizer,
            judged=bool(settings.judge),
            chat_wait_seconds=settings.chat_wait_seconds,
            serving=Serving.of(settings),
            limits=Limits.defaults(settings),
            datasets=DatasetStore(settings.datasets_dir, settings.adapter_store),
            data_rules=DataRules.of(settings),
            public_url=settings.public_url.rstrip("/") or base_url(settings.host, settings.port),
            failed_keys_per_minute=settings.limit_failed_keys_per_minute,
        )
