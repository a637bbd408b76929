"""Makes data in AppWorld's format in APPWORLD_ROOT, by its own models: three people, and what one paid the two."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from appworld.api_docs import prepare_api_docs
from appworld.apps import get_all_apps
from appworld.collections.models import ModelCollection
from appworld.common.constants import DB_VERSION
from appworld.common.path_store import path_store

_DATA = Path(path_store.data)
_NOW = datetime.fromisoformat("2023-05-18T12:00:00")
_PEOPLE = [("Ada", "Lark"), ("Ben", "Moor"), ("Cleo", "Nash")]
_PAID = {"ben": [2.5 + each for each in range(23)], "cleo": [4.0, 8.0]}
_SCENARIOS = {  # of a dataset: kinds by the names of their scenarios
    "train": {"a1b2c3d": "sum", "b2c3d4e": "gift"},
    "dev": {"c3d4e5f": "sum"},
    "test_normal": {"d4e5f6a": "gift"},
    "test_challenge": {"e5f6a7b": "sum"},
}
_TESTS = ("assert answers match.", "assert what was paid is right.", "assert nothing else has changed.")
_EVALUATION = """
import json

def evaluate(test, models, public_data, private_data, main_user, ground_truth_answer):
    with test({0!r}):
        test.answer(json.loads(models.end.supervisor.Task.first().answer), ground_truth_answer)
    with test({1!r}):
        added, updated, removed = models.changed_records("venmo.Transaction")
        test.case([each.amount for each in added], "==", private_data.amounts)
    with test({2!r}):
        test.case(models.changed_model_names(), "==", set(private_data.changed))
"""
_SOLUTION = """
def solution(apis, requester):
    accounts = {each["account_name"]: each["password"] for each in apis.supervisor.show_account_passwords()}
    email = apis.supervisor.show_profile()["email"]
    token = apis.venmo.login(username=email, password=accounts["venmo"])["access_token"]
"""
_SOLUTIONS = {
    "sum": """
    page, paid = 0, 0.0
    while found := apis.venmo.show_transactions(
        user_email="EMAIL", direction="sent", min_amount=AMOUNT, page_index=page, page_limit=20, access_token=token
    ):
        page, paid = page + 1, paid + sum(each["amount"] for each in found)
    apis.supervisor.complete_task(answer=paid)
""",
    "gift": """
    apis.venmo.create_transaction(receiver_email="EMAIL", amount=AMOUNT, access_token=token)
    apis.supervisor.complete_task()
""",
}
_INSTRUCTIONS = {
    "sum": "How many dollars have I sent to EMAIL on Venmo, in payments of at least AMOUNT dollars?",
    "gift": "Send AMOUNT dollars to EMAIL on Venmo.",
}


def _email(first_name: str) -> str:
    return f"{first_name.lower()}@example.com"


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if path.suffix in (".py", ".txt") else json.dumps(content))


def _write_databases() -> None:
    home = ":memory:base"
    models = ModelCollection.load(home, home, load_apps=get_all_apps(), create_db=True)
    for number, (first, last) in enumerate(_PEOPLE):
        person = {"first_name": first, "last_name": last, "email": _email(first)}
        models.admin.MainUser.create_save(**person, phone_number=f"555000{number}000", birthday="1990-01-02")
        models.venmo.User.create_save(**person, password=f"{first}-pays", verified=True, venmo_balance=500.0)
    users = {each.email: each.id for each in models.venmo.User.all()}
    for name, amounts in _PAID.items():
        for amount in amounts:
            payment = {"sender_id": users[_email("ada")], "receiver_id": users[_email(name)], "amount": amount}
            models.venmo.Transaction.create_save(**payment, created_at=_NOW, updated_at=_NOW)
    models.save(str(_DATA / "base_dbs"))
    models.close()


def _write_task(name: str, kind: str, friend: str, amount: float, full: bool) -> None:
    def filled(text: str) -> str:
        return text.replace("EMAIL", _email(friend)).replace("AMOUNT", str(amount))

    directory, truth = _DATA / "tasks" / name, _DATA / "tasks" / name / "ground_truth"
    home = f":memory:task_input-{name}"
    models = ModelCollection.load(home, str(_DATA / "base_dbs"))
    main_user = models.admin.MainUser.find_one(first_name="Ada").to_dict()
    supervisor = {each: main_user[each] for each in ("first_name", "last_name", "email", "phone_number")}
    person = models.supervisor.Supervisor.create_save(**supervisor, birthday="1990-01-02")
    password = {"account_name": "venmo", "password": "Ada-pays"}
    models.supervisor.AccountPassword.create_save(supervisor_id=person.id, **password)
    models.supervisor.Task.create_save(supervisor_id=person.id, instruction=filled(_INSTRUCTIONS[kind]))
    models.save(str(directory / "dbs"), format="changes")
    models.close()
    gift = kind == "gift"
    changed = ["venmo.Transaction", "venmo.User", "venmo.Notification"]
    specs = {"instruction": filled(_INSTRUCTIONS[kind]), "datetime": _NOW.isoformat(), "db_version": DB_VERSION}
    _write(directory / "specs.json", {**specs, "supervisor": supervisor})
    metadata = {"difficulty": 1, "num_apps": 1, "num_apis": 4, "num_api_calls": 4, "num_solution_code_lines": 8}
    _write(truth / "metadata.json", {**metadata, "mode": "full" if full else "minimal"})
    _write(truth / "public_data.json", {"email": _email(friend), "amount": amount})
    _write(truth / "private_data.json", {"amounts": [amount] if gift else [], "changed": changed if gift else []})
    _write(truth / "answer.json", None if gift else sum(each for each in _PAID[friend] if each >= amount))
    _write(truth / "evaluation.py", _EVALUATION.format(*_TESTS))
    labels = ("no_op_fail", "no_op_fail" if gift else "no_op_pass", "no_op_fail" if gift else "no_op_pass")
    _write(truth / "test_data.json", [{"requirement": a, "label": b} for a, b in zip(_TESTS, labels, strict=True)])
    if full:
        _write(truth / "required_apps.json", ["venmo"])
        _write(truth / "solution.py", filled(_SOLUTION + _SOLUTIONS[kind]))
        _write(truth / "compiled_solution.py", filled(_SOLUTION + _SOLUTIONS[kind]))


if __name__ == "__main__":
    for app in get_all_apps(skip_admin=True):
        documents = {each["api_name"]: {**each, "canary_string": ""} for each in prepare_api_docs(app)}
        _write(_DATA / "api_docs" / "standard" / f"{app}.json", documents)
    _write_databases()
    for dataset, scenarios in _SCENARIOS.items():
        drawn = [("ben", 3.0), ("ben", 20.0), ("cleo", 5.0)]
        names = {f"{scenario}_{number}": kind for scenario, kind in scenarios.items() for number in (1, 2, 3)}
        for name, kind in names.items():
            _write_task(name, kind, *drawn[int(name[-1]) - 1], full=not dataset.startswith("test"))
        _write(_DATA / "datasets" / f"{dataset}.txt", "\n".join(names))
