"""The names of operations and arguments in the agent's code, from the words in the identifiers of a document.
Pure.

Names are identifiers, unique, and kept when the document changes. Readable ones are those that a person would
give: the verb first, without what frameworks add.
"""

import keyword
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from heapq import nlargest
from typing import Final, Literal, NamedTuple, TypeAlias

from app.apis.catalog import App, Operation
from app.base.text import same_words

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PLURAL_ACRONYM = re.compile(r"(?<![A-Z])([A-Z])([A-Z]+)s(?![a-z])")
_WORD = re.compile(r"[0-9A-Za-z]+")
_PREFIX_CHARS = 4

_NOT_NAME = re.compile(r"[^0-9A-Za-z]+")
_OPERATORS = {
    "<=": "lte", ">=": "gte", "!=": "ne", "<>": "ne", "==": "eq", "<": "lt", ">": "gt", "!": "not", "=": "eq",
    "~": "like", "+": "plus", "-": "minus",
}  # fmt: skip
_OPERATOR = re.compile(r"<=|>=|!=|<>|==|[<>!=~]|^[+-]|[+-]$")  # that tell names apart
_CLOSE = 0.5
_COMPARED = 5_000  # names that an unknown one is compared with, roughly at first
_COMPARED_CHARS = 100
_COMPARISON_STEPS = 1_000_000  # products of the lengths: 100 names of 100 characters, 1,600 of 25

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

Naming: TypeAlias = Literal["operation_id", "readable"]
"""`operation_id`: as the document writes them. `readable`: verbs first, without what frameworks add."""


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


def plain(name: str) -> str:
    """
    >>> plain("page[number]"), plain("Created_At")
    ('pagenumber', 'createdat')
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


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


_READING: Final = word_set(
    "browse count describe download explain fetch filter find get inspect list preview query read retrieve search "
    "show view watch"
)
LISTING: Final = word_set("browse count filter find list query search")
CREATING: Final = word_set("add create insert post register")
CLEAR: Final = word_set(
    "accept acknowledge activate add append apply approve archive assign attach ban browse cancel clear complete "
    "configure confirm connect convert count create deactivate decline decrement delete deliver deny deploy "
    "deregister describe destroy detach disable disconnect dismiss dispatch download duplicate edit enable "
    "enqueue exec execute expire explain fetch filter finalize find finish follow generate get import increment "
    "initialize insert inspect install instantiate invalidate list mark merge migrate modify mute patch perform "
    "post prepare process promote provision prune publish purge push put read reboot rebuild recover recycle "
    "redeliver reduce refresh reject reload remove rename render renew reopen reorder replace replicate requeue "
    "rerun resend resize resolve restart restore resume retrieve retry revert revoke rotate search send set show "
    "simulate snooze start stop submit subscribe suspend sync terminate toggle trigger unarchive unassign unban "
    "unblock unfollow uninstall unlink unlock unmute unpin unpublish unregister unset unshare unsnooze unstar "
    "unsubscribe update upgrade upsert validate verify view wait watch withdraw"
)
"""Words that are hardly ever nouns at the beginning of an identifier."""
LAST: Final = CLEAR - word_set("import mark process refresh upgrade view wait watch")
"""Those that are hardly ever nouns at its end."""
ALL: Final = CLEAR | word_set(
    "block capture check clone close commit copy drop end export force fork grant invite join kill launch leave "
    "lock log lookup move notify open pause pay pin ping preview query refund register release request reset "
    "return rollback run save schedule share sign split star swap switch test transfer transition upload void"
)


def agrees(verb: str, method: str) -> bool:
    """Whether a verb can be what an operation of the method does: a GET creates nothing.

    >>> agrees("create", "GET"), agrees("list", "GET"), agrees("search", "POST"), agrees("read", "PUT")
    (False, True, True, False)
    """
    reads = method.upper() in ("GET", "HEAD", "QUERY", "OPTIONS")
    return reads or method.upper() == "POST" if verb in _READING else not reads


def operation_name(operation_id: str, method: str, path: str) -> str:
    """The operationId in snake case; method and path if that leaves nothing.

    >>> operation_name("fetchHTTPMails", "GET", "/mails"), operation_name("", "GET", "/mails/{id}")
    ('fetch_http_mails', 'get_mails_id')
    """
    return _snake(operation_id) or _snake(f"{method.lower()} {path}")


def argument_name(wire_name: str) -> str:
    """The name itself if it is a valid identifier, otherwise the nearest valid one.

    >>> [argument_name(name) for name in ("userId", "X-Trace", "from", "filter[tag]", "2fa", "a<", "b[>=]")]
    ['userId', 'X_Trace', 'from_', 'filter_tag', 'x_2fa', 'a_lt', 'b_gte']
    """
    if wire_name.isascii() and wire_name.isidentifier() and not wire_name.startswith("_"):
        return _not_keyword(wire_name)
    spelled = _OPERATOR.sub(lambda found: f"_{_OPERATORS[found[0]]}_", wire_name)
    name = _NOT_NAME.sub("_", spelled).strip("_") or "argument"
    return _not_keyword(f"x_{name}" if name[0].isdigit() else name)


def valid_name(words: str) -> str:
    """Words joined by underscores, as an identifier.

    >>> [valid_name(words) for words in ("list_mails", "2fa", "class")]
    ['list_mails', 'op_2fa', 'class_']
    """
    return _not_keyword(f"op_{words}" if words[:1].isdigit() else words)


class UniqueNames:
    """Numbers names that are taken, from 2 on, in time linear in their number."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def add(self, name: str) -> str:
        """The name, or the first free one of name_2, name_3, ..."""
        candidate, number = name, self._next.get(name, 2)
        while candidate in self._taken:
            candidate, number = f"{name}_{number}", number + 1
        self._next[name] = number
        self._taken.add(candidate)
        return candidate


