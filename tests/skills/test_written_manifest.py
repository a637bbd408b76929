"""Manifests of functions, derived from the calls that the host recorded while they ran."""

import msgspec

from app.apis.calls.skill_guard import SkillManifest
from app.apis.catalog import App, Catalog, Operation
from app.base.values import Call, Json, Trajectory, Turn, Use
from app.skills.extract import extract
from app.skills.provenance import manifest_of
from tests.support.written_functions import ran, rollout

CODE = """
def forward(who: str, limit: int) -> int:
    token = apis.auth.sign_in(user="me")["token"]
    for mail in apis.mail.list(token=token, sender=who, limit=limit, folder="inbox"):
        apis.mail.send(token=token, to=who.upper(), text=f"Fwd: {mail['text']}", key=str(hash(mail["id"])))
        if mail["id"] == 77:
            apis.mail.purge(token=token)
    apis.supervisor.complete_task()
    return 1
"""
METHODS = {
    "auth.sign_in": "POST",
    "mail.list": "GET",
    "mail.send": "POST",
    "mail.purge": "DELETE",
    "notes.add": "POST",
}


def catalog() -> Catalog:
    apps: dict[str, dict[str, Operation]] = {}
    for api, method in METHODS.items():
        app, _, name = api.partition(".")
        apps.setdefault(app, {})[name] = Operation(app=app, name=name, method=method, path="/", summary="")
    return Catalog(
        {
            name: App(name=name, description="", server="", variables={}, operations=operations, digest="")
            for name, operations in apps.items()
        }
    )


def made(*calls: tuple[str, dict[str, Json], Json], turn: int = 0, first: int = 0) -> tuple[Call, ...]:
    return tuple(
        Call(seq=first + index, turn=turn, api=api, arguments=arguments, result=result)
        for index, (api, arguments, result) in enumerate(calls)
    )


def turn(code: str, use: Use | None, calls: tuple[Call, ...]) -> Turn:
    return msgspec.structs.replace(ran(code, *([use] if use else [])), calls=calls)


def derived(trajectory: Trajectory) -> SkillManifest:
    return manifest_of({each.name: each for each in extract(trajectory)}["forward"], trajectory, catalog())


TOKEN = "tok-4711-abc"
CALLS = (
    ("auth.sign_in", {"user": "me"}, {"token": TOKEN}),
    (
        "mail.list",
        {"token": TOKEN, "sender": "Iris Park", "limit": 30, "folder": "inbox"},
        [{"id": 5, "text": "lunch?"}],
    ),
    ("mail.send", {"token": TOKEN, "to": "IRIS PARK", "text": "Fwd: lunch?", "key": "928374650"}, {"id": 9}),
    ("notes.add", {"text": "done"}, {"id": 1}),
)
USED = Use("forward", False, 1, 1)


def test_a_manifest_has_the_operations_that_were_called_and_the_origins_of_their_arguments() -> None:
    code = f'{CODE}print(forward("Iris Park", 30))\napis.notes.add(text="done")\n'
    found = derived(rollout("forward mails from Iris Park", turn(code, USED, made(*CALLS))))
    assert msgspec.to_builtins(found)["operations"] == {
        "auth.sign_in": {"method": "POST", "safe": False, "arguments": {"user": ["constant"]}},
        "mail.list": {
            "method": "GET",
            "safe": True,
            "arguments": {
                "token": ["result:auth.sign_in"],
                "sender": ["parameter"],
                "limit": ["parameter"],
                "folder": ["constant"],
            },
        },
        "mail.send": {
            "method": "POST",
            "safe": False,
            "arguments": {
                "token": ["result:auth.sign_in"],
                "to": ["parameter"],
                "text": ["constant", "result:mail.list"],
                "key": ["computed"],
            },
        },
        "supervisor.complete_task": {"method": "", "safe": False, "arguments": None},
    }, "notes.add is not of the function, and mail.purge was never called"


def test_calls_of_turns_in_which_the_function_did_not_run_do_not_count() -> None:
    calls = made(*CALLS)
    purged = made(("mail.purge", {"token": TOKEN}, None), turn=1, first=4)
    found = derived(
        rollout(
            "go",
            turn(f'{CODE}forward("Iris Park", 30)\n', USED, calls),
            turn("apis.mail.purge(token=1)\n", None, purged),
        )
    )
    assert "mail.purge" not in found.operations


def test_a_value_that_the_code_read_before_and_passed_on_is_a_parameter() -> None:
    code = "def forward(token: str) -> object:\n    return apis.mail.list(token=token)\n"
    first = made(("auth.sign_in", {"user": "me"}, {"token": TOKEN}))
    second = made(("mail.list", {"token": TOKEN}, []), turn=1, first=1)
    found = derived(
        rollout(
            "go",
            turn('t = apis.auth.sign_in(user="me")["token"]\n', None, first),
            turn(f"{code}forward(t)\n", USED, second),
        )
    )
    assert found.operations["mail.list"].arguments == {"token": ["parameter"]}


def test_a_function_that_never_ran_may_do_nothing() -> None:
    assert derived(rollout("go", turn(CODE, None, made(*CALLS)))).operations.keys() == {"supervisor.complete_task"}
