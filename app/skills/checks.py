"""The checks that a function has to pass before it is kept as a skill, each a part of the entry-point group
`sage.skill_checks`: its length and form, its name, the operations that it names, and the details of its task
that it may not hold, beside the terms of the APIs, which it may. Pure.
"""

import ast
import builtins
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from string import ascii_letters
from weakref import WeakKeyDictionary

import msgspec

from app.apis.catalog import Catalog, Operation
from app.base import plugins
from app.base.untrusted import compiled, parse, syntax_tree
from app.base.values import Json, Trajectory
from app.sandbox.child.inert import objections
from app.skills.extract import MAX_CHARS, Draft, api_references, extract, global_names

MAX_SOURCE = 8_000  # characters: a skill is offered as a whole, and a prompt is short
_GIVEN = {"apis", "ApiError"}  # names that the sandbox has besides the builtins
_BUILT_IN = {"supervisor.complete_task"}  # like all of api_docs, in every project and in no catalog
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_WORD = re.compile(r"\w+")
_ORDINARY = frozenset(
    _WORD.findall(
        "a an all and any are as at be by do does each every for from had has have how i if in into is it its me"
        " mine more most much my no not of off on one or our out over please show than that the their them then"
        " there these they this to under up us was we what when where which who whose with you your"
    )
)

# By which code reaches more than it names: builtins, attributes and modules.
_NAMES = frozenset(
    _WORD.findall("__builtins__ __import__ breakpoint compile delattr dir eval exec globals locals setattr vars")
)
_ATTRIBUTES = frozenset(
    _WORD.findall(
        "BaseConfigurator DictConfigurator ForwardRef Formatter _channel ag_frame attrgetter builtins cr_frame"
        " dictConfig f_back f_builtins f_globals f_locals fileConfig get_field get_type_hints gi_frame importlib"
        " inspect methodcaller modules sys tb_frame"
    )
)
_MODULES = frozenset(
    _WORD.findall(
        "__main__ _ctypes _frozen_importlib _frozen_importlib_external _imp _pickle bdb builtins cProfile"
        " code codeop ctypes dis doctest gc importlib inspect marshal pdb pickle pkgutil profile pydoc"
        " rlcompleter runpy shelve sys timeit trace types unittest weakref zipimport"
    )
)
_HARMLESS = frozenset({"__name__", "__doc__", "__class__"})
_WAYS_TO_CALL = frozenset({"response", "pages"})  # an operation

_BOUNDS = frozenset(  # keywords of a schema whose value an API spells out
    _WORD.findall("default const minimum maximum exclusiveMinimum exclusiveMaximum maxItems maxLength")
)
_KEYS = {"id", "_id", "uuid", "key", "slug"}  # fields by which an answer's object is known as a record
_MAX_VALUES = 100_000  # of the answers of a rollout
_TERMS: WeakKeyDictionary[Operation, frozenset[str]] = WeakKeyDictionary()

_TOGETHER = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "BOPOMOFO": "CJK", "HANGUL": "CJK"}  # are written together
_LIKE_ASCII = frozenset(  # letters of Cyrillic and Greek, and two of Latin
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u04bb\u0501\u051b\u051d\u0475\u04cf"
    "\u03bf\u03bd\u03c1\u03b9\u03b1\u0251\u0261"
    "\u0410\u0412\u0415\u0405\u0406\u0408\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u04ae\u050c\u051a\u051c"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
)


class ValidatedDrafts(msgspec.Struct, frozen=True):
    """The drafts of one rollout: those that every check accepts, and the objections to the others."""

    kept: tuple[Draft, ...]
    refused: dict[str, list[str]]  # name -> objections


def validate_drafts(trajectory: Trajectory, catalog: Catalog) -> ValidatedDrafts:
    """Extract and check the functions that a rollout wrote."""
    reasons = {draft: refusals(draft, trajectory, catalog) for draft in extract(trajectory)}
    kept = tuple(draft for draft, against in reasons.items() if not against)
    return ValidatedDrafts(kept, {draft.name: against for draft, against in reasons.items() if against})


