"""Checks of this host: model, disk, directories, packages and sandbox. None of them needs the database."""

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from kombu.exceptions import KombuError

from app.adapters.remote_store import open_remote, remote_errors
from app.broker.celery_broker import open_broker
from app.doctor.finding import Finding
from app.errors import ModelError, SandboxError, SettingError, first_line
from app.model_store.model_checks import load_served
from app.sandbox.cgroup import SharedLimits
from app.sandbox.forked_sandbox import ForkedSandbox
from app.settings import Settings

_LEAST_FREE = 1 << 30  # bytes
_LOW_FREE = 5 << 30
_BROKER_SECONDS = 5


def check_model(settings: Settings) -> Finding:
    try:
        tokenizer, profile = load_served(settings.model_dir, settings.prompt_profile, settings.template_kwargs)
    except ModelError as error:
        return Finding("fault", "model", f"SAGE_MODEL={settings.model}: {error}")
    if settings.model_url:
        return Finding("ok", "model", f"{settings.model} at {settings.model_url}")
    return Finding("ok", "model", f"{settings.model}, {tokenizer.max_length:,} tokens, prompt {profile.name}")


def check_variables() -> Iterator[Finding]:
    """Of the environment: nothing where all that look like settings are some."""
    for remark in Settings.misnamed():
        yield Finding("warning", "settings", remark)


def check_disk(settings: Settings) -> Finding:
    place = _nearest(settings.data_dir.absolute())
    free = shutil.disk_usage(place).free
    text = f"{free / (1 << 30):.1f} GiB free at {place}"
    if free < _LEAST_FREE:
        return Finding("fault", "disk", f"{text}: free some, or set SAGE_DATA_DIR to a larger disk")
    if free < _LOW_FREE:
        return Finding("warning", "disk", f"{text}: free some soon")
    return Finding("ok", "disk", text)


def check_data_dir(settings: Settings) -> Finding:
    for place in (settings.data_dir.absolute(), settings.adapters_dir):
        nearest = _nearest(place)
        if not nearest.is_dir() or not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
            text = f"{nearest} is no directory this user may write to: change its owner, or set SAGE_DATA_DIR"
            return Finding("fault", "data directory", text)
    return Finding("ok", "data directory", str(settings.data_dir.absolute()))


def check_packages(settings: Settings) -> Iterator[Finding]:
    """The extras that the settings need."""
    wanted = {
        "embedded": ("torch", not (settings.database_url and settings.engine_urls)),
        "otel": ("opentelemetry.sdk", bool(settings.otel_exporter_otlp_endpoint)),
        "s3": ("s3fs", settings.adapter_store.startswith("s3:")),
    }
    missing = [extra for extra, (module, needed) in wanted.items() if needed and not _installed(module)]
    for extra in missing:
        yield Finding(
            "fault", "packages", f"the settings need the extra {extra}: pip install 'sage-server[{extra}]'"
        )
    if not missing:
        yield Finding("ok", "packages", "all that the settings need")


def check_store(settings: Settings) -> Finding:
    if not settings.adapter_store:
        return Finding("ok", "adapter store", "none: adapters stay in the data directory")
    try:
        remote, root = open_remote(settings.adapter_store)
        remote.exists(root)
    except SettingError as error:
        return Finding("fault", "adapter store", str(error))
    except remote_errors() as error:
        text = f"{settings.adapter_store} does not answer ({first_line(error)}): check SAGE_ADAPTER_STORE"
        return Finding("fault", "adapter store", text)
    return Finding("ok", "adapter store", settings.adapter_store)


async def check_sandbox(settings: Settings) -> Finding:
    """Opens a session, as a runner does."""
    shared = SharedLimits(
        memory_bytes=settings.sandbox_project_memory_mb << 20, pids=settings.sandbox_project_pids
    )
    try:
        async with ForkedSandbox(shared=shared) as sandbox:
            text = sandbox.describe().removeprefix("sandbox: ")
    except SandboxError as error:
        return Finding("fault", "sandbox", f"runners of this host execute nothing: {error}")
    return Finding("warning" if "without" in text else "ok", "sandbox", text)


def check_broker(settings: Settings) -> Finding:
    if not settings.broker_url:
        return Finding("ok", "broker", "files in the data directory: workers have to run on this host")
    try:
        with open_broker(settings).connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=_BROKER_SECONDS)
            shown = connection.as_uri()
    except (KombuError, OSError) as error:
        return Finding(
            "warning",
            "broker",
            f"it does not answer ({first_line(error)}), so runs start late: start it, or correct BROKER_URL",
        )
    return Finding("ok", "broker", shown)


def _nearest(place: Path) -> Path:
    """The place itself, or the nearest directory above it that exists."""
    return next(each for each in (place, *place.parents) if each.exists())


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False
