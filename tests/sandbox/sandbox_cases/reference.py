"""Runs snippets in plain CPython, each in its own fork.

Reads a JSON list of lists of sources. Prints a line per snippet: a JSON list of [stdout, last line of the error].
"""

import contextlib
import io
import json
import os
import pathlib
import sys
import traceback
from types import ModuleType, SimpleNamespace

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from mock_apis import make  # type: ignore[import-not-found]


def main() -> None:
    for turns in json.load(sys.stdin):
        pid = os.fork()
        if pid == 0:
            line = json.dumps(run(turns)) + "\n"
            os.write(1, line.encode())
            os._exit(0)
        os.waitpid(pid, 0)


def run(turns: list[str]) -> list[tuple[str, str | None]]:
    module = ModuleType("__main__")
    apis = {app: SimpleNamespace(**operations) for app, operations in make().items()}
    module.__dict__["apis"] = SimpleNamespace(**apis)
    sys.modules["__main__"] = module
    return [turn(source, module) for source in turns]


def turn(source: str, module: ModuleType) -> tuple[str, str | None]:
    raw, last = io.BytesIO(), None
    printed = io.TextIOWrapper(raw, encoding="utf-8")
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, "<turn>", "exec"), module.__dict__)
        except BaseException as error:  # noqa: BLE001 - the sandbox must raise the same
            last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1].strip()
    printed.flush()
    return raw.getvalue().decode(), last


if __name__ == "__main__":
    main()
