"""A host of a world without a package: a tally is to be raised to a number, and can be broken in many ways."""

import os
import subprocess
import sys
import tempfile
import time

from host import Json, RefusedCallError, serve

_NUMBER = {"type": "integer"}
_TOOLS = [
    (
        "raise_by",
        {
            "properties": {"amount": {"$ref": "#/$defs/Amount"}},
            "required": ["amount"],
            "$defs": {"Amount": _NUMBER},
        },
    ),
    ("show", {}),
    ("hang", {}),
    ("crash", {}),
    ("fail", {}),
    ("leak", {}),
    ("litter", {}),
    ("chatter", {}),
]


class Tally:
    now = "2026-05-01T12:00:00+00:00"

    def __init__(self, wanted: int) -> None:
        self._wanted, self._value = wanted, 0

    def call(self, app: str, operation: str, arguments: dict[str, Json]) -> Json:
        assert app == "tally"
        if operation == "raise_by":
            if arguments["amount"] != 1:
                raise RefusedCallError("a tally is raised by 1")
            self._value += 1
        elif operation == "hang":
            time.sleep(600)
        elif operation == "crash":
            os.write(2, b"the tally broke\n")
            os._exit(3)
        elif operation == "fail":
            raise KeyError("tally")
        elif operation == "leak":
            return subprocess.Popen(["sleep", "600"]).pid
        elif operation == "litter":
            return tempfile.mkdtemp()
        elif operation == "chatter":
            sys.stdout.write('{"result": "a line of the world, not of its host"}\n')
            sys.stdout.flush()
        return {"value": self._value, "pid": os.getpid(), "environment": sorted(os.environ)}

    def verify(self, answer: Json, completed: bool) -> dict[str, Json]:
        right = completed and self._value == self._wanted and answer == self._wanted
        return {"passed": int(right), "total": 1, "failures": [] if right else [f"it is {self._value}"]}

    def solve(self) -> Json:
        self._value = self._wanted
        return self._wanted

    def close(self) -> None:
        pass


class TallyHost:
    """As an "exam" it has no tasks to train on, and a tally may be raised once."""

    def __init__(self, kind: str = "") -> None:
        self._is_exam = kind == "exam"

    def tasks(self) -> list[dict[str, Json]]:
        return [
            {
                "id": f"{split} {family} {wanted}",
                "instruction": f"Raise the tally to {wanted}.",
                "split": split,
                "family": f"{split} {family}",
                "apps": "all",
                "changes": 1 if self._is_exam else None,
            }
            for split, families in (("train", 0 if self._is_exam else 10), ("test", 2))
            for family in range(families)
            for wanted in range(1, 5)
        ]

    def apps(self, key: str) -> list[dict[str, Json]]:
        assert key == "all"
        tools = [
            {"name": name, "description": f"To {name}.", "parameters": parameters, "safe": name == "show"}
            for name, parameters in _TOOLS
        ]
        return [{"name": "tally", "description": "One number.", "operations": tools}]

    def open(self, task: str) -> Tally:
        return Tally(int(task.rpartition(" ")[2]))


if __name__ == "__main__":
    serve(lambda: TallyHost(*sys.argv[1:]))
