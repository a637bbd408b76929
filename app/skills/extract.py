"""Extracts the functions that the agent wrote, each with the code it needs to stand alone. Pure."""

import ast
import re
import symtable
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from app.agent.action import extract_code
from app.base.untrusted import compiled, is_analysable, parse, syntax_tree
from app.base.values import Trajectory

MAX_CHARS = 10_000  # of a draft with all that it needs, which the checks walk many times
_MAX_DRAFTS = 32  # each is compiled several times
_WORD = re.compile(r"\w+")


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A function of one rollout that may become a skill."""

    name: str
    signature: str  # "name(who: str) -> int"
    source: str  # imports, then the functions of the session it calls, then the function itself
    summary: str = ""  # first line of the docstring
    apis: tuple[str, ...]  # "app.operation", sorted
    instruction: str  # of the task it was written for
    slots: tuple[str, ...]  # words of the instruction that it was given as arguments
    calls: int  # in this rollout, of this definition
    returned: int  # calls that did not raise
    turn: int = 0  # that defined it
    last_turn: int = 0  # that defined a part of its source


def extract(trajectory: Trajectory) -> list[Draft]:
    """Every top-level function defined by the rollout's code, the last 32; for each name the latest definition.

    Offered skills are part of the session (a function may call them), but are not drafts themselves.
    """
    session = _Session()
    for offer in trajectory.offered:
        session.read(offer.source, turn=-1)
    for number, turn in enumerate(trajectory.turns):
        code = extract_code(turn.full_text) if turn.outcome else None
        session.read(code or "", turn=number)
    own = [name for name, turn in session.written.items() if turn >= 0]
    return [_draft(name, session, trajectory) for name in own[-_MAX_DRAFTS:]]


def global_names(source: str) -> set[str]:
    """The module-level names that code uses and does not define or import itself.

    >>> sorted(global_names("import json\\ndef f(n: int) -> str:\\n    return json.dumps(helper(n) + LIMIT)"))
    ['LIMIT', 'helper', 'int', 'str']
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = symtable.symtable(source, "<skill>", "exec")
    defined = {each.get_name() for each in module.get_symbols() if each.is_assigned() or each.is_imported()}
    used = {
        each.get_name()
        for table in _tables(module)
        for each in table.get_symbols()
        if each.is_global() and (each.is_referenced() or each.is_declared_global())
    }
    return used - defined


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


