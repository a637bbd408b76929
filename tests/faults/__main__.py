"""Do the tests notice faults? Plants those of faults.toml, one at a time, and runs the tests that execute them.

`python -m tests.faults record OUT [PYTEST OPTIONS]` runs the tests once, in a copy of the tree that notes which
test executes the line of each fault, also in the processes that a test starts.
`python -m tests.faults check OUT [--only IDS]` plants each fault in a copy, and runs those tests to the first that
fails, ten minutes at most, of which a test that hangs has three; then their files, for a line that runs once a
process. It writes OUT/faults.md.

The faults were drawn once, by a seed, from all that cosmic-ray 8.7 can do to code inside functions, four or five
an area, no two in one line. Where code moves or changes, its faults are brought along by hand.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import msgspec

ROOT = Path(__file__).parents[2]
_NOTES = "FAULTS_EXECUTED"  # the variable with the directory of the notes
_SECONDS = 600
_HANGS = 180  # seconds, after which a test fails: no other ends what waits for what never comes
_AT_ONCE = 2
_seen: set[tuple[int, str]] = set()


class Fault(msgspec.Struct, frozen=True):
    """One line, which occurs once in its file, and what becomes of it."""

    id: int
    area: str
    file: str
    before: str
    after: str

    def plant(self, root: Path) -> None:
        path = root / self.file
        text = path.read_text()
        lines = text.splitlines()
        lines[self.line(text) - 1] = lines[self.line(text) - 1].replace(self.before, self.after)
        path.write_text("\n".join(lines) + "\n")

    def distance(self, test: str) -> tuple[bool, bool, str]:
        """Those of its module come first, then those of its folder: they fail at once where others hang."""
        own, file = Path(self.file), Path(test.partition("::")[0])
        folder = Path("tests", *own.parent.parts[own.parts[0] == "app" :])
        return own.stem not in file.stem, file.parent != folder, test

    def line(self, text: str) -> int:
        """Counted from 1."""
        found = [number for number, line in enumerate(text.splitlines(), start=1) if line.strip() == self.before]
        if len(found) != 1:
            sys.exit(f"fault {self.id}: {self.file} has its line {len(found)} times: change faults.toml")
        return found[0]


def read_faults() -> list[Fault]:
    return msgspec.convert(
        tomllib.loads(Path(__file__).with_name("faults.toml").read_text())["fault"], list[Fault]
    )


def note(fault: int) -> None:
    """Called by the copy of the tree, where the line of a fault is about to be executed."""
    directory, test = os.environ.get(_NOTES), os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if directory and test and (fault, test) not in _seen:
        _seen.add((fault, test))
        with Path(directory, f"{os.getpid()}.notes").open("a") as out:
            out.write(f"{fault} {test}\n")


def record(out: Path, options: list[str]) -> int:
    notes = out / "notes"
    notes.mkdir(parents=True)
    copy = _copy(out / "recorded")
    by_file: dict[str, list[Fault]] = defaultdict(list)
    for fault in read_faults():
        by_file[fault.file].append(fault)
    for file, faults in by_file.items():
        text = (copy / file).read_text()
        tree = ast.parse(text)
        for fault in faults:
            _insert_note(tree, fault.line(text), fault.id)
        (copy / file).write_text(ast.unparse(ast.fix_missing_locations(tree)))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--ignore=tests/faults",
        *options,
    ]  # they read lines as written
    return subprocess.run(command, cwd=copy, env=_environment(copy) | {_NOTES: str(notes)}, check=False).returncode


def check(out: Path, only: set[int]) -> None:
    tests = executing_tests(out)
    faults = [fault for fault in read_faults() if not only or fault.id in only]
    copies = SimpleQueue[Path]()
    for number in range(_AT_ONCE):
        copies.put(_copy(out / f"planted-{number}"))

    def ended(fault: Fault) -> tuple[Fault, str]:
        copy = copies.get()
        try:
            fault.plant(copy)
            executing = sorted(tests[fault.id], key=fault.distance)
            files = list(dict.fromkeys(test.partition("::")[0] for test in executing))
            listing = out / f"{fault.id}.tests"
            return fault, _first_failure(copy, executing, listing) or _first_failure(
                copy, files, listing
            ) or "survives"
        finally:
            shutil.copyfile(ROOT / fault.file, copy / fault.file)
            copies.put(copy)

    rows = ["| fault | area | line | becomes | tests | noticed by |", "|---|---|---|---|---|---|"]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for fault, end in pool.map(ended, faults):
            row = (fault.id, fault.area, _code(fault.before), _code(fault.after), len(tests[fault.id]), end)
            rows.append("| " + " | ".join(map(str, row)) + " |")
            print(rows[-1], flush=True)
            (out / "faults.md").write_text("\n".join(rows) + "\n")


def executing_tests(out: Path) -> dict[int, list[str]]:
    tests: dict[int, set[str]] = defaultdict(set)
    for file in (out / "notes").iterdir():
        for line in file.read_text().splitlines():
            fault, _, test = line.partition(" ")
            tests[int(fault)].add(test)
    return defaultdict(list, {fault: sorted(found) for fault, found in tests.items()})


def _first_failure(copy: Path, tests: list[str], listing: Path) -> str:
    """The test that notices the fault, `time` if the tests did not end, empty if all pass."""
    if not tests:
        return ""
    listing.write_text("\n".join(tests) + "\n")
    options = ["-xq", "-m", "not slow", "-p", "no:cacheprovider", "--timeout", str(_HANGS)]
    command = [sys.executable, "-m", "pytest", *options, f"@{listing}"]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=_environment(copy),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "time"
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else f"exit {done.returncode}"


def _copy(target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    return target


def _environment(copy: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(copy)}


def _insert_note(tree: ast.Module, line: int, fault: int) -> None:
    """Before the innermost statement of that line."""
    code = (
        f"try:\n    import tests.faults.__main__ as faults\n    faults.note({fault})\nexcept Exception:\n    pass"
    )
    body, index = _innermost(tree.body, line)
    body[index:index] = ast.parse(code).body


def _innermost(body: list[ast.stmt], line: int) -> tuple[list[ast.stmt], int]:
    index, statement = next((i, s) for i, s in enumerate(body) if s.lineno <= line <= (s.end_lineno or 0))
    for field in ("body", "orelse", "finalbody"):
        inner = getattr(statement, field, None) or []
        if inner and inner[0].lineno <= line <= (inner[-1].end_lineno or 0):
            return _innermost(inner, line)
    for handler in getattr(statement, "handlers", []):
        if handler.body[0].lineno <= line <= (handler.body[-1].end_lineno or 0):
            return _innermost(handler.body, line)
    return body, index


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("what", choices=["record", "check"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="ids, with commas between")
    known, options = parser.parse_known_args()
    out = known.out.resolve()
    if known.what == "record":
        sys.exit(record(out, options))
    check(out, {int(each) for each in known.only.split(",") if each})


if __name__ == "__main__":
    main()
