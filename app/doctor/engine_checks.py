"""Checks of model servers: flags, the shared adapter directory, the adapters that serve, and embeddings."""

from collections.abc import AsyncIterator

from app.adapters.bundled_adapter import BundledAdapter
from app.adapters.store import AdapterStore
from app.composition import open_engine
from app.db import adapters, hosted_models
from app.db.database import Database
from app.doctor.finding import Finding
from app.engine.embedder import HttpEmbedder
from app.engine.hosted.probe import probe
from app.engine.tokenizer import ChatTokenizer
from app.errors import AppError, EngineError, SettingError
from app.hot_swap.adapter_directory import AdapterDirectory
from app.plural import numbered
from app.records import BASE
from app.release.hosted_models import HostedModels
from app.security.encryption import KeyRing
from app.setting_lists import urls_in
from app.settings import Settings


async def check_engines(settings: Settings, tokenizer: ChatTokenizer) -> AsyncIterator[Finding]:
    """Each server is probed as at a start: it has to load an adapter from this host's directory."""
    async with open_engine(settings, tokenizer) as engine:
        try:
            for found in await engine.check():
                note = f"; not proved that it sees the adapter directory: {found.note}" if found.note else ""
                loads = "" if found.note else ", sees the adapter directory"
                text = f"{found.url}: {found.server} {found.version}, {found.max_model_len} tokens{loads}{note}"
                yield Finding("warning" if found.note else "ok", "model server", text)
            out = await engine.ready()
            if engine.router is not None:
                behind = f"{numbered(len(engine.replicas), 'model server')} behind it"
                text = f"{engine.router.replica.url} passes on token ids and logprobs, {behind}"
                yield Finding("ok", "router", text)
        except (EngineError, SettingError) as error:
            yield Finding("fault", "model server", str(error))
            return
    if out:
        yield Finding("warning", "model server", out)


async def check_hosted(
    settings: Settings, database: Database, *, key_elsewhere: bool = False
) -> AsyncIterator[Finding]:
    """Probes the hosted models that serve. With `key_elsewhere`, only the server has that of the settings' own."""
    try:
        rules, keys = HostedModels.of(settings), KeyRing.open(settings)
    except SettingError:  # others report it
        return
    async with database.sessions() as session:
        served = await hosted_models.serving(session)
    for row in served:
        if key_elsewhere and rules.names(row):
            text = f"{row.url} was not asked: set SAGE_MODEL_KEY here to what the running server has"
            yield Finding("warning", "model endpoint", text)
            continue
        try:
            key = rules.key_of(row, keys)
            async with rules.connect(row.url, row.model, key, trusted=row.trusted, patience=0) as model:
                await probe(model)
        except (EngineError, SettingError) as error:
            yield Finding("fault", "model endpoint", f"{row.url} does not answer: {error}")
        else:
            yield Finding("ok", "model endpoint", f"{row.url} answers for {row.model}")


async def check_embeddings(settings: Settings) -> Finding:
    url = settings.embeddings_url or urls_in(settings.engine_urls)[0]
    embedder = HttpEmbedder(url)
    try:
        await embedder.resolve_model()
        await embedder.embed(["ready?"])
    except EngineError as error:
        return Finding(
            "warning", "embeddings", f"skills are found by their words alone: {error} Set EMBEDDINGS_URL"
        )
    finally:
        await embedder.close()
    return Finding("ok", "embeddings", f"{embedder.model} at {url}")


async def check_adapters(settings: Settings, database: Database) -> Finding:
    """Every adapter that new tasks may get is here, whole, and fits the model. One that comes with it serves."""
    try:
        store = AdapterStore(settings.adapters_dir, settings.adapter_store)
    except SettingError as error:
        return Finding("fault", "adapters", str(error))
    directory = AdapterDirectory(settings.adapters_dir, settings.model_dir, store, base=settings.local_model)
    async with database.sessions() as session:
        serving = await adapters.serving(session) - {BASE}
        bare = await adapters.projects_of(session, BASE)
    unnamed = []
    for name in sorted(serving):
        try:
            files = await directory.verified(name)
        except AppError as error:
            async with database.sessions() as session:
                waiting = ", ".join(await adapters.projects_of(session, name))
            return Finding("fault", "adapters", f"{waiting or 'a canary'}: {error}")
        if settings.engine_router_url and files.base != settings.served_model:
            unnamed.append(f"{name} is for {files.base or 'no named base model'}, not {settings.served_model}")
    if unnamed:
        return Finding(
            "warning",
            "adapters",
            f"a restarted model server cannot load these by itself: {'; '.join(unnamed)}. Set SAGE_ENGINE_MODEL "
            "to the name in `vllm serve NAME`; adapters that are trained from then on carry it",
        )
    if bare and (bundled := BundledAdapter.of(settings.model_dir)):
        return Finding(
            "warning",
            "adapters",
            f"{', '.join(bare)}: the model serves without the adapter that comes with it. "
            f"`sage releases --add {bundled.path} --project NAME` makes it a candidate",
        )
    alone = "the base model serves" if bare else "none serves: projects have hosted models, or there is no project"
    return Finding("ok", "adapters", f"{len(serving)} serve, all verified" if serving else alone)
