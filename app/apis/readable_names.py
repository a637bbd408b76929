"""Names that a person would give to operations: the verb first, without what frameworks add. Pure.

A name depends on its operation alone: its operationId, method and path.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from app.apis.verbs import ALL, CLEAR, CREATING, LAST, LISTING, agrees
from app.apis.words import singular, split_words

_PARAMETER = re.compile(r"\{([^{}]*)\}")
_GROUP = re.compile(r"[/.:#@]+")
_TOKEN = re.compile(r"_+")
_FRAMEWORK = re.compile(r"Using(GET|PUT|POST|DELETE|PATCH|HEAD|OPTIONS)(_\d+)?$|\[\d+\]$")
_NUMBERED = re.compile(r"([A-Za-z]+)_(\d+)")  # one of several that have the same name
_VERSION = re.compile(r"v\d+(alpha|beta)?\d*|api|rest")
_LINKS = {"as", "at", "by", "for", "from", "in", "of", "on", "to", "via", "with"}
_SEVERAL = {"all", "bulk", "many"}
_AMOUNTS = {*_SEVERAL, "one"}
_JOINED = {"or", "and", "partial", "bulk"}  # within a verb: create or update, partial update
_BARE = {"create", "delete", "destroy", "get", "index", "list", "retrieve", "show", "store", "update"}
_CHARS = 300  # of an identifier
_MOUNTED = 5  # segments of a path that an identifier may lack
_ROLES = {"controller", "handler", "resource", "service", "viewset"}  # of classes in identifiers
_ACTIONS = {"index": "list", "store": "create", "destroy": "delete"}  # of the controllers of Laravel and Rails
_OF_METHOD = {"get": "get", "put": "replace", "patch": "update", "delete": "delete"}


class _Parts(NamedTuple):
    """What an identifier is made of, in order."""

    owner: list[str]
    verb: list[str]
    rest: list[str]


def readable_name(operation_id: str, method: str, path: str) -> str:
    """In snake case, perhaps no valid identifier.

    >>> readable_name("read_flows_flows_filter_post", "POST", "/flows/filter")
    'read_flows'
    >>> readable_name("issues/create", "POST", "/repos/{owner}/{repo}/issues")
    'create_issue'
    >>> readable_name("dcim_device-types_bulk_partial_update", "PATCH", "/dcim/device-types/")
    'bulk_partial_update_dcim_device_types'
    """
    plain = _FRAMEWORK.sub("", _route_name(operation_id[:_CHARS], method, path))
    numbered = _NUMBERED.fullmatch(plain)
    plain = numbered[1] if numbered and numbered[2] not in split_words(path) else plain
    words = split_words(plain)
    if not words or _is_made_of(words, method, path) or _says_less(words, method, path):
        return path_name(method, path)
    if words[0] in CLEAR or (words[0] in _JOINED and words[1:2] and words[1] in CLEAR):
        return "_".join(words)
    parts = _parts(plain, words, method)
    return _joined(words if parts is None else _verb_first(parts, path))


def path_name(method: str, path: str) -> str:
    """A name by method and path alone.

    >>> path_name("GET", "/v1/customers"), path_name("POST", "/v1/customers/{customer}/cards")
    ('list_customers', 'create_customer_card')
    >>> path_name("POST", "/v1/invoices/{invoice}/send"), path_name("GET", "/project/{user}/{project}/{build_num}")
    ('send_invoice', 'get_project_by_build_num')
    """
    segments = _unversioned(path).split("/") if path.strip("/") else ["root"]
    spelled = [split_words(_PARAMETER.sub("", each)) for each in segments]
    places = [number for number, words in enumerate(spelled) if words]
    if not places:
        return "_".join([_OF_METHOD.get(method.lower(), method.lower()), *split_words(path)])
    last = spelled[places[-1]]
    on_item = places[-1] < len(segments) - 1
    if not on_item and len(places) > 1 and last[0] in ALL and agrees(last[0], method):
        verb, places = last, places[:-1]
    else:
        verb = [_verb(method, last[-1], on_item=on_item)]
    ones = {each for each in places if _is_item(segments, each)}
    ones |= {len(segments) - 1} if verb[0] in CREATING else set()
    nouns = [word for each in places for word in (_one(spelled[each]) if each in ones else spelled[each])]
    return _joined([*verb, *nouns, *_by(segments, nouns)])


def _route_name(operation_id: str, method: str, path: str) -> str:
    """Without the path and the method that FastAPI appends, whatever the path is mounted under."""
    ending = f"_{method.lower()}"
    if not operation_id.endswith(ending):
        return operation_id
    bare, segments = operation_id.removesuffix(ending), path.strip("/").split("/")
    for start, segment in enumerate(segments[:_MOUNTED]):
        below = re.sub(r"\W", "_", path if not start else "/" + path.strip("/").split("/", start)[start])
        if bare.endswith(below) and (name := bare.removesuffix(below).rstrip("_")):
            return name
        if _PARAMETER.search(segment):
            break
    return operation_id


def _is_made_of(words: Sequence[str], method: str, path: str) -> bool:
    """Whether an identifier says no more than method and path, as `getV3ProjectsId` does, or `projects` by GET."""
    named = {"id", *(word for name in _PARAMETER.findall(path) for word in split_words(name))}
    plain = [singular(each) for each in words if each not in named]
    of_items = singular(words[-1]) != words[-1] or "{" in path
    if method.upper() == "GET" and of_items and words[0] not in ALL:
        plain.insert(0, "get")
    said = [split_words(f"{method} {_PARAMETER.sub('', each)}") for each in (path, _unversioned(path))]
    return any(plain == [singular(word) for word in each if word not in named] for each in said)


def _says_less(words: Sequence[str], method: str, path: str) -> bool:
    """Whether the path says more: the identifier is a verb alone, or has another one behind what the path names.

    So it is with Django's `tickets_close_create` and Flask's `post_ticket_list`.
    """
    last = split_words(path.rstrip("/").rpartition("/")[2]) if not path.rstrip("/").endswith("}") else []
    if not last:
        return words[1:] == [] and words[0] in _BARE and bool(split_words(_PARAMETER.sub("", path)))
    if len(words) == 1:
        return words[0] in _BARE and words != last
    if words[-1] == "list" and words[0] == method.lower():
        return singular(words[-2]) == singular(last[-1])
    return words[-1] in ("create", "retrieve") and last[0] in ALL and words[-1 - len(last) : -1] == last


def _unversioned(path: str) -> str:
    segments = [each for each in path.split("/") if each]
    while len(segments) > 1 and _VERSION.fullmatch(segments[0].lower()):
        del segments[0]
    return "/".join(segments)


def _parts(identifier: str, words: list[str], method: str) -> _Parts | None:
    """None if no verb is found behind the first word."""
    *groups, last = [each for each in _GROUP.split(identifier) if split_words(each)]
    spelled = split_words(last)
    if groups and len(spelled) == 1:
        spelled = [_ACTIONS.get(spelled[0], spelled[0])]
    if (place := _role(words)) is not None:
        return _split(words[:place], words[place + 1 :])
    if groups and spelled[0] in ALL:
        return _split([word for group in groups for word in split_words(group)], spelled)
    is_noun = words[-1] == "list" and method.upper() != "GET"  # as in `new_price_list`
    if words[-1] in LAST and agrees(words[-1], method) and not is_noun:
        start = len(words) - 1
        while start > 1 and words[start - 1] in _JOINED:
            start -= 2 if words[start - 1] in ("or", "and") else 1
        return _Parts(words[:start], words[start:], []) if start > 0 else None
    tokens = [each for each in map(split_words, _TOKEN.split(identifier)) if each]
    for number, token in enumerate(tokens[1 : -1 if is_noun else None], start=1):
        if token[0] in CLEAR and agrees(token[0], method):
            owner = [word for each in tokens[:number] for word in each]
            return _split(owner, [word for each in tokens[number:] for word in each])
    return None


def _role(words: Sequence[str]) -> int | None:
    """Where a class's role stands before a verb, as in `ticketsControllerFindAll`."""
    places = range(1, len(words) - 1)
    return next((each for each in places if words[each] in _ROLES and words[each + 1] in ALL), None)


