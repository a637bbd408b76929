"""Where a run of the tests spends its time: `python -m pytest -p tests.support.costs --costs=DIR` writes
DIR/costs.md.

By file, by fixture, and by command of the processes that tests start. CPU seconds of processes are read from
`/proc` four times a second, so that killed ones count, too; the last quarter of a second of each is missed.
"""

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")
_INTERVAL_S = 0.25


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="DIR", help="write a table of where the time goes into DIR/costs.md")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--costs")
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    config.pluginmanager.register(_Recorder(Path(folder) / f"{os.getpid()}.jsonl"))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Controller(Path(folder)))


class _Recorder:
    """Writes what this process sees: phases of tests and fixtures that were set up."""

    def __init__(self, path: Path) -> None:
        self._out = path.open("w", buffering=1)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        with_cpu = _Clock()
        try:
            return (yield)
        finally:
            self._write("fixture", f"{fixturedef.baseid.split('/')[-1]}: {fixturedef.argname}", with_cpu)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with_cpu = _Clock()
        try:
            return (yield)
        finally:
            self._write("test", item.nodeid, with_cpu)

    def _write(self, kind: str, name: str, clock: "_Clock") -> None:
        wall, cpu = clock.passed()
        self._out.write(json.dumps({"kind": kind, "name": name, "wall": wall, "cpu": cpu}) + "\n")


class _Clock:
    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def passed(self) -> tuple[float, float]:
        """Seconds of wall and of this process's CPU."""
        return time.monotonic() - self._wall, time.process_time() - self._cpu


class _Controller:
    """Watches all descendants of this process, and writes the tables at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cpu: dict[tuple[int, int], float] = {}  # pid and start: seconds
        self._named: dict[tuple[int, int], tuple[str, str]] = {}  # command, and the test that started it
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def pytest_unconfigure(self) -> None:
        self._ended.set()
        self._thread.join()
        records = [
            json.loads(line) for file in self._folder.glob("*.jsonl") for line in file.read_text().splitlines()
        ]
        with (self._folder / "processes.jsonl").open("w") as out:
            for key, seconds in self._cpu.items():
                command, test = self._named[key]
                out.write(json.dumps({"kind": "process", "name": command, "test": test, "cpu": seconds}) + "\n")
        (self._folder / "costs.md").write_text("\n".join(self._tables(records)) + "\n")

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            parents = {}
            stats = {}
            for entry in os.scandir("/proc"):
                if entry.name.isdigit():
                    try:
                        fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                    except OSError:
                        continue
                    pid = int(entry.name)
                    parents[pid] = int(fields[1])
                    stats[pid] = (int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS)
            for pid, (start, seconds) in stats.items():
                if (pid, start) in self._cpu or _descends(pid, os.getpid(), parents):
                    self._cpu[pid, start] = seconds
                    self._name(pid, start)

    def _name(self, pid: int, start: int) -> None:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            environ = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            self._named.setdefault((pid, start), ("?", ""))
            return
        test = next((each.partition("=")[2] for each in environ if each.startswith("PYTEST_CURRENT_TEST=")), "")
        self._named[pid, start] = (_short(command), test)

    def _tables(self, records: list[dict[str, object]]) -> Iterator[str]:
        started = [(self._named[key], seconds) for key, seconds in self._cpu.items()]
        by_file = _sums((str(each["name"]).split("::")[0], each) for each in records if each["kind"] == "test")
        children: dict[str, float] = defaultdict(float)
        for (_, test), seconds in started:
            children[test.split("::")[0]] += seconds
        yield "| file | tests | seconds | own CPU | CPU of processes |\n|---|---|---|---|---|"
        for name, (count, wall, cpu) in by_file:
            yield f"| {name} | {count} | {wall:.1f} | {cpu:.1f} | {children[name]:.1f} |"
        yield "\n| fixture | times | seconds | own CPU |\n|---|---|---|---|"
        for name, (count, wall, cpu) in _sums(
            (str(each["name"]), each) for each in records if each["kind"] == "fixture"
        ):
            yield f"| {name} | {count} | {wall:.1f} | {cpu:.1f} |"
        yield "\n| process | started | CPU seconds |\n|---|---|---|"
        sums = _sums((command, {"wall": seconds, "cpu": seconds}) for (command, _), seconds in started)
        for name, (count, _, cpu) in sums:
            yield f"| `{name}` | {count} | {cpu:.1f} |"


def _sums(records: Iterable[tuple[str, dict[str, object]]]) -> list[tuple[str, tuple[int, float, float]]]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for name, each in records:
        sums[name][0] += 1
        sums[name][1] += float(str(each["wall"]))
        sums[name][2] += float(str(each["cpu"]))
    most: Callable[[tuple[str, list[float]]], float] = lambda each: -each[1][1]  # noqa: E731
    return [(name, (int(n), wall, cpu)) for name, (n, wall, cpu) in sorted(sums.items(), key=most)]


def _short(command: list[str]) -> str:
    words = [Path(word).name if word.startswith("/") else word for word in command if word][:6]
    return " ".join(words)[:90].replace("|", "/").replace("\n", " ")


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor
