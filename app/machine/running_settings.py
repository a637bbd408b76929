"""What other commands on this machine must know of the settings that a running `sage up` was started with.

Their own environment may be another. Secrets stay in the environment of the server.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import msgspec

from app.errors import StorageError
from app.settings import Settings


class RunningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Those of the model and its servers, as in `Settings`."""

    model: str
    model_url: str
    prompt_profile: str
    chat_template_kwargs: str
    engine_urls: str
    engine_port: int
    has_model_key: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        same = {name: getattr(settings, name) for name in cls.__struct_fields__ if name != "has_model_key"}
        return cls(**same, has_model_key=bool(settings.model_key))

    @classmethod
    def find(cls, data_dir: Path) -> Self | None:
        """Of the `sage up` that runs with this data directory, as the caller has made sure; None if it cannot be
        read, or has not come so far.
        """
        try:
            return msgspec.json.decode(_file(data_dir).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None

    def apply(self, settings: Settings) -> Settings:
        """The settings of another process, as if they were given these."""
        own = {name: value for name, value in msgspec.structs.asdict(self).items() if name != "has_model_key"}
        return msgspec.structs.replace(settings, **own)


@contextmanager
def noted_settings(settings: Settings) -> Iterator[None]:
    """Has `RunningSettings.find` find them meanwhile. Raises StorageError if the file cannot be written."""
    path = _file(settings.data_dir)
    try:
        path.unlink(missing_ok=True)  # of a process that was killed
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(RunningSettings.of(settings)))
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}): check SAGE_DATA_DIR") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _file(data_dir: Path) -> Path:
    return data_dir / "up.json"
