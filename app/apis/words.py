"""The words in the identifiers of API documents. Pure."""

import re

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PLURAL_ACRONYM = re.compile(r"(?<![A-Z])([A-Z])([A-Z]+)s(?![a-z])")
_WORD = re.compile(r"[0-9A-Za-z]+")
_PREFIX_CHARS = 4


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAME = word_set(
    "alias analytics atlas aws canvas css diagnostics dns gps https ios kubernetes metrics news redis series sms "
    "species statistics tls vs"
)
_IRREGULAR = {
    "aliases": "alias",
    "caches": "cache",
    "children": "child",
    "cookies": "cookie",
    "indices": "index",
    "movies": "movie",
    "people": "person",
    "statuses": "status",
    "vertices": "vertex",
}


def split_words(identifier: str) -> list[str]:
    """
    >>> split_words("fetchHTTPMails"), split_words("issues/list-for_repo"), split_words("floatingIPs_list")
    (['fetch', 'http', 'mails'], ['issues', 'list', 'for', 'repo'], ['floating', 'ips', 'list'])
    """
    plain = _PLURAL_ACRONYM.sub(lambda match: f"{match[1]}{match[2].lower()}s", identifier)
    return [word.lower() for word in _WORD.findall(_WORD_START.sub("_", plain))]


def singular(word: str) -> str:
    """
    >>> [singular(each) for each in ("issues", "policies", "branches", "databases", "prefixes", "status", "ips")]
    ['issue', 'policy', 'branch', 'database', 'prefix', 'status', 'ip']
    """
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word in _SAME or len(word) < 3 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("sses", "shes", "ches", "xes")) else word[:-1]


def beginning(word: str) -> str:
    """What two words have in common of which one begins the other: to look for it among few.

    >>> beginning("repo") == beginning("repository"), beginning("in") == beginning("inner")
    (True, False)
    """
    return word[:_PREFIX_CHARS]


def is_beginning(word: str, term: str) -> bool:
    """Whether one begins the other, and they differ.

    >>> is_beginning("repo", "repository"), is_beginning("paused", "pause"), is_beginning("in", "inner")
    (True, True, False)
    """
    enough = word != term and min(len(word), len(term)) >= _PREFIX_CHARS
    return enough and (word.startswith(term) or term.startswith(word))
