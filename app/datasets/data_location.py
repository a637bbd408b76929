"""Where a run may read its data from: a dataset's id, or a place under a prefix that the operator allowed.

A place is refused unless it is spelled plainly: what is compared with the prefixes is then what will be read.
Hence no chained protocols, no percent-encoding, no `..`. `http` is no scheme here: redirects lead anywhere.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import msgspec

from app.base.errors import InvalidError, SettingError
from app.base.settings import Settings

SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss")
_MB = 10**6
_SEGMENT = re.compile(r"[A-Za-z0-9._+=~, -]+")


class DataRules(msgspec.Struct, frozen=True):
    """The operator's rules for training data."""

    prefixes: tuple[str, ...] = ()
    max_bytes: int = 1_000 * _MB

    @classmethod
    def of(cls, settings: Settings) -> "DataRules":
        """Raises SettingError for an invalid prefix."""
        try:
            prefixes = prefixes_in(settings.data_prefixes)
        except ValueError as error:
            raise SettingError(f"SAGE_DATA_PREFIXES: {error}") from error
        return cls(tuple(prefixes), settings.dataset_max_mb * _MB)


def dataset_id_of(data: str) -> UUID | None:
    """The id, if the value is one."""
    try:
        return UUID(data)
    except ValueError:
        return None


def prefixes_in(text: str) -> list[str]:
    """The prefixes, each with a slash at its end. Raises ValueError for one that cannot be a prefix.

    >>> prefixes_in("s3://bucket/chats, /srv/data/")
    ['s3://bucket/chats/', '/srv/data/']
    """
    prefixes = [each.strip().rstrip("/") for each in text.split(",") if each.strip()]
    for each in prefixes:
        if not _is_plain(each):
            schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise ValueError(f"{each!r} is neither an absolute directory nor a plain URL with {schemes}")
    return [f"{each}/" for each in prefixes]


def check_location(data: str, prefixes: Sequence[str], *, directories: bool) -> None:
    """Raises InvalidError unless the place is under a prefix; with a path only if `directories` are allowed."""
    allowed = [each for each in prefixes if directories or not each.startswith("/")]
    if not _is_plain(data) or not any(data.startswith(each) for each in allowed):
        raise InvalidError(
            f"data={data!r}: upload the file with POST /v1/datasets and give its id, or a URL under a prefix that "
            "the operator allows with SAGE_DATA_PREFIXES"
        )


def resolve_path(data: str, prefixes: Sequence[str]) -> Path:
    """The file that a path leads to. Raises InvalidError if that is none, or elsewhere by a symbolic link."""
    path = Path(data).resolve()
    roots = [Path(each).resolve() for each in prefixes if each.startswith("/")]
    if not path.is_file() or not any(path.is_relative_to(root) for root in roots):
        raise InvalidError(f"data={data!r} is no file under a directory of SAGE_DATA_PREFIXES")
    return path


def _is_plain(place: str) -> bool:
    """
    >>> [_is_plain(each) for each in ("s3://bucket/a.jsonl", "/srv/data", "s3://bucket/../a", "file:///srv")]
    [True, True, False, False]
    """
    scheme, is_url, rest = place.partition("://")
    if not is_url:
        rest = place.removeprefix("/")
        if rest == place:
            return False
    elif scheme not in SCHEMES:
        return False
    parts = rest.split("/")
    return all(_SEGMENT.fullmatch(part) and part not in (".", "..") for part in parts)
