"""What an operation answers, by its document: statuses of redirects, and media types of successes."""

import re
from collections.abc import Iterable, Mapping

import msgspec

from app.apis.media_types import is_declared_json
from app.base.values import Json

_MEDIA_TYPES = 10  # of one operation
_TYPE = re.compile(r"[\w!#$&^.+*-]{1,100}/[\w!#$&^.+*-]{1,100}(; ?[\w.-]{1,50}=[\w.+-]{1,50}){0,5}", re.ASCII)
_CHARSET = re.compile(r"; ?charset=[^;]*", re.IGNORECASE)
_REDIRECT = re.compile(r"3(\d\d|xx)", re.IGNORECASE)


class DocumentedAnswers(msgspec.Struct, frozen=True):
    """`accept` is the header that asks for them; "" if they are JSON, or the document does not name them."""

    accept: str = ""
    are_json: bool = False  # the document promises JSON and nothing else
    redirects: tuple[str, ...] = ()  # statuses, also "3xx"

    def has_redirect(self, status: int) -> bool:
        """Whether a redirect of this status is an answer of its own."""
        return bool({str(status), f"{status // 100}xx"} & set(self.redirects))


def documented_answers(
    statuses: Iterable[Json], contents: Iterable[Mapping[str, Json]], preferred: str = ""
) -> DocumentedAnswers:
    """`statuses` are those of all answers, `contents` those of the successful ones, JSON is preferred among them
    unless the document has one value for the header itself.

    >>> documented_answers([200, "303"], [{"text/csv": {}, "application/json": {}}])
    DocumentedAnswers(accept='application/json, text/csv;q=0.9, */*;q=0.1', are_json=False, redirects=('303',))
    """
    every = dict.fromkeys(_CHARSET.sub("", str(each)).strip() for content in contents for each in content)
    named = [each for each in every if _TYPE.fullmatch(each)]
    redirects = dict.fromkeys(str(each).lower() for each in statuses if _REDIRECT.fullmatch(str(each)))
    are_json = bool(every) and all(map(is_declared_json, every))
    return DocumentedAnswers(_accept(named, preferred), are_json, tuple(redirects))


def _accept(named: list[str], preferred: str) -> str:
    """JSON is asked for, too, where nothing but files is answered: errors are JSON."""
    wanted = sorted(named, key=lambda each: not is_declared_json(each))[:_MEDIA_TYPES]
    first = [preferred] if _TYPE.fullmatch(preferred) else wanted[:1]
    if first in ([], ["*/*"]):
        return ""
    others = [each for each in dict.fromkeys([*wanted, "application/json"]) if each not in (*first, "*/*")]
    if not others and first == ["application/json"]:
        return ""
    return ", ".join([*first, *(f"{each};q=0.9" for each in others), "*/*;q=0.1"])
