"""Gets the model that `sage up` serves, and says what memory it takes, before anything is started."""

import click

from app.engine.available_memory import memory_available
from app.engine.model_memory import usual_need
from app.errors import ModelError, SettingError
from app.model_catalog import CATALOG, models_dir, pulled
from app.model_store.model_checks import load_served
from app.settings import Settings


def prepare_model(settings: Settings) -> None:
    """Pull a model of the catalogue that is not here. Raises ModelError, and SettingError for one that cannot be
    served.
    """
    _pull(settings)
    try:
        load_served(settings.model_dir, settings.prompt_profile, settings.template_kwargs)
        if not settings.engine_urls:
            click.echo(_memory(settings))
    except ModelError as error:
        raise SettingError(f"SAGE_MODEL={settings.model}: {error}") from error


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