def refusals(
    draft: Draft, trajectory: Trajectory, catalog: Catalog, *, without: Collection[str] = ()
) -> list[str]:
    """The objections of all registered checks, in the order of their names; empty if the draft is accepted.

    `without` are the names of checks that do not apply.

    A check is a function `(Draft, Trajectory, Catalog) -> Iterable[str]` of the entry-point group
    `sage.skill_checks`. It may rely on a draft that compiles.
    """
    if len(draft.source) > MAX_CHARS:
        return ["It is too long to be analysed."]
    if compiled(draft.source) is None:
        return ["It does not compile."]
    if parse(draft.source) is None:
        return ["It is too deep to be analysed."]
    if (reason := name_objection(draft.name)) is not None:
        return [reason]
    checks = plugins.load_all("sage.skill_checks")
    used = [check for name, check in checks.items() if name not in without]
    return [reason for check in used for reason in check(draft, trajectory, catalog)]


def length(draft: Draft, _trajectory: Trajectory, _catalog: Catalog) -> Iterator[str]:
    """A skill is short enough to be offered as a whole."""
    if len(draft.source) > MAX_SOURCE:
        yield f"It is longer than {MAX_SOURCE:,} characters."


def self_contained(draft: Draft, _trajectory: Trajectory, _catalog: Catalog) -> Iterator[str]:
    """A skill defines or imports every name it uses, hides no builtin, and types its parameters."""
    if draft.name == "apis" or hasattr(builtins, draft.name):
        yield f"Its name hides the builtin {draft.name}."
    missing = global_names(draft.source) - set(dir(builtins)) - _GIVEN
    if missing:
        yield f"It uses names that it does not define or import: {', '.join(sorted(missing))}."
    body = syntax_tree(draft.source).body
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == draft.name)
    given = function.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    untyped = [each.arg for each in parameters if each and each.annotation is None]
    if untyped:
        yield f"Parameters without a type: {', '.join(untyped)}."


def inert(draft: Draft, _trajectory: Trajectory, _catalog: Catalog) -> Iterator[str]:
    """A skill does nothing until it is called: it has no decorators, and its defaults are constants."""
    yield from objections(syntax_tree(draft.source), draft.name)


def returned(draft: Draft, _trajectory: Trajectory, _catalog: Catalog) -> Iterator[str]:
    """A skill was called, and a call of it returned."""
    if not draft.calls:
        yield "It was not called."
    elif not draft.returned:
        yield "No call of it returned."


def api_calls(draft: Draft, _trajectory: Trajectory, catalog: Catalog) -> Iterator[str]:
    """A skill calls APIs of the project, and only those that exist."""
    outside = [api for api in draft.apis if not api.startswith("api_docs.") and api not in _BUILT_IN]
    if not outside:
        yield "It calls no API."
    known = {f"{app}.{operation}" for app, operations in catalog.names().items() for operation in operations}
    unknown = [api for api in outside if api not in known]
    if unknown:
        yield f"It names APIs that do not exist: {', '.join(unknown)}."


def task_details(draft: Draft, trajectory: Trajectory, catalog: Catalog) -> Iterator[str]:
    """A skill takes the details of its task as parameters instead of hard-coding them."""
    task, known = trajectory.task, api_terms(catalog)
    instruction = f"{task.instruction}\n{task.conversation}"
    words = _WORD.findall(instruction.lower())
    numbers = {float(number.replace(",", "")) for number in _NUMBER.findall(instruction)}
    details = [
        value for value in _constants(syntax_tree(draft.source)) if _is_detail(value, words, numbers, known)
    ]
    if details:  # only now: it takes long to read all answers
        fields = shown_fields(trajectory)
        details = [each for each in details if str(each).lower() not in fields]
    if details:
        shown = ", ".join(repr(value) for value in dict.fromkeys(details))
        yield f"It hard-codes details of its task that should be parameters: {shown}."


