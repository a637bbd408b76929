"""The adapters in the package, each for a model of the catalogue."""

from pathlib import Path
from typing import Self

import msgspec

from app.base.errors import AdapterError, first_line
from app.base.files import sha256_of
from app.base.model_catalog import CATALOG
from app.engine.adapter_files import AdapterFiles, base_shapes, inspect

BUNDLED = Path(__file__).parent / "bundled"
_WEIGHTS = "model.safetensors"


class BundledAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that comes with a model, and what it must be."""

    model: str  # its name in the catalogue
    path: Path
    hash: str  # of its content
    weights: str  # SHA-256 of the base model's

    @classmethod
    def of(cls, model_dir: Path) -> Self | None:
        """The one for the model in a directory that `sage models pull` made; None if there is none."""
        for model in CATALOG.values():
            if model.adapter and model_dir.name == model.directory:
                path = BUNDLED / model.name
                return cls(model=model.name, path=path, hash=model.adapter, weights=model.weights)
        return None

    def verify(self, model_dir: Path) -> AdapterFiles:
        """Read all of it, and all weights of the base model. Raises AdapterError if one is not what it must be."""
        files = inspect(self.path, base_shapes(model_dir))
        if files.hash != self.hash:
            raise AdapterError(
                f"the adapter that comes with {self.model} is damaged: the files in {self.path} have the content "
                f"hash {files.hash}, not {self.hash}. Install sage-server again"
            )
        if (found := _weights_hash(model_dir)) != self.weights:
            raise AdapterError(
                f"the adapter that comes with {self.model} is for weights with the SHA-256 {self.weights}, but "
                f"those in {model_dir} have {found}: remove that directory and run `sage models pull {self.model}`"
            )
        return files


def _weights_hash(model_dir: Path) -> str:
    try:
        return sha256_of(model_dir / _WEIGHTS)
    except OSError as error:
        raise AdapterError(f"the weights in {model_dir} cannot be read: {first_line(error)}") from error