def _split(owner: list[str], spelled: list[str]) -> _Parts:
    length = 3 if spelled[1:2] in (["or"], ["and"]) and len(spelled) > 2 else 1
    while length < len(spelled) and spelled[length] in _AMOUNTS:
        length += 1
    return _Parts(owner, spelled[:length], spelled[length:])


def _plain_owner(owner: Sequence[str], path: str) -> list[str]:
    """Without the roles of classes, and without what the path begins with before it names anything."""
    plain = [each for each in owner if each not in _ROLES]
    if len(plain) < len(owner):
        plain = [each for each in plain if not _VERSION.fullmatch(each)]
    left = list(plain or owner)
    for segment in path.strip("/").split("/"):
        if len(left) > 1 and _VERSION.fullmatch(segment.lower()) and left[0] == segment.lower():
            del left[0]
    return left


def _verb_first(parts: _Parts, path: str) -> list[str]:
    """The owner is left out where the rest names it already, or where it is not in the path."""
    owner, verb, rest = _plain_owner(parts.owner, path), parts.verb, parts.rest
    if rest and rest[0] not in _LINKS:
        known = {singular(each) for each in rest}
        segments = {singular(word) for word in split_words(_PARAMETER.sub("", path))}
        owner = owner if {singular(each) for each in owner} <= segments - known else []
        return [*verb, *(_one(owner) if owner else ()), *rest]
    if verb[0] in CREATING or (_SEVERAL.isdisjoint(verb) and _is_about_one(owner, verb, path)):
        owner = _one(owner)
    elif not rest:
        owner = _as_in(path, owner)
    return [*verb, *owner, *rest]