def is_wrapper(source: str) -> bool:
    """Whether a skill merely wraps one API call: a single call site, not in a loop."""
    tree = syntax_tree(source)
    loops = ast.For | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    looped = any(api_references(node)[0] for node in ast.walk(tree) if isinstance(node, loops))
    references, dynamic = api_references(tree)
    return len(references) == 1 and not dynamic and not looped


def _is_detail(value: Json, words: list[str], numbers: set[float], known: frozenset[str]) -> bool:
    if str(value).lower() in known:
        return False
    if isinstance(value, str):
        own = _WORD.findall(value.lower())
        return not set(own) <= _ORDINARY and _contains(words, own)
    return isinstance(value, int | float) and value not in (0, 1) and value in numbers  # True == 1


def _contains(words: list[str], own: list[str]) -> bool:
    return any(words[start : start + len(own)] == own for start in range(len(words) - len(own) + 1))


def _constants(node: ast.AST) -> Iterator[Json]:
    """Constants that the code computes with: no annotations, docstrings or other strings that stand alone."""
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in children if field not in ("annotation", "returns") else ():
            match child:
                case ast.Constant(value=constant):
                    yield constant
                case ast.AST() if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                    yield from _constants(child)


def static_access(draft: Draft, _trajectory: Trajectory, _catalog: Catalog) -> Iterator[str]:
    """A skill calls operations only as `apis.<app>.<operation>`."""
    tree = syntax_tree(draft.source)
    found = sorted({what for node in ast.walk(tree) for what in _dynamic(node)})
    loose = _loose_references(tree)
    if found or loose:
        shown = ", ".join([*found, *(["apis"] if loose else [])])
        yield f"It must call operations as apis.<app>.<operation>, without other access to objects: {shown}."


def _loose_references(tree: ast.AST) -> int:
    """Uses of `apis` other than `apis.<app>.<operation>`, such as passing it on, and further attributes of one."""
    roots = sum(isinstance(node, ast.Name) and node.id == "apis" for node in ast.walk(tree))
    operations = [node for node in ast.walk(tree) if _is_operation(node)]
    deeper = sum(
        isinstance(node, ast.Attribute) and _is_operation(node.value) and node.attr not in _WAYS_TO_CALL
        for node in ast.walk(tree)
    )
    return roots - len(operations) + deeper


def _is_operation(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="apis"), ctx=ast.Load()), ctx=ast.Load()):
            return True
    return False


def _dynamic(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) if name in _NAMES:
            yield name
        case ast.Name(id="getattr", ctx=ast.Load()):
            yield "getattr"
        case ast.Attribute(attr=name) if _leads_on(name):
            yield name
        case ast.MatchClass(kwd_attrs=names):
            yield from filter(_leads_on, names)
        case ast.Import(names=names):
            yield from (each.name for each in names if each.name.partition(".")[0] in _MODULES)
        case ast.ImportFrom(module=module, names=names):
            yield from {module or "."} & {*_MODULES, "."}
            yield from (each.name for each in names if each.name in {*_ATTRIBUTES, "*"})
    yield from (name for name in _bound(node) if name == "apis")


