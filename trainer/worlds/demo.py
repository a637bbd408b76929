"""What commands know of the demo without its services: the default environment, and the token of the admin routes.

The token is in a file of the data directory that only its owner can read.
"""

import os
import secrets
from pathlib import Path

from app.base.errors import SettingError

ENVIRONMENT = "office"


_NAME = "demo.token"


def make_token(data_dir: Path) -> str:
    """The token, created by the first call."""
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
    """Raises SettingError if `sage demo-apis` has never run on this data directory."""
    try:
        return (data_dir / _NAME).read_text()
    except OSError as error:
        raise SettingError(
            f"{data_dir / _NAME} cannot be read: start `sage up` or `sage demo-apis` first, or set SAGE_DATA_DIR"
        ) from error