def nearest(name: str, names: Iterable[str], limit: int = 3, *, otherwise: Callable[[], str] | None = None) -> str:
    """For an error message: the names closest to an unknown one, else what `otherwise` finds, or all."""
    known = list(names)
    if close := same_words(name, known[:_COMPARED], limit) or _close(name, known[:_COMPARED], limit):
        return "did you mean " + " or ".join(close) + "?"
    if otherwise is not None and (found := otherwise()):
        return found
    shown = ", ".join(each[:_COMPARED_CHARS] for each in known[:20]) + (", ..." if len(known) > 20 else "")
    return f"there is {shown}" if known else "there is none"


def _close(name: str, names: Iterable[str], limit: int) -> list[str]:
    """As `difflib.get_close_matches` finds them, at limited cost: hostile names all resemble one another."""
    matcher, scored, left = SequenceMatcher(b=name), [], _COMPARISON_STEPS
    for each in names:
        if max(len(name), len(each)) > _COMPARED_CHARS:
            continue
        matcher.set_seq1(each)
        if matcher.real_quick_ratio() >= _CLOSE and matcher.quick_ratio() >= _CLOSE:
            left -= len(name) * len(each)
            if left < 0:
                break
            if (ratio := matcher.ratio()) >= _CLOSE:
                scored.append((ratio, each))
    return [each for _, each in nlargest(limit, scored)]


def _snake(text: str) -> str:
    return valid_name(_NOT_NAME.sub("_", _WORD_START.sub("_", text)).strip("_").lower())


def _not_keyword(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


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


def place_of(operation: Operation) -> str:
    """Where it is called, such as `GET /mails`: unique within a document."""
    return _storable(f"{operation.method} {operation.path}")


def keys_of(operations: Sequence[Operation]) -> list[str]:
    """What identifies each one in all versions of its document: its operationId, or where it is called."""
    seen: set[str] = set()
    keys = []
    for each in operations:
        key = _storable(each.operation_id)
        key = key if key and key not in seen else place_of(each)
        seen.add(key)
        keys.append(key)
    return keys


def known_names(names: Mapping[str, str], operations: Sequence[Operation]) -> dict[str, str]:
    """The entries of `names`, by key or by place, that the operations have, by key. Each name once."""
    found: dict[str, str] = {}  # key by name
    for key, each in zip(keys_of(operations), operations, strict=True):
        if name := names.get(key) or names.get(place_of(each)):
            found.setdefault(name, key)
    return {key: name for name, key in found.items()}


def name_operations(app: App, naming: Naming, kept: Mapping[str, str]) -> list[str]:
    """A name for each operation, in order. Those with a key in `kept` keep that name.

    A readable name that several operations would have is made of method and path instead, or else of the
    operationId. Names of other protocols than OpenAPI stay.
    """
    operations = list(app.operations.values())
    names = [kept.get(key, "") for key in keys_of(operations)]
    if naming == "readable" and app.protocol == "openapi":
        _fill(names, [readable_name(each.operation_id, each.method, each.path) for each in operations])
        _fill(names, [path_name(each.method, each.path) for each in operations])
    unique = UniqueNames()
    for name in filter(None, names):
        unique.add(name)
    return [name or unique.add(each.name) for name, each in zip(names, operations, strict=True)]


def readable_names(app: App) -> dict[str, str]:
    """What operations would be called by readable names, by their names in the document; of those that differ."""
    pairs = zip(app.operations, name_operations(app, "readable", {}), strict=True)
    return {name: readable for name, readable in pairs if name != readable}


def _storable(text: str) -> str:
    """As in the document once it is stored: PostgreSQL's text lacks NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _fill(names: list[str], proposals: Iterable[str]) -> None:
    """Set the names that are missing, where a proposal is given once and is not taken."""
    proposed = list(map(valid_name, proposals))
    open_places = [place for place, name in enumerate(names) if not name]
    times = Counter(proposed[place] for place in open_places)
    taken = set(names)
    for place in open_places:
        if times[proposed[place]] == 1 and proposed[place] not in taken:
            names[place] = proposed[place]