def _as_in(path: str, owner: list[str]) -> list[str]:
    """Several of them, if the path names several: `TicketController.list` of /tickets."""
    spelled = [split_words(each)[-1:] for each in path.split("/") if not _PARAMETER.search(each)]
    return [
        *owner[:-1],
        next((word for [word] in filter(None, spelled) if singular(word) == owner[-1]), owner[-1]),
    ]


def _is_about_one(owner: Sequence[str], verb: Sequence[str], path: str) -> bool:
    """Whether the path names an item of what the owner is; or where it does not name that, by the verb."""
    segments = [each for each in path.split("/") if each]
    for place, segment in reversed(list(enumerate(segments))):
        if _PARAMETER.search(segment):
            continue
        if [singular(word) for word in split_words(segment)[-1:]] == [singular(owner[-1])]:
            return _is_item(segments, place)
    return verb[0] not in LISTING


def _is_item(segments: Sequence[str], place: int) -> bool:
    return place + 1 < len(segments) and _PARAMETER.search(segments[place + 1]) is not None


def _verb(method: str, noun: str, *, on_item: bool) -> str:
    plural = singular(noun) != noun
    if method.upper() == "GET" and plural and not on_item:
        return "list"
    if method.upper() == "POST":
        return "update" if on_item else "create" if plural else "post"
    return _OF_METHOD.get(method.lower(), method.lower())


def _one(words: Sequence[str]) -> list[str]:
    return [*words[:-1], singular(words[-1])]


def _joined(words: Sequence[str]) -> str:
    """Behind the verb, each word once in a row: `circuits_circuits` says no more than `circuits`."""
    behind = zip(words[1:], [*words[2:], ""], strict=False)
    return "_".join([words[0], *(word for word, after in behind if singular(word) != singular(after))])


def _by(segments: Sequence[str], nouns: Sequence[str]) -> list[str]:
    """For one of several parameters in a row, which name no noun between them."""
    if len(segments) < 2 or not (_PARAMETER.search(segments[-1]) and _PARAMETER.search(segments[-2])):
        return []
    words = split_words(segments[-1])
    return [] if {singular(each) for each in words} & {singular(each) for each in nouns} else ["by", *words]