class _Session:
    """The top level of the session at its end, as source."""

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}  # name -> the import or function that bound it
        self.written: dict[str, int] = {}  # function -> the turn of its latest definition
        self.arguments: dict[str, list[str]] = defaultdict(list)  # function -> constants it was called with
        self._constants: dict[str, str] = {}  # top-level variables with a plain value
        self._used: dict[str, list[str]] = {}  # source -> the global names it uses

    def read(self, code: str, turn: int) -> None:
        lines = re.split(r"\r\n|\r|\n", code)
        tree = compiled(code)
        for statement in tree.body if tree else ():
            match statement:
                case ast.FunctionDef(name=name):
                    first = min([statement.lineno, *(each.lineno for each in statement.decorator_list)])
                    self._bind(name, "\n".join(lines[first - 1 : statement.end_lineno]))
                    self.written[name] = turn
                case ast.Import(names=names):
                    for each in names:
                        self._bind(each.asname or each.name.split(".")[0], ast.unparse(ast.Import([each])))
                case ast.ImportFrom(module=module, names=names, level=level):
                    for each in names:
                        self._bind(each.asname or each.name, ast.unparse(ast.ImportFrom(module, [each], level)))
                case _ if is_analysable(statement):
                    self._observe(statement)

    def closure(self, name: str) -> str:
        """The source that `name` needs to stand alone: imports, then functions, each after those it calls."""
        order = [self.bound[each] for each in self.needed(name)]
        imports = [source for source in order if source.startswith(("import ", "from "))]
        functions = [source for source in order if source not in imports]
        return "\n\n\n".join(["\n".join(imports), *functions] if imports else functions)

    def needed(self, name: str) -> list[str]:
        """The names that `name` needs to stand alone, each after those it needs, and `name` itself."""
        order, seen = [], {name}
        waiting = [(name, self._uses(name))]
        while waiting:
            user, used = waiting[-1]
            needed = next((each for each in used if each not in seen), None)
            if needed is None:
                order.append(user)
                waiting.pop()
            else:
                seen.add(needed)
                waiting.append((needed, self._uses(needed)))
        return order

    def _uses(self, name: str) -> Iterator[str]:
        """The names of the session that a function uses itself."""
        source = self.bound[name]
        if source not in self._used:
            self._used[source] = sorted(global_names(source)) if parse(source) else []
        return (each for each in self._used[source] if each in self.bound)

    def _bind(self, name: str, source: str) -> None:
        self.bound[name] = source
        self.written.pop(name, None)

    def _observe(self, statement: ast.stmt) -> None:
        """Note plain variables and the arguments of calls."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                self._constants[name] = str(value)
        for node in ast.walk(statement):
            match node:
                case ast.Call(func=ast.Name(id=name)):
                    given = [*node.args, *(keyword.value for keyword in node.keywords)]
                    self.arguments[name] += self._values(given)

    def _values(self, given: Iterable[ast.expr]) -> Iterator[str]:
        for node in (node for each in given for node in ast.walk(each)):
            match node:
                case ast.Constant(value=str() | int() | float() as value):
                    yield str(value)
                case ast.Name(id=name) if name in self._constants:
                    yield self._constants[name]


def _draft(name: str, session: _Session, trajectory: Trajectory) -> Draft:
    since = trajectory.turns[session.written[name] :]
    uses = [use for turn in since for use in turn.uses if use.function == name and not use.inherited]
    source = session.closure(name)
    tree = parse(source) if len(source) <= MAX_CHARS else None
    tree = tree or syntax_tree(f"def {name}(): ...")  # refused later: nothing can be said about it
    apis, dynamic = api_references(tree)
    if dynamic:
        turns = [turn for turn in since if any(use.function == name for use in turn.uses)]
        apis += [call.api for turn in turns for call in turn.calls]
    return Draft(
        name=name,
        signature=_signature(tree, name),
        source=source,
        summary=_summary(tree, name),
        apis=tuple(sorted(set(apis))),
        instruction=trajectory.task.instruction,
        slots=_slots(trajectory.task.instruction, session.arguments[name]),
        calls=sum(use.calls for use in uses),
        returned=sum(use.returned for use in uses),
        turn=session.written[name],
        last_turn=max(session.written.get(each, 0) for each in session.needed(name)),
    )


def draft_of(source: str, tree: ast.Module, name: str, instruction: str, slots: Iterable[str]) -> Draft:
    """The top-level function `name` of a source that no rollout wrote. `tree` is from `parse`."""
    return Draft(
        name=name,
        signature=_signature(tree, name),
        source=source,
        summary=_summary(tree, name),
        apis=tuple(sorted(set(api_references(tree)[0]))),
        instruction=instruction,
        slots=tuple(slots),
        calls=0,
        returned=0,
    )


def summary_of(source: str, name: str) -> str:
    """The first line of the docstring of a function of a skill, or ""."""
    tree = parse(source)
    return _summary(tree, name) if tree and name in functions_of(tree) else ""


def functions_of(tree: ast.Module) -> list[str]:
    """The names of the functions at the top level."""
    return [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]


def _function(tree: ast.Module, name: str) -> ast.FunctionDef:
    """The definition that holds once the source has run: the last one."""
    return next(each for each in tree.body[::-1] if isinstance(each, ast.FunctionDef) and each.name == name)


def _signature(tree: ast.Module, name: str) -> str:
    node = _function(tree, name)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{name}({ast.unparse(node.args)}){returns}"


def _summary(tree: ast.Module, name: str) -> str:
    return (ast.get_docstring(_function(tree, name)) or "").partition("\n")[0]


def api_references(tree: ast.AST) -> tuple[list[str], bool]:
    """Every literal `apis.<app>.<operation>` in the code, and whether `apis` is used in any other way."""
    found = []
    roots = 0
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="apis"), attr=app), attr=operation):
                found.append(f"{app}.{operation}")
            case ast.Name(id="apis"):
                roots += 1
    return found, roots != len(found)


def _slots(instruction: str, arguments: Iterable[str]) -> tuple[str, ...]:
    present = set(_WORD.findall(instruction.lower()))
    return tuple(sorted({word for each in arguments for word in _WORD.findall(each.lower())} & present))
