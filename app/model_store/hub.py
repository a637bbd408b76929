"""Model directories of the Hugging Face hub, by id."""

import shutil
from pathlib import Path

from httpx2 import HTTPError  # of huggingface_hub, which raises it
from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from app.errors import ModelDownloadError, ModelError, first_line
from app.model_catalog import HASH_DIGITS, directory_stem
from app.model_store.convert import publish
from app.model_store.model_checks import check_directory

_FILES = ["*.json", "*.safetensors", "*.jinja", "README.md", "LICENSE*"]


def pull_repository(name: str, models: Path, folder: Path) -> Path:
    """Download the newest commit of a repository, or the rest of it, and install it whole or not at all."""
    partial = folder / directory_stem(name)
    try:
        commit = str(HfApi().model_info(name).sha)
        target = models / f"{directory_stem(name)}-{commit[:HASH_DIGITS]}"
        if target.is_dir():
            return target
        snapshot_download(name, revision=commit, local_dir=partial, allow_patterns=_FILES)
    except HFValidationError as error:
        raise ModelError(f"{name} is no model: name one of `sage models list`, a hub id or a directory") from error
    except (HfHubHTTPError, HTTPError, OSError) as error:
        raise ModelDownloadError(
            f"{name} could not be downloaded from {constants.ENDPOINT}: {first_line(error)}. What has arrived "
            "is kept: try again. Without a network, copy the model's directory here and set SAGE_MODEL to it"
        ) from error
    try:
        if not any(partial.glob("*.safetensors")):
            raise ModelError(
                f"{name} has no safetensors files. Name one of its GGUF files: sage models pull {name}/FILE.gguf"
            )
        check_directory(partial)
    except ModelError:
        shutil.rmtree(partial)
        raise
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    publish(partial, target)
    return target
