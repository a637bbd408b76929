"""The token of the demo APIs' admin endpoints: made once, kept in the data directory, readable by its owner."""

import os
import secrets
from pathlib import Path

from app.errors import SettingError

_NAME = "demo.token"


def make_token(data_dir: Path) -> str:
    """The token, new at the first call."""
    data_dir.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(data_dir / _NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(data_dir)
    with os.fdopen(descriptor, "w") as file:
        token = secrets.token_hex(16)
        file.write(token)
    return token


def read_token(data_dir: Path) -> str:
    """Raises SettingError where `sage demo-apis` has never run on this data directory."""
    try:
        return (data_dir / _NAME).read_text()
    except OSError as error:
        raise SettingError(
            f"{data_dir / _NAME} cannot be read: start `sage up` or `sage demo-apis` first, or set SAGE_DATA_DIR"
        ) from error
