"""The file system that all hosts share: `SAGE_ADAPTER_STORE`, a directory or any URL of fsspec."""

from typing import Any

import fsspec.core

from app.base.errors import SettingError, first_line


def open_remote(url: str) -> tuple[Any, str]:
    """The file system and the path of the store's root in it. Raises SettingError. Does not contact it yet."""
    try:
        remote, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)  # with the current credentials
    except (ImportError, ValueError) as error:
        raise SettingError(
            f"SAGE_ADAPTER_STORE={url}: {first_line(error)}. Use a directory or a URL that fsspec supports; "
            "s3:// needs the extra s3 (pip install 'sage-server[s3]')"
        ) from error
    return remote, str(root).rstrip("/")


def remote_errors() -> tuple[type[Exception], ...]:
    """The errors of a store. S3's client has its own: for a network that is down, for missing keys."""
    try:
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415  takes a second, and only the extra s3 has it
    except ImportError:
        return (OSError,)
    return (OSError, BotoCoreError)
