"""Extracts the functions that the agent wrote, each with the code it needs to stand alone. Pure."""

import ast
import re
import symtable
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from app.agent.action import extract_code
from app.records import Trajectory

_WORD = re.compile(r"\w+")


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A function of one rollout that may become a skill."""

    name: str
    signature: str  # "name(who: str) -> int"
    source: str  # imports, then the functions of the session it calls, then the function itself
    summary: str  # first line of the docstring, or ""
    apis: tuple[str, ...]  # "app.operation", sorted
    instruction: str  # of the task it was written for
    slots: tuple[str, ...]  # words of the instruction that it was given as arguments
    calls: int  # in this rollout, of this definition
    returned: int  # calls that did not raise
    turn: int = 0  # that defined it
    last_turn: int = 0  # that defined a part of its source


def extract(trajectory: Trajectory) -> list[Draft]:
    """Every top-level function defined by the rollout's code; for each name the latest definition.

    Offered skills are part of the session (a function may call them), but are not drafts themselves.
    """
    session = _Session()
    for offer in trajectory.offered:
        session.read(offer.source, turn=-1)
    for number, turn in enumerate(trajectory.turns):
        code = extract_code(turn.text) if turn.outcome else None
        session.read(code or "", turn=number)
    return [_draft(name, session, trajectory) for name, turn in session.written.items() if turn >= 0]


def parse(code: str) -> ast.Module | None:
    """The syntax tree; None for code that does not compile."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the agent's code, not ours
            compile(code, "<skill>", "exec", dont_inherit=True)
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


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

    def read(self, code: str, turn: int) -> None:
        lines = re.split(r"\r\n|\r|\n", code)
        tree = parse(code)
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
                case _:
                    self._observe(statement)

    def closure(self, name: str) -> str:
        """The source that `name` needs to stand alone: imports, then functions, each after those it calls."""
        order = [self.bound[each] for each in self.needed(name)]
        imports = [source for source in order if source.startswith(("import ", "from "))]
        functions = [source for source in order if source not in imports]
        return "\n\n\n".join(["\n".join(imports), *functions] if imports else functions)

    def needed(self, name: str) -> list[str]:
        """The names that `name` needs to stand alone, each after those it needs, and `name` itself."""
        order: list[str] = []
        self._visit(name, set(), order)
        return order

    def _visit(self, name: str, seen: set[str], order: list[str]) -> None:
        seen.add(name)
        for needed in sorted(global_names(self.bound[name])):
            if needed in self.bound and needed not in seen:
                self._visit(needed, seen, order)
        order.append(name)

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
    tree = ast.parse(source)
    node = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name)
    apis, dynamic = api_references(tree)
    if dynamic:
        turns = [turn for turn in since if any(use.function == name for use in turn.uses)]
        apis += [call.api for turn in turns for call in turn.calls]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return Draft(
        name=name,
        signature=f"{name}({ast.unparse(node.args)}){returns}",
        source=source,
        summary=(ast.get_docstring(node) or "").partition("\n")[0],
        apis=tuple(sorted(set(apis))),
        instruction=trajectory.task.instruction,
        slots=_slots(trajectory.task.instruction, session.arguments[name]),
        calls=sum(use.calls for use in uses),
        returned=sum(use.returned for use in uses),
        turn=session.written[name],
        last_turn=max(session.written.get(each, 0) for each in session.needed(name)),
    )


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