def _leads_on(name: str) -> bool:
    """Whether an attribute of this name may lead from an object to anything."""
    return name in _ATTRIBUTES or (name.startswith("__") and name not in _HARMLESS)


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that a node binds other than by assignment."""
    match node:
        case (
            ast.arg(arg=name)
            | ast.FunctionDef(name=name)
            | ast.AsyncFunctionDef(name=name)
            | ast.ClassDef(name=name)
        ):
            yield name
        case ast.alias(name=name, asname=alias):
            yield alias or name.partition(".")[0]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield from names
        case ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name):
            yield name
        case ast.MatchStar(name=str() as name) | ast.MatchMapping(rest=str() as name):
            yield name


def api_terms(catalog: Catalog) -> frozenset[str]:
    """Lower-case names of apps, operations, arguments and fields, and the values that their schemas spell out."""
    apps = catalog.apps.values()
    operations = (operation for app in apps for operation in app.operations.values())
    return frozenset(app.name.lower() for app in apps).union(*map(_of_operation, operations))


def shown_fields(trajectory: Trajectory) -> frozenset[str]:
    """Lower-case names of fields in the answers of a rollout, which a document that leaves open what records have
    does not tell: those of several different objects of one answer, or of one with a key. Names of a map, whose
    values are objects alike, are no fields, and one that is read again shows nothing new. Reads at most 100,000
    values.
    """
    shown, left = set[str](), _MAX_VALUES
    for call in (call for turn in trajectory.turns for call in turn.calls):
        counted, seen, waiting = Counter[str](), set[bytes](), [call.result]
        while waiting and left:
            left -= 1
            value = waiting.pop()
            if isinstance(value, dict):
                waiting += value.values()
                if not _is_map(value) and (content := msgspec.json.encode(value, order="sorted")) not in seen:
                    seen.add(content)
                    times = 2 if _KEYS & value.keys() else 1
                    counted.update({name.lower(): times for name in value if name.isidentifier()})
            elif isinstance(value, list):
                waiting += value
        shown.update(name for name, times in counted.items() if times > 1)
    return frozenset(shown)


def _is_map(value: Mapping[str, Json]) -> bool:
    """Whether all values are objects with the same names."""
    first, *others = (each.keys() if isinstance(each, dict) else None for each in value.values() or [None])
    return first is not None and all(each == first for each in others)


def _of_operation(operation: Operation) -> frozenset[str]:
    """Cached: all drafts of a rollout are checked against the same hundred operations."""
    words = _TERMS.get(operation)
    if words is None:
        words = _TERMS[operation] = frozenset(word.lower() for word in _words(operation))
    return words


def _words(operation: Operation) -> Iterator[str]:
    yield operation.name
    yield from _of_schema(operation.returns)
    for parameter in operation.parameters:
        yield from (parameter.name, parameter.wire_name)
        yield from _of_schema(parameter.schema)


def _of_schema(schema: Json) -> Iterator[str]:
    """Accept anything in place of a schema: documents are not ours."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            yield from _spelled_out(key, value)
            yield from _of_schema(value)
    elif isinstance(schema, list):
        for each in schema:
            yield from _of_schema(each)


def _spelled_out(key: str, value: Json) -> Iterator[str]:
    if key == "properties" and isinstance(value, Mapping):
        yield from value
    elif key == "enum" and isinstance(value, list):
        yield from (str(each) for each in value)
    elif key in _BOUNDS:
        yield str(value)


def name_objection(name: str) -> str | None:
    """Why a function of this name becomes no skill; None if it may.

    >>> name_objection("send_mail2"), name_objection("отправить_письмо"), name_objection("メール送信")
    (None, None, None)
    >>> name_objection("s\N{CYRILLIC SMALL LETTER IE}nd_mail")
    'Its name mixes the scripts CYRILLIC and LATIN.'
    >>> name_objection("\N{MATHEMATICAL BOLD SMALL S}end_mail")
    'Its name is not in the normal form NFKC.'
    """
    if unicodedata.normalize("NFKC", name) != name:
        return "Its name is not in the normal form NFKC."
    scripts = {_script(letter) for letter in name if unicodedata.category(letter)[0] == "L"}
    if len(scripts) > 1:
        return f"Its name mixes the scripts {' and '.join(sorted(scripts))}."
    letters = {letter for letter in name if letter.isalpha() and letter not in ascii_letters}
    return "Its name looks like one of other letters." if letters and letters <= _LIKE_ASCII else None


def _script(letter: str) -> str:
    """The first word of a letter's name, which is its script for all but rare ones."""
    word = unicodedata.name(letter, "unknown").split()[0].split("-")[0]
    return _TOGETHER.get(word, word)
