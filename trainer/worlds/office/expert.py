"""The turns of the scripted expert, which demonstrates tasks for a policy to imitate, and the words of all turns.

Its mistakes are random and always noticed: the service refuses the call, and the expert repairs its code. If a
service was only busy, it calls the function again, or repeats inline code.
"""

import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Literal, get_args

import msgspec

from app.base.values import Offer
from trainer.worlds.office import apps, solution
from trainer.worlds.office.apps import APP_NAMES, APPS, AppSite, Field, Role, Site, candidates, document
from trainer.worlds.office.scenarios import TEMPLATES, Template

SENTENCES = (
    "Read the documents.",
    "Write a skill.",
    "Use the skill.",
    "Repair the skill.",
    "Solve it directly.",
    "Done.",
)
_READ, _WRITE, _USE, _REPAIR, _DIRECT, _DONE = SENTENCES
_RAISED = re.compile(r"[A-Z]\w*(: |$)")  # the last line of a traceback
_BUSY = re.compile(r"ApiError: .*\b503\b")
_WORD = re.compile(r"\w+")

ERRORS = (
    "ApiError: Response status code is 401 404 409 422",
    "message wrong password access_token no call first pages start at id page is not a number group",
    "AttributeError TypeError NameError KeyError ValueError ValidationError SyntaxError IndentationError",
    "apis.mail has no operation app API Did you mean or did there is",
    "apis.api_docs.show_api_descriptions app_name lists them",
    "name is not defined missing argument unexpected needs a string an integer signature object",
    "TimeoutError CallLimit ok None error line invalid syntax",
)


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of each imperfection. A solution has at most one mistake, and it is always repaired."""

    unprepared: float = 0.0  # forgets the preparing call, where one is needed
    page: float = 0.0  # starts at page 0 although pages start at 1
    synonym: float = 0.0  # calls an operation by its name at another site
    glance: float = 0.0  # takes a list to have what only the look-up of one item has, where that is needed
    inline: float = 0.0  # solves the task without a function
    ignore: float = 0.0  # writes new code although an offered skill fits
    notes: float = 0.0  # says before the code which fields and operations are meant: no fault, a variation
    trust: float = 0.0  # completes the task in the turn that uses a skill: no fault, a variation


FLAWLESS = Faults()


class ExpertScript:
    """Works on one task. Call `next_turn` with all observations so far, until the task is completed."""

    def __init__(
        self,
        site: Site,
        template: Template,
        value: str,
        offers: Sequence[Offer] = (),
        *,
        rng: Random,
        faults: Faults = FLAWLESS,
    ) -> None:
        self._site, self._template, self._value = site, template, value
        ignoring = rng.random() < faults.ignore
        self._fits = not ignoring and any(offer.name == template.function for offer in offers)
        self._inline = rng.random() < faults.inline
        self._trusting = faults.trust > 0 and rng.random() < faults.trust
        self._notes = faults.notes > 0 and rng.random() < faults.notes
        self._assumed_site = _assumed_site(site, self._template, rng, faults)
        self._again = ""  # the turn to repeat if a service was busy
        self._solved = False  # a solution was tried, so the next one is a repair
        self._documents_seen = False
        self._stage: Literal["start", "read", "ran"] = "start"

    def next_turn(self, observations: Sequence[str]) -> str:
        """The next message: a sentence and a python block."""
        if self._stage == "start":
            return self._use_skill() if self._fits else self._read()
        if self._stage == "read":
            return self._solve()
        last = observations[-1].rpartition("\n")[2]
        if not _RAISED.match(last):
            return _message(_DONE, self._completion())
        if _BUSY.match(last):
            return self._again
        return self._solve() if self._documents_seen else self._read()

    def _read(self) -> str:
        self._stage, self._documents_seen = "read", True
        apps = [self._template.app] + ["contacts"] * (self._template.selector == "group")
        return _message(_READ, "\n".join(f'print(apis.api_docs.show_signatures("{app}"))' for app in apps))

    def _use_skill(self) -> str:
        self._stage = "ran"
        code = solution.call(self._template, self._value)
        if self._trusting:
            code = f"{code.partition(chr(10))[0]}\n{self._completion()}"
        self._again = _message(_USE, code)
        return self._again

    def _solve(self) -> str:
        """The solution, with the mistake in the first attempt and without it afterwards."""
        sentence = _DIRECT if self._inline else _REPAIR if self._solved or self._fits else _WRITE
        site = self._site if self._solved else self._assumed_site
        self._stage, self._solved = "ran", True
        if self._notes and site == self._site:
            sentence = solution.note(self._template, site, self._value)
        if self._inline:
            code = solution.inline(self._template, site, self._value)
            self._again = _message(_DIRECT, code)
            return _message(sentence, code)
        self._again = _message(_USE, solution.call(self._template, self._value))
        code = solution.function(self._template, site)
        return _message(sentence, f"{code}\n{solution.call(self._template, self._value)}")

    def _completion(self) -> str:
        answer = "" if self._template.role else "answer=result"
        return f"apis.supervisor.complete_task({answer})"


def _message(sentence: str, code: str) -> str:
    return f"{sentence}\n```python\n{code}\n```"


def _assumed_site(site: Site, template: Template, rng: Random, faults: Faults) -> Site:
    """The site as the expert assumes it in its first attempt: with one error, if a mistake is drawn."""
    here = site.apps[template.app]
    wrong = here
    if rng.random() < faults.unprepared and template.role == here.guarded:
        wrong = msgspec.structs.replace(here, guarded="login")
    elif rng.random() < faults.page and here.first_page == 1:
        wrong = msgspec.structs.replace(here, first_page=0)
    elif rng.random() < faults.synonym:
        wrong = _renamed(here, template, rng)
    elif faults.glance > 0 and rng.random() < faults.glance:
        unneeded = {*get_args(Field)} - solution.needed_fields(template)
        wrong = msgspec.structs.replace(here, hidden=min(unneeded))
    return msgspec.structs.replace(site, apps={**site.apps, template.app: wrong})


def _renamed(here: AppSite, template: Template, rng: Random) -> AppSite:
    """The app with one operation under a name from another site."""
    roles: list[Role] = ["login", "list"]
    if template.role:
        roles.append(template.role)
    role = rng.choice(roles)
    others = [name for name in candidates(here.spec)[role] if name != here.names[role]]
    return msgspec.structs.replace(here, names={**here.names, role: rng.choice(others)})


def vocabulary() -> list[str]:
    """Words in a fixed order, each once. API identifiers are whole words; function names are split into parts."""
    return list(dict.fromkeys(_words()))


def _words() -> Iterator[str]:
    yield from (*APP_NAMES, *apps.PEOPLE, *apps.GROUPS, *apps.THRESHOLDS)
    yield from (*apps.MEMBER_NAMES, *apps.MEMBER_FIELDS)
    for spec in APPS.values():
        yield from (*spec.persons, *spec.labels, *spec.numbers, *spec.values)
        for names in candidates(spec).values():
            yield from names
    for template in TEMPLATES:
        yield from template.function.split("_")
        for phrasing in template.phrasings:
            yield from _WORD.findall(phrasing.replace("{value}", ""))
    yield from _site_words(Site.of(0))
    for text in (*SENTENCES, *ERRORS):
        yield from _WORD.findall(text)


def _site_words(site: Site) -> Iterator[str]:
    """The words of summaries and code: apart from names they are the same at every site."""
    for app in APP_NAMES:
        for methods in document(site, app, "")["paths"].values():
            for operation in methods.values():
                yield from (operation["operationId"], *_WORD.findall(operation["summary"]))
                yield from (parameter["name"] for parameter in operation["parameters"])
    functions = {template.function for template in TEMPLATES}
    for template in TEMPLATES:
        code = "\n".join([solution.function(template, site), solution.call(template, template.values[0])])
        yield from (word for word in _WORD.findall(code) if word not in functions)
    yield from ("0", "1", "print", "apis", "api_docs", "show_signatures", "complete_task", "answer", "python")
