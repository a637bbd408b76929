"""A skill reaches APIs only by their names: every dynamic way is refused."""

import pytest

from app.base.values import Use
from app.skills.checks import refusals, static_access
from app.skills.extract import extract
from tests.support.every_row import every_row
from tests.support.written_functions import ARCHIVE, CATALOG, archived, ran, rollout

HONEST = "apis.mail.fetch_mails(who)"


def objections(body: str, before: str = "", head: str = "def f(who: str) -> int:") -> list[str]:
    code = f"{before}{head}\n    {HONEST}\n    {body}\n"
    trajectory = rollout("go", ran(code, Use("f", False, 1, 1)))
    drafts = {draft.name: draft for draft in extract(trajectory)}
    return list(static_access(drafts["f"], trajectory, CATALOG))


DYNAMIC_ACCESS: list[str] = [
    'getattr(apis, "super" + "visor").show_passwords()',
    'getattr(apis.supervisor, "show_" + "passwords")()',
    "x = apis; x.supervisor.show_passwords()",
    "m = apis.supervisor; m.show_passwords()",
    "print(apis)",
    "[a.supervisor.show_passwords() for a in [apis]]",
    "(lambda a: a.supervisor.show_passwords())(apis)",
    'apis.__getattribute__("supervisor").show_passwords()',
    'apis.mail.__getattribute__("fetch_mails")()',
    'apis.mail.fetch_mails.__class__("supervisor.show_passwords")()',
    "apis.mail.fetch_mails.__call__.__globals__",
    'apis["supervisor"]',
    'vars()["apis"].supervisor.show_passwords()',
    'globals()["ap" + "is"].supervisor.show_passwords()',
    'locals()["apis"]',
    'f.__globals__["ap" + "is"]',
    "dir(f)",
    'eval("ap" + "is.supervisor.show_passwords()")',
    'exec("ap" + "is.supervisor.show_passwords()")',
    'g = getattr; g(f, "__glob" + "als__")',
    'setattr(apis.mail, "fetch_mails", print)',
    "match apis:\n        case object(supervisor=s):\n            s.show_passwords()",
    "(a := apis).supervisor.show_passwords()",
    "for a in (apis,):\n        a.supervisor.show_passwords()",
    "from __main__ import apis as a",
    "import sys; sys.modules",
    "import re; re.enum.sys.modules['__main__']",
    "import operator; operator.attrgetter('supervisor.show_passwords')",
    "from operator import attrgetter",
    "import string; string.Formatter().get_field('0.supervisor', (who,), {})",
    "import gc; gc.get_objects()",
    "import inspect",
    "import importlib.util",
    "__import__('__main__')",
    "__builtins__",
    "(_ for _ in ()).gi_frame.f_globals",
    "def inner(apis: int) -> None: apis.mail.fetch_mails()",
    "import json as apis",
    "def inner() -> None:\n        global apis\n        apis = 1",
    "apis = who",
    "del apis.mail.fetch_mails",
]


def test_dynamic_access_is_refused() -> None:
    with every_row() as row:
        for body in DYNAMIC_ACCESS:
            with row(body):
                assert objections(body)


def test_a_default_argument_that_holds_the_apis_is_refused() -> None:
    assert objections("pass", head="def f(who: str, a: object = apis) -> int:")


def test_a_helper_with_dynamic_access_gets_its_caller_refused() -> None:
    helper = 'def g() -> object:\n    return getattr(apis, "super" + "visor")\n'
    assert objections("g().show_passwords()", before=helper)


@pytest.mark.parametrize(
    "body",
    [
        "return sum(row['id'] for row in apis.mail.fetch_mails(who))",
        "send = apis.mail.file_mail; send(id=1)",
        "return len(list(map(apis.mail.file_mail, [1])))",
        "import datetime, json, re; return json.dumps(str(datetime.date.today()))",
        "from operator import itemgetter; sorted([], key=itemgetter('id'))",
        "print(type(who).__name__)",
    ],
)
def test_plain_code_is_kept(body: str) -> None:
    assert objections(body) == []


def test_the_check_is_one_of_those_that_decide() -> None:
    code = f'def f(who: str) -> None:\n    {HONEST}\n    getattr(apis, "super" + "visor").show_passwords()\n'
    trajectory = rollout("go", ran(code, Use("f", False, 1, 1), calls=("mail.fetch_mails",)))
    [draft] = extract(trajectory)
    [reason] = refusals(draft, trajectory, CATALOG)
    assert reason.endswith("without other access to objects: getattr, apis.")
    trajectory = archived("iris", ARCHIVE)
    [draft] = extract(trajectory)
    assert refusals(draft, trajectory, CATALOG) == []
