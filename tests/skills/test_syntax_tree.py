"""Functions too deep or too long to be analysed are no skills, and nothing more happens."""

import gc
import threading
import time
from collections.abc import Callable

import pytest

from app.agent.rollout import RolloutLimits
from app.apis.catalog import Catalog
from app.base.untrusted import compiled, is_analysable, parse, syntax_tree
from app.base.values import Stop, Use
from app.db.tables import TaskState
from app.skills.checks import validate_drafts
from app.skills.extract import extract
from tests.support.every_row import every_row
from tests.support.ledger_project import LedgerProject
from tests.support.processor_time import within
from tests.support.scripted_engine import ScriptedEngine, block
from tests.support.written_functions import offer, ran, rollout
from trainer.rewards import chain_step

_DEPTHS = (120, 990, 10_000)


def _functions(depth: int) -> str:
    levels = min(depth, 95)  # more indentation does not compile
    lines = [" " * (4 + level) + f"def f{level}():" for level in range(levels)]
    return "\n".join([*lines, " " * (4 + levels) + "pass"]).lstrip()


_BODIES: dict[str, Callable[[int], str]] = {
    "sum": lambda depth: "return " + " + ".join(["n"] * depth),
    "lists": lambda depth: "return " + "[" * depth + "]" * depth,
    "negations": lambda depth: "return " + "not " * depth + "n",
    "chained calls": lambda depth: "return n" + ".f()" * depth,
    "nested calls": lambda depth: "return " + "f(" * depth + ")" * depth,
    "lambdas": lambda depth: "return " + "lambda: " * depth + "n",
    "elif": lambda depth: "if n: return 0\n    " + "elif n == 1: return 0\n    " * depth,
    "functions": _functions,
    "long": lambda depth: "n = n + 1\n    " * depth,
}


def test_a_function_of_any_depth_is_kept_or_refused_with_a_reason() -> None:
    with every_row() as row:
        for form in _BODIES:
            for depth in _DEPTHS:
                with row(form, depth):
                    code = f"def deep(n: int) -> int:\n    {_BODIES[form](depth)}\n"
                    other = "def other() -> int:\n    return apis.ledger.list_entries()\n"
                    turns = (
                        ran(code, Use("deep", False, 1, 1)),
                        ran(other, Use("other", False, 1, 1)),
                        ran("def user() -> int:\n    return deep(1)\n", Use("user", False, 1, 1)),
                    )
                    validated = validate_drafts(rollout("go", *turns), Catalog({}))
                    assert validated.refused["other"] == ["It names APIs that do not exist: ledger.list_entries."]
                    assert validated.refused["user"]
                    assert not validated.kept
                    if depth >= 10_000 and form != "functions":
                        assert parse(code) is None


@pytest.mark.parametrize("form", _BODIES)
def test_a_deep_function_does_not_hide_the_others_of_its_turn(form: str) -> None:
    code = f"def before(): ...\ndef deep(n):\n    {_BODIES[form](400)}\ndef after(): deep(1)\n"
    names = {draft.name for draft in extract(rollout("go", ran(code)))}
    assert names in ({"before", "deep", "after"}, set())


def test_functions_that_call_each_other_in_a_long_row_are_extracted() -> None:
    code = "".join(f"def f{n}(): return f{n - 1}()\n" for n in range(1, 400))
    drafts = {draft.name: draft for draft in extract(rollout("go", ran("def f0(): return 1\n" + code)))}
    assert drafts["f399"].source.count("def ") == 400


def test_many_functions_that_share_a_long_one_take_seconds_at_most() -> None:
    long = "def long(n: int) -> int:\n" + "    n = n + 1\n" * 600 + "    return apis.a.b(n)\n"
    many = "".join(f"def f{n}(): long(1)\n" for n in range(100))
    with within():
        validated = validate_drafts(rollout("go", ran(long + many)), Catalog({}))
    assert len(validated.refused) == 32


@pytest.mark.parametrize("form", _BODIES)
def test_a_turn_too_deep_to_parse_earns_no_credit_by_name(form: str) -> None:
    skill = offer("known", "def known(): ...")
    deep = rollout("go", ran("known()"), ran(f"def deep(n):\n    {_BODIES[form](10_000)}"), offered=(skill,))
    step = chain_step(deep, 1.0, success=True, creditable=frozenset())
    assert step.called_by_name <= {skill.skill_id}


def _nested_finally(levels: int) -> str:
    blocks = (f"{' ' * level}try: f()\n{' ' * level}finally:\n" for level in range(levels))
    return "".join(blocks) + " " * levels + "f()\n"


def _exits_through_finally(exits: int, statements: int) -> str:
    return "def g(n):\n try:\n" + "  if n: return\n" * exits + " finally:\n" + "  f()\n" * statements


@pytest.mark.parametrize("code", [_nested_finally(18), _exits_through_finally(900, 900)])
def test_code_that_compiles_to_far_more_than_it_is_is_not_compiled(code: str) -> None:
    with within():
        assert compiled(code) is None


@pytest.mark.parametrize("code", [_nested_finally(4), _exits_through_finally(20, 20)])
def test_code_that_cleans_up_compiles(code: str) -> None:
    assert compiled(code) is not None


def test_an_honest_function_is_far_from_the_limits() -> None:
    tree = parse("def f(n):\n    return " + " + ".join(["n"] * 100))
    assert tree is not None
    assert is_analysable(tree)


@pytest.mark.parametrize("form", ["sum", "lists", "lambdas", "elif"])
async def test_a_task_that_writes_a_deep_function_ends_normally(form: str, project: LedgerProject) -> None:
    source = f"def deep(n):\n    {_BODIES[form](990)}\n"
    writing = block(f"apis.ledger.list_entries()\n{source}")
    engine = ScriptedEngine(project.tokenizer, writing, block("apis.supervisor.complete_task(answer=1)"))
    async with project.runner(engine, limits=RolloutLimits(turn_tokens=30_000, task_tokens=60_000)):
        row = await project.ended(await project.submit())
    assert (row.state, row.stop, row.failure) == (TaskState.DONE, Stop.COMPLETED, None)


class _Cycle:
    """Lets other threads run when it is collected, which may be in the middle of parsing."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0.0001)


@pytest.mark.slow
def test_threads_that_parse_at_the_same_time_do_not_disturb_each_other() -> None:
    code = "\n".join(f"x{number} = [{number}, {{'a': f(g(h({number})))}}]" for number in range(300))
    errors = list[BaseException]()

    def work() -> None:
        for _ in range(20):
            [_Cycle() for _ in range(20)]
            try:
                syntax_tree(code)
            except SystemError as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    before = gc.get_threshold()
    gc.set_threshold(50)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*before)
    assert errors == []
