"""Gets the model that `sage up` serves, and says what memory it takes, before anything is started; or probes the
endpoint that has it.
"""

import asyncio

import click

from app.engine.available_memory import memory_available
from app.engine.hosted.client import Abilities, Remedies
from app.engine.hosted.probe import probe
from app.engine.model_memory import usual_need
from app.errors import EngineError, ModelError, SettingError
from app.model_catalog import CATALOG, models_dir, pulled
from app.model_store.model_checks import load_served
from app.release.hosted_models import HostedModels
from app.settings import Settings

_PATIENCE = 20.0  # seconds, for an endpoint that answers that it is still loading its model
_REMEDIES = Remedies(
    key="correct SAGE_MODEL_KEY",
    model="correct SAGE_MODEL or SAGE_MODEL_URL",
    url="check SAGE_MODEL_URL, and that it runs",
)


def prepare_model(settings: Settings) -> Abilities | None:
    """Pull a model of the catalogue that is not here. Returns what a hosted one can do.

    Raises ModelError, and SettingError for one that cannot be served, or does not answer at its endpoint.
    """
    if settings.model_url:
        return asyncio.run(_probed(settings))
    _pull(settings)
    try:
        load_served(settings.model_dir, settings.prompt_profile, settings.template_kwargs)
        if not settings.engine_urls:
            click.echo(_memory(settings))
    except ModelError as error:
        raise SettingError(f"SAGE_MODEL={settings.model}: {error}") from error
    return None


def _pull(settings: Settings) -> None:
    if settings.model not in CATALOG or pulled(settings.model, settings.data_dir):
        return
    from app.model_store.pull import pull  # noqa: PLC0415  takes a moment, which later starts need not wait for

    model = CATALOG[settings.model]
    click.echo(f"pulling {model.summary} to {models_dir(settings.data_dir)}")
    pull(model.name, settings.data_dir)


def _memory(settings: Settings) -> str:
    free = memory_available()
    here = "" if free is None else f"; {free >> 20:,} MB are free"
    return f"model {settings.model}: up to {usual_need(settings.model_dir, settings)} of memory{here}"


async def _probed(settings: Settings) -> Abilities:
    url, model = settings.model_url, settings.model
    if settings.engine_urls:
        raise SettingError(
            "SAGE_MODEL_URL and ENGINE_URLS are both set: unset one of them. A server with model servers gets "
            "hosted models by `sage models add`"
        )
    opened = HostedModels.of(settings).connect(
        url, model, settings.model_key, trusted=True, patience=_PATIENCE, remedies=_REMEDIES
    )
    async with opened as endpoint:
        try:
            found = await probe(endpoint)
        except EngineError as error:
            raise SettingError(str(error)) from error
    length = f"{found.context:,} tokens" if found.context else "it does not say how long its context is"
    remark = f"; {found.remark}" if found.remark else ""
    click.echo(f"model {model} at {url}: it answers; {length}{remark}")
    return found
