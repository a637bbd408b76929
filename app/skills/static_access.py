"""The check that a skill names every operation it calls, and reaches `apis` in no other way. Pure.

It keeps the manifest readable from the source. It is not the boundary: the gateway enforces the manifest.
"""

import ast
import re
from collections.abc import Iterator

from app.apis.catalog import Catalog
from app.base.untrusted import syntax_tree
from app.base.values import Trajectory
from app.skills.extract import Draft

_WORD = re.compile(r"\w+")
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


_WAYS_TO_CALL = frozenset({"response", "pages"})


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
