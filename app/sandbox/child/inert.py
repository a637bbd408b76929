"""Checks that the source of a skill does nothing until it is called. Stdlib only; runs no code of the skill."""

import ast
from collections.abc import Iterator

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def require(tree: ast.Module, name: str) -> None:
    """Raises ValueError with all objections, if there are any."""
    against = " ".join(objections(tree, name))
    if against:
        raise ValueError(against)


def objections(tree: ast.Module, name: str) -> Iterator[str]:
    """The reasons why loading the source could have an effect, or why its function `name` cannot be called."""
    for statement in tree.body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                if any(alias.name == "*" for alias in statement.names):
                    yield "It imports with a star."
            case ast.FunctionDef():
                yield from _function(statement)
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.AsyncFunctionDef():
                yield f"{statement.name} is async, and the caller cannot wait for it."
            case _:
                yield f"Line {statement.lineno} is neither an import nor a function, and runs when it is loaded."
    if any(isinstance(each, ast.FunctionDef) and each.name == name and yields(each) for each in tree.body):
        yield f"{name} is a generator, which cannot be handed to the caller: return a list."


def _function(node: ast.FunctionDef) -> Iterator[str]:
    if node.decorator_list:
        yield f"{node.name} has a decorator, which runs when it is loaded."
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None and not _constant(default):
            yield f"{node.name} has a default that is computed when it is loaded: {ast.unparse(default)[:80]}"


def _constant(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def yields(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is a generator."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, SCOPES):
            waiting += ast.iter_child_nodes(node)
    return False


def bound_names(tree: ast.Module) -> set[str]:
    """The names that the imports and functions of inert source bind."""
    names: set[str] = set()
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name):
                names.add(name)
            case ast.Import(names=imported):
                names |= {alias.asname or alias.name.partition(".")[0] for alias in imported}
            case ast.ImportFrom(names=imported):
                names |= {alias.asname or alias.name for alias in imported}
    return names
