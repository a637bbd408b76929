"""What an operation answers, by its document: statuses of redirects, and media types of successes."""

import re
from collections.abc import Iterable, Mapping

import msgspec

from app.apis.media_types import bare, is_declared_json
from app.records import Json

_MEDIA_TYPES = 10  # of one operation
_TYPE = re.compile(r"[\w!#$&^.+*-]{1,100}/[\w!#$&^.+*-]{1,100}", re.ASCII)
_REDIRECT = re.compile(r"3(\d\d|xx)", re.IGNORECASE)


class DocumentedAnswers(msgspec.Struct, frozen=True):
    """`media_types` are those of the successes, JSON first; empty if the document names none."""

    media_types: tuple[str, ...] = ()
    redirects: tuple[str, ...] = ()  # statuses, also "3xx"

    @property
    def are_json(self) -> bool:
        """Whether the document promises JSON and nothing else."""
        return bool(self.media_types) and all(map(is_declared_json, self.media_types))

    def has_redirect(self, status: int) -> bool:
        """Whether a redirect of this status is an answer of its own."""
        return bool({str(status), f"{status // 100}xx"} & set(self.redirects))


def documented_answers(statuses: Iterable[Json], contents: Iterable[Mapping[str, Json]]) -> DocumentedAnswers:
    """`statuses` are those of all answers, `contents` those of the successful ones.

    >>> documented_answers([200, "303"], [{"text/csv": {}, "application/json": {}}])
    DocumentedAnswers(media_types=('application/json', 'text/csv'), redirects=('303',))
    """
    every = dict.fromkeys(bare(str(each)) for content in contents for each in content)
    named = sorted((each for each in every if _TYPE.fullmatch(each)), key=lambda each: not is_declared_json(each))
    redirects = dict.fromkeys(str(each).lower() for each in statuses if _REDIRECT.fullmatch(str(each)))
    return DocumentedAnswers(tuple(named[:_MEDIA_TYPES]), tuple(redirects))
