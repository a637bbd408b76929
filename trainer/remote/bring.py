"""An adapter from elsewhere, put where the model servers find it."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from app.adapter_files import CONFIG, WEIGHTS, inspect, verify
from app.adapter_store import AdapterStore
from app.errors import StorageError
from app.settings import Settings


async def bring(directory: Path, settings: Settings) -> str:
    """Its name, the hash of its content. Again is no mistake. Whether it fits the base model, the server looks.

    Raises AdapterError for what must never be served, StorageError where it cannot be kept.
    """
    name = inspect(directory).hash
    try:
        _copy(directory, settings.adapters_dir / name)
    except OSError as error:
        raise StorageError(f"{settings.adapters_dir} does not take it: {error.strerror or error}") from error
    await AdapterStore(settings.adapters_dir, settings.adapter_store).put(name)
    return name


def _copy(directory: Path, final: Path) -> None:
    """Whole or not at all."""
    if final.is_dir():
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".brought-", dir=final.parent) as partial:
        contents = Path(partial) / final.name
        contents.mkdir()
        for file in (CONFIG, WEIGHTS):
            shutil.copyfile(directory / file, contents / file)
        verify(contents)
        os.replace(contents, final)
