"""The expert of practice: it reads the API's document, looks at what really comes, and repairs its mistakes."""

import re
from collections.abc import Generator, Sequence
from random import Random
from typing import Any, Literal

import msgspec

from app.apis.double.model import Modelled
from app.apis.double.shapes import flat, own_name, root_of, within
from app.base.values import Offer
from trainer.lessons.experts import Program, ProgramExpert, ProgramScript, plug_in, raised, skill_of, turn_of
from trainer.practice.environments import Plan, PracticeEnvironment
from trainer.practice.forms import contrasts
from trainer.practice.programs import Shown, misnamed, mistakes, places_program, write_program
from trainer.practice.words import homes, nouns

_OTHERS = 12  # other forms that are tried for skills
_READ = re.compile(r'\["([^"]+)"\]|\.get\("([^"]+)"')
_WORD = re.compile(r"[\w-]+")

Mistake = Literal["word", "code", "thin"]


class PracticeScript(ProgramScript):
    def __init__(self, plan: Plan, index: int, offers: Sequence[Offer], **habits: Any) -> None:
        self._plan, self._instruction = plan, re.sub(r"[^\w-]", " ", plan.instruction(index))
        super().__init__(plan, index, write_program(plan.writing), offers, **habits)

    def solve(self) -> Generator[str, str, None]:
        plan, app = self._plan, self._plan.app.name
        if self._places is None:
            yield from self._open()
        mistake = self._mistake()
        if mistake == "word":
            wrong = misnamed(plan.app.operations[self._called[0]], plan.app)
            yield self.say("look", f"print(apis.api_docs.show_api_doc({app!r}, {wrong!r}))")
            yield self.say("again", f"print(apis.api_docs.show_api_doc({app!r}, {self._called[0]!r}))")
        unread = self._unread()
        answers = [self._doc(each, '["response_schemas"]["success"]') for each in unread]
        if looks := [*answers, *(self._doc(each, '["parameters"]') for each in self._untold(unread))]:
            yield self.say("look", "\n".join(looks))
        if mistake == "thin" and not raised((yield from self._attempted("try", self._promised()))):
            return
        if mistake == "code":
            wrong_program = self._rng.choice(mistakes(plan.writing, self._rng))
            if not raised((yield from self._attempted("try", wrong_program))):
                return
        if raised((yield from self._attempted("right", self._right))):
            yield turn_of(self._note(), self.code(self._right))

    def _play(self) -> Generator[str, str, None]:
        if self._places is not None:
            yield from self._open()
            if looks := self.look_ups(self._places):
                yield self.say("look", looks)
            yield turn_of(f"I look where the {self._nouns} are.", "\n".join(self._places.body))
        yield from super()._play()

    def _open(self) -> Generator[str, str, None]:
        yield from self.ask_for_apps()
        yield from self.read(f"The {self._nouns} are in apis.{self._plan.app.name}.", self._plan.app.name)

    @property
    def _nouns(self) -> str:
        return nouns(self._plan.writing.reach.collection)

    @property
    def _places(self) -> Program | None:
        """What shows where the records are, if the instruction does not say it."""
        told = set(self._instruction.split())
        unsaid = [each for each in homes(self._plan.writing.reach.collection) if each.key not in told]
        return places_program(self._plan.writing) if unsaid else None

    def _attempted(self, kind: str, program: Program) -> Generator[str, str, str]:
        """The turns that run a program, after what it calls was shown."""
        if looks := self.look_ups(program):
            yield self.say("look", looks)
        code = self.code(program)
        observation: str = yield turn_of(self._note(), code) if kind == "right" else self.say(kind, code)
        return observation

    def _note(self) -> str:
        """What is called, where the rows are, which fields are read, and what has to be known besides."""
        said = [f"I call {', '.join(self._called)}"]
        around = set[str]()
        for name, made in self._answering():
            if made.role == "list" and made.shape is not None and (made.shape.keys or made.shape.holds == "map"):
                around |= set(made.shape.keys)
                place = f" in {'.'.join(made.shape.keys)}" if made.shape.keys else ""
                rows = "a map" if made.shape.holds == "map" else "a list"
                said.append(f"rows of {name} are {rows}{place}")
        if read := [each for each in self._read_names if each not in around]:
            said.append(f"I read {', '.join(read)}")
        if self._plan.writing.is_thin:
            said.append("rows of the list lack a field, so I read each record")
        return f"{'; '.join(said)}."

    @property
    def _read_names(self) -> list[str]:
        """The names in answers that the program reads, in order."""
        return list(dict.fromkeys(name for found in _READ.findall(self._right.function) for name in found if name))

    @property
    def _called(self) -> list[str]:
        """The operations of the program, in order."""
        code, app = self._right.function, self._plan.app
        found = [
            (code.find(f"apis.{app.name}.{name}{end}"), name)
            for name in app.operations
            for end in ("(", ".pages(")
        ]
        return list(dict.fromkeys(name for at, name in sorted(found) if at >= 0))

    def _unread(self) -> list[str]:
        """The operations of whose answers the program reads what their signatures do not say: these name what is
        around records, and neither their fields nor whether they are in a list or in a map.
        """
        read, found = set(self._read_names), list[str]()
        for name, made in self._answering():
            assert made.shape is not None  # it answers with records
            own = {*made.shape.keys, *_parts(made)}
            lines = self._lines_of(name)
            if any(_described(name) in line for line in lines):
                continue
            shown = [line.partition(") -> ")[2] for line in lines]
            is_around = made.role == "list" and bool(made.shape.keys)
            if is_around or (read & own) - {word for line in shown for word in _WORD.findall(line)}:
                found.append(name)
        return found

    def _untold(self, read: Sequence[str]) -> list[str]:
        """The operations that are given objects of which neither their signatures say the fields nor the answers
        of those that are `read`.
        """
        form, app = self._plan.form, self._plan.app
        inner = {own_name(each) for each in (form.field, *form.fields) if root_of(each) != each}
        inner -= {part for name, made in self._answering() if name in read for part in _parts(made)}
        writes = [each for each in self._called if not app.operations[each].safe] if inner else []
        told = {name: " ".join(line.partition(") -> ")[0] for line in self._lines_of(name)) for name in writes}
        return [name for name in writes if inner - set(_WORD.findall(told[name]))]

    def _lines_of(self, operation: str) -> list[str]:
        """What was shown of an operation: its signature, or its whole description."""
        lines = "\n".join(self._observations).splitlines()
        return [each for each in lines if each.startswith(f"{operation}(") or _described(operation) in each]

    def _answering(self) -> list[tuple[str, Modelled]]:
        """The operations of the program that answer with records, with what they do."""
        operations, practice = self._plan.app.operations, self._plan.practice
        alone = [each for reach in practice.every.values() if reach.is_alone for each in reach.every]
        every = [*practice.model.operations.values(), *alone]
        places = {(each.operation.method, each.operation.path): each for each in every}
        made = [(name, places[operations[name].method, operations[name].path]) for name in self._called]
        return [(name, each) for name, each in made if each.role in ("list", "get") and each.shape is not None]

    def _doc(self, operation: str, part: str) -> str:
        """Code that shows a part of an operation's description."""
        return f"print(apis.api_docs.show_api_doc({self._plan.app.name!r}, {operation!r}){part})"

    def _promised(self) -> Program:
        """The program for rows that have all that the document promises of records."""
        writing = self._plan.writing
        collection = writing.reach.collection
        kinds = writing.reach.kinds
        links = (each.field for each in collection.links)
        every = frozenset([*map(root_of, kinds), *kinds, *links, collection.key])
        shown = {name: Shown(every, every) for name in writing.shown}
        return write_program(msgspec.structs.replace(writing, shown=shown))

    def _mistake(self) -> Mistake | None:
        """One that an error shows."""
        if self._plan.writing.is_thin and self._rng.random() < 0.5:
            return "thin"
        if not self._mistaken:
            return None
        possible: list[Mistake] = []
        if misnamed(self._plan.app.operations[self._called[0]], self._plan.app):
            possible += ["word"]
        if mistakes(self._plan.writing, Random(0)):
            possible += ["code", "code"]
        return self._rng.choice(possible) if possible else None


def _parts(made: Modelled) -> set[str]:
    """The names of fields in what an operation answers, and of those in objects."""
    item = {} if made.shape is None else flat(made.shape.item)
    return {part for each in within(item) for part in each.split("/")}


def _described(operation: str) -> str:
    """What the whole description of an operation has."""
    return f"'api_name': {operation!r}"


class PracticeExpert(ProgramExpert):
    scripts = PracticeScript

    def app_words(self, plan: Plan) -> str:
        return plan.app.name

    def unfitting_skills(self, plan: Plan, count: int, rng: Random) -> Sequence[Offer]:
        """Those of forms that differ in one respect first: the nearest skill is not the one."""
        found: dict[str, Offer] = {}
        practice, own = plan.practice, write_program(plan.writing).name
        near = contrasts(plan.form, practice.forms["train"])
        for _ in range(_OTHERS):
            if len(found) >= count:
                break
            form = rng.choice(near or practice.forms["train"])
            other = practice.fitted(plan.key, form)
            if other is not None and (program := write_program(other.writing)).name != own:
                found[program.name] = skill_of(other, program, rng)
        return list(found.values())


load_expert = plug_in("practice", PracticeExpert, PracticeEnvironment)
