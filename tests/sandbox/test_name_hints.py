"""The error of a name that is not defined says what there is instead."""

from app.agent.prompts import PROFILES
from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Function, RunStop, SessionLimits
from tests.support.every_row import every_row

_APIS = {"mail": ["send", "list_mails"], "notes": ["send", "about"], "api_docs": ["search"]}
_SKILL = Function("archive_mails", "def archive_mails(who: str) -> int:\n    return 0\n")
_OTHER = Function("count_notes", "def count_notes() -> int:\n    return 0\n")
_GIVEN = "Hint: the functions given for this task are"
_NONE = "Hint: no function was given for this task"

_HINTS: list[tuple[str, list[Function], str]] = [
    ("mail.send()", [], ". Hint: it is apis.mail"),
    ("send(text='hello')", [], ". Hint: did you mean apis.mail.send or apis.notes.send?"),
    ("about()", [], ". Hint: did you mean apis.notes.about?"),
    ("search(query='x')", [], ". Hint: did you mean apis.api_docs.search?"),
    ("mails_list()", [], ". Hint: did you mean apis.mail.list_mails?"),
    ("def f():\n    return list_mails()\nf()", [], ". Hint: did you mean apis.mail.list_mails?"),
    ("archive_letters(who='x')", [], f". {_NONE}"),
    ("count_everything()", [_SKILL, _OTHER], f". {_GIVEN} count_notes, archive_mails"),
    ("archive_mail()", [_SKILL], ". Hint: did you mean archive_mails?"),
    ("json.loads('1')", [], ". Hint: import json"),
    ("rows = []\nprint(row)", [], ". Hint: did you mean rows?"),
    ("print(token)", [], "name 'token' is not defined"),
    ("def f():\n    x += 1\nf()", [], "local variable 'x' where it is not associated with a value"),
    ("raise NameError('mine')", [], "NameError: mine"),
]


async def _call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
    raise AssertionError(f"{api} was called: {args}, {kwargs}")


async def test_an_undefined_name_is_answered_with_what_it_could_have_been(bare_sandbox: ForkedSandbox) -> None:
    with every_row() as row:
        for code, given, hint in _HINTS:
            with row(code):
                session = await bare_sandbox.open(_APIS, _call, SessionLimits(), prelude=given)
                seen = await session.run(code)
                await session.close()
                last = (seen.error or "").splitlines()[-1]
                assert seen.stop is RunStop.ERROR
                assert last.endswith(hint)
                compact = PROFILES["compact"].observation(seen)
                assert "Hint" not in compact
                assert last.startswith(compact.splitlines()[-1])


_SIGNED_IN = "No password, key or token can be looked up: if an API needs one, it is added to every call outside"


async def test_who_looks_for_a_password_that_there_is_not_is_told_that_none_can_be_looked_up(
    bare_sandbox: ForkedSandbox,
) -> None:
    signed_in = {"supervisor": ["complete_task"], "mail": ["send", "list_mails"]}
    signing_in = {**signed_in, "letters": ["log_in", "list_letters"]}
    table = [
        (signed_in, "apis.supervisor.show_passwords()", _SIGNED_IN),
        (signed_in, "apis.supervisor.show_account_passwords()['mail']", _SIGNED_IN),
        (signed_in, "apis.mail.login(username='me')", _SIGNED_IN),
        (signed_in, "apis.mail.get_access_token()", _SIGNED_IN),
        (signed_in, "apis.supervisor.list_authors()", ": it has complete_task. "),
        (signing_in, "apis.supervisor.show_passwords()", ": it has complete_task. "),
        (signing_in, "apis.mail.log_in(password='x')", ". apis.letters has it."),
        (signing_in, "apis.letters.login(password='x')", ". Did you mean 'log_in'?"),
    ]
    with every_row() as row:
        for apis, code, said in table:
            with row(code):
                session = await bare_sandbox.open(apis, _call, SessionLimits())
                seen = await session.run(code)
                await session.close()
                last = (seen.error or "").splitlines()[-1]
                assert said in last
                assert (_SIGNED_IN in last) is (said == _SIGNED_IN)
                assert last.startswith("AttributeError: apis.")
                assert "Go on with the apps" in PROFILES["compact"].observation(seen) or said != _SIGNED_IN
