"""A scripted expert: it plays the policy's side, so that a policy can be taught by example.

Its mistakes are drawn at random and are loud: the services refuse, it reads the refusal and repairs its code.
Where a service was only busy, it calls the function again, or runs code again that is no function.
"""

import re
from collections.abc import Sequence
from random import Random
from typing import Literal

import msgspec

from app.errors import InvalidError
from app.records import Offer
from trainer.environments.office import solution
from trainer.environments.office.apps import Role
from trainer.environments.office.site import AppSite, Site, candidates
from trainer.environments.office.templates import Template, parse

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


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How likely each imperfection is. A solution has at most one mistake, and it is always repaired."""

    unprepared: float = 0.0  # forgets the preparing call, where one is needed
    page: float = 0.0  # starts at page 0 where pages start at 1
    synonym: float = 0.0  # calls an operation by a name that another site has for it
    inline: float = 0.0  # solves the task without a function
    ignore: float = 0.0  # writes afresh what an offered skill could do
    trust: float = 0.0  # completes the task in the turn that uses a skill: no fault, but how it is done varies


FLAWLESS = Faults()


class ExpertScript:
    """Plays one task. Ask for the next turn with all observations so far, until the task is completed."""

    def __init__(
        self,
        site: Site,
        instruction: str,
        offers: Sequence[Offer] = (),
        *,
        rng: Random,
        faults: Faults = FLAWLESS,
    ) -> None:
        asked = parse(instruction)
        if asked is None:
            raise InvalidError(f"the expert does not understand: {instruction[:80]}")
        self._site = site
        self._template, self._value = asked
        self._skill = None if rng.random() < faults.ignore else _fitting(offers, self._template)
        self._inline = rng.random() < faults.inline
        self._trusting = faults.trust > 0 and rng.random() < faults.trust
        self._believed = _believed(site, self._template, rng, faults)
        self._again = ""  # what to say if all was right and a service was busy
        self._solved = False  # a solution was tried, so the next one is a repair
        self._documents_seen = False
        self._stage: Literal["start", "read", "ran"] = "start"

    def next_turn(self, observations: Sequence[str]) -> str:
        """The assistant's next message: a sentence and a python block."""
        if self._stage == "start":
            return self._use_skill() if self._skill else self._read()
        if self._stage == "read":
            return self._solve()
        if not _raised(observations[-1]):
            return self._complete()
        if _BUSY.match(observations[-1].rpartition("\n")[2]):
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
        """The solution, with the mistake at the first try and without it at the next."""
        sentence = _DIRECT if self._inline else _REPAIR if self._solved or self._skill else _WRITE
        site = self._site if self._solved else self._believed
        self._stage, self._solved = "ran", True
        if self._inline:
            self._again = _message(_DIRECT, solution.inline(self._template, site, self._value))
            return self._again
        self._again = _message(_USE, solution.call(self._template, self._value))
        code = solution.function(self._template, site)
        return _message(sentence, f"{code}\n{solution.call(self._template, self._value)}")

    def _complete(self) -> str:
        return _message(_DONE, self._completion())

    def _completion(self) -> str:
        answer = "" if self._template.role else "answer=result"
        return f"apis.supervisor.complete_task({answer})"


def _message(sentence: str, code: str) -> str:
    return f"{sentence}\n```python\n{code}\n```"


def _raised(observation: str) -> bool:
    return _RAISED.match(observation.rpartition("\n")[2]) is not None


def _fitting(offers: Sequence[Offer], template: Template) -> Offer | None:
    """An offer made for the same template. Where there are two, the first: it is ranked higher."""
    for offer in offers:
        asked = parse(offer.instruction)
        if asked is not None and asked[0] == template and offer.name == template.function:
            return offer
    return None


def _believed(site: Site, template: Template, rng: Random, faults: Faults) -> Site:
    """The site as the expert takes it to be at its first try: with one thing wrong, where a mistake is drawn."""
    here = site.apps[template.app]
    wrong = here
    if rng.random() < faults.unprepared and template.role == here.guarded:
        wrong = msgspec.structs.replace(here, guarded="login")
    elif rng.random() < faults.page and here.first_page == 1:
        wrong = msgspec.structs.replace(here, first_page=0)
    elif rng.random() < faults.synonym:
        wrong = _renamed(here, template, rng)
    return msgspec.structs.replace(site, apps={**site.apps, template.app: wrong})


def _renamed(here: AppSite, template: Template, rng: Random) -> AppSite:
    """One operation under a name that it has elsewhere."""
    roles: list[Role] = ["login", "list"]
    if template.role:
        roles.append(template.role)
    role = rng.choice(roles)
    others = [name for name in candidates(here.spec)[role] if name != here.names[role]]
    return msgspec.structs.replace(here, names={**here.names, role: rng.choice(others)})
