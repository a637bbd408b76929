"""Prompt profiles: how a task and its observations are presented to a policy. Pure.

`full` explains the format to an instruct model; `compact` is for a tiny policy that was trained on it; `brief`
is `compact` after a line for each app, for a small policy that does not know the APIs by heart: what the app is
for, then its name as code writes it. Without them a policy must guess which app has the tickets, or spend a
turn on asking. Observations are cut at a line, errors are complete or nearly so.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, Protocol
from uuid import UUID

import msgspec

from app.apis.catalog import API_DOCS
from app.apis.listing import ListedApp
from app.base.errors import SettingError
from app.base.values import Json, Offer, Task, hosted_id
from app.engine.tokenizer import ChatTokenizer, Message, read_card
from app.sandbox.protocol import Observation, RunStop
from app.sandbox.wire import HINT

_STOPPED = {
    RunStop.CPU: "TimeoutError: the code computed for too long",
    RunStop.WALL: "TimeoutError: the code took too long",
    RunStop.MEMORY: "MemoryError: the code needed too much memory",
    RunStop.CALLS: "CallLimit: no API calls are left",
    RunStop.CRASH: "RuntimeError: the Python session crashed",
}
RESTARTED = "Python was restarted: what earlier turns defined is still there, what this one defined is lost."


def cut(text: str, limit: int) -> str:
    """At most about `limit` characters, in whole lines where possible, and the number of characters cut.

    >>> cut("one\\ntwo\\nthree", 8)
    'one\\ntwo\\n[5 characters cut]'
    """
    if len(text) <= limit:
        return text
    head = text[:limit]
    line_end = head.rfind("\n")
    kept = head[:line_end] if line_end > 0 else head
    gone = len(text) - len(kept) - (text[len(kept)] == "\n")
    return f"{kept}\n[{gone} characters cut]"


def error_of(observation: Observation) -> str | None:
    """The traceback, or a sentence if the run was stopped from outside. None if the code ran to its end."""
    if not observation.alive:
        return f"{_STOPPED.get(observation.stop, _STOPPED[RunStop.CRASH])}\n{RESTARTED}"
    return observation.error or _STOPPED.get(observation.stop)


def last_line(traceback: str) -> str:
    """The exception of a traceback, without its frames.

    >>> last_line('Traceback (most recent call last):\\n  File "<turn 1>", line 1\\n    f()\\nKeyError: 3')
    'KeyError: 3'
    """
    lines = traceback.rstrip().split("\n")
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    raised = frames[-1] + 1 if frames else 0
    while raised < len(lines) - 1 and lines[raised].startswith("    "):  # source and carets
        raised += 1
    return lines[raised]


_SIGNATURES = 8_000  # characters, of all apps: some 3,000 tokens
_DESCRIPTION = 300  # characters, of an app
_SHOWN = 24  # apps

_SYSTEM = """\
You are an autonomous agent. You carry out a task for a user by writing Python that calls the user's apps.

# How you work
Each of your turns is one or two sentences of thought and exactly one fenced block of Python. The block runs in a \
Python session that keeps its state from turn to turn: variables, imports and functions stay. You are then shown \
what it printed, and the traceback if it raised. Only what you print is shown. The standard library is there; \
files, network and other packages are not: the apps are reached through `apis` alone.
A turn without a Python block ends the task. Nobody answers questions: decide yourself, and act.

# The apps
Every operation is a function `apis.<app>.<operation>(...)` that takes keyword arguments and returns JSON as \
Python values. It raises when the app refuses, and the message says why. The operations are listed with the task: \
their arguments, the fields of what they return after "->", and what they do. Never guess an operation, a token \
or an id: look it up.
- apis.api_docs.show_api_doc(app_name=..., api_name=...): arguments and results of one operation
- apis.api_docs.show_signatures(app_name=...): the operations of an app that is listed without them
- apis.api_docs.search(query=...): operations that fit some words
Lists often come in pages: read on until a page is empty. Change nothing that the task does not ask for.
When the task is done, end it with apis.supervisor.complete_task(). If it asked for something, give that as the \
answer, as short as can be: apis.supervisor.complete_task(answer=42).

# Skills
A skill is a function that later tasks can use. You handle skills in four ways:
- Generate: where several calls belong together, write ONE function with typed parameters, and call it in the \
same block. What the task names goes into the parameters: never write the task's own values into the function.
- Save: a function that ran without an error is kept for later tasks of this kind. You need not do anything.
- Use: the functions shown with the task are already defined. Call one that fits instead of writing it again; \
ignore those that do not fit.
- Update: if such a function fails, write it anew under the same name and call it again. The new one replaces it.
Call an operation directly where no function is worth it, such as for the look-ups.

# An example
User: Apps:
## supervisor: your passwords and keys
apis.supervisor.show_passwords() -> letters: the password or key of each app
## letters: letters with sender, topic and page count
apis.letters.log_in(password) -> token: log in with your password
apis.letters.list_letters(token, page=1) -> letters: list letters, pages start at 1
apis.letters.archive_letter(token, id) -> changed: archive one letter
## contacts: people with name, city and phone number
apis.contacts.find_contacts(city=None) -> id, name, city, phone: list contacts

Task: Archive the letters with more than 3 pages from people in Oslo. How many are there?
You: list_letters takes a token: letters has log_in for it, and supervisor has the password. find_contacts takes \
none. I look at the data before I rely on it.
```python
password = apis.supervisor.show_passwords()["letters"]
token = apis.letters.log_in(password=password)["token"]
print(apis.letters.list_letters(token=token, page=1))
print(apis.contacts.find_contacts(city="Oslo"))
```
User: Output:
{'letters': [{'id': 71, 'sender': 'Ida Berg', 'topic': 'rent', 'page_count': 5}]}
[{'id': 9, 'name': 'Ida Berg', 'city': 'Oslo', 'phone': '5550'}]
You: The letters are under "letters", in pages; the contacts are a list. I write a function for it, and call it.
```python
def archive_long_letters(token: str, city: str, above: int) -> int:
    people = {contact["name"] for contact in apis.contacts.find_contacts(city=city)}
    archived = 0
    page = 1
    while letters := apis.letters.list_letters(token=token, page=page)["letters"]:
        for letter in letters:
            if letter["sender"] in people and letter["page_count"] > above:
                apis.letters.archive_letter(token=token, id=letter["id"])
                archived += 1
        page += 1
    return archived

print(archive_long_letters(token, city="Oslo", above=3))
```
User: Output:
2
You: Two are archived, and the task asks how many.
```python
apis.supervisor.complete_task(answer=2)
```"""


class Full(msgspec.Struct, frozen=True):
    """A system message with the rules and one demonstration, then the apps, the skills as source, and the task."""

    name: ClassVar[str] = "full"
    stop_strings: ClassVar[tuple[str, ...]] = ("\n```\n", "\n``` ", "\n```\r", " ```\n")  # four: OpenAI's limit
    """Models that were not trained on this format often go on: with the user's next message, and their own."""
    look_up_chars: ClassVar[int] = 8000
    error_chars: ClassVar[int] = 3000

    def opening(self, task: Task, offers: Sequence[Offer], apps: Sequence[ListedApp]) -> list[Message]:
        parts = [f"Apps:\n{_listed(apps)}"]
        if offers:
            parts += ["Skills that are already defined:", *map(_skill, offers)]
        if task.memory:
            parts.append(f"What earlier tasks taught:\n{task.memory}")
        if task.conversation:
            parts.append(f"What was said before, which the task may refer to:\n{task.conversation}")
        return [Message("system", _SYSTEM), Message("user", "\n\n".join([*parts, f"Task: {task.instruction}"]))]

    def observation(self, observation: Observation) -> str:
        """The output and the traceback."""
        error = error_of(observation)
        parts = []
        if observation.stdout.strip():
            parts.append(f"Output:\n{cut(observation.stdout.rstrip(), self.look_up_chars)}")
        if error:
            parts.append(f"Error:\n{_end(error.rstrip(), self.error_chars)}")
        return "\n".join(parts) or "Output: none. The code ran without an error; only what you print is shown."


def _listed(apps: Sequence[ListedApp]) -> str:
    """Each app with its operations, unless those of smaller apps leave no room for them."""
    own = [app for app in apps if app.name != API_DOCS.name and app.signatures != ()]
    shown = own[:_SHOWN]
    operations = {app.name: "\n".join(f"apis.{app.name}.{line}" for line in app.signatures or ()) for app in shown}
    left, whole = _SIGNATURES, set[str]()
    for name in sorted(filter(operations.get, operations), key=lambda name: len(operations[name])):
        left -= len(operations[name])
        if left >= 0:
            whole.add(name)
    entries = [_entry(app, operations[app.name] if app.name in whole else "") for app in shown]
    more = ["More apps: apis.api_docs.show_app_descriptions()"] if len(own) > _SHOWN else []
    return "\n".join([*entries, *more]) or "(none)"


def _entry(app: ListedApp, operations: str) -> str:
    heading = f"## {app.name}: {app.about(_DESCRIPTION)}".removesuffix(": ")
    look_up = f"Its operations: apis.api_docs.show_signatures(app_name={app.name!r})"
    return f"{heading}\n{operations or look_up}"


def _skill(offer: Offer) -> str:
    return f"Written for the task: {offer.instruction}\n```python\n{offer.source.strip()}\n```"


def _end(text: str, limit: int) -> str:
    """The last lines: the end of a traceback matters most."""
    if len(text) <= limit:
        return text
    tail = text[-limit:]
    tail = tail[tail.find("\n") + 1 :]
    return f"[{len(text) - len(tail)} characters cut]\n{tail}"


class Compact(msgspec.Struct, frozen=True):
    """One user message: the instruction verbatim, a line per offered skill, memories, and what was said before."""

    name: ClassVar[str] = "compact"
    stop_strings: ClassVar[tuple[str, ...]] = ()
    look_up_chars: ClassVar[int] = 2000
    error_chars: ClassVar[int] = 400

    def opening(self, task: Task, offers: Sequence[Offer], apps: Sequence[ListedApp]) -> list[Message]:  # noqa: ARG002
        lines = [task.instruction]
        if offers:
            lines += ["skills:", *(f"{offer.signature}: {offer.instruction}" for offer in offers)]
        if task.memory:
            lines += ["remembered:", task.memory]
        if task.conversation:
            lines += ["said before:", task.conversation]
        return [Message("user", "\n".join(lines))]

    def observation(self, observation: Observation) -> str:
        """The output, then the exception in one line; `ok` if there is neither."""
        error = error_of(observation)
        raised = cut(self.raised(error), self.error_chars) if error else ""
        printed = cut(observation.stdout.rstrip(), self.look_up_chars - len(raised))
        return "\n".join(part for part in (printed, raised) if part) or "ok"

    def raised(self, traceback: str) -> str:
        """What is shown of an exception."""
        return last_line(traceback).partition(HINT)[0]  # the tiny policy knows no hints


class Brief(Compact, frozen=True):
    """One user message: the apps, then as `compact`. The apps come first: tasks share that prefix."""

    name: ClassVar[str] = "brief"
    description_chars: ClassVar[int] = 60

    def opening(self, task: Task, offers: Sequence[Offer], apps: Sequence[ListedApp]) -> list[Message]:
        [message] = super().opening(task, offers, apps)
        return [Message("user", f"{self._listed(apps)}\n{message.content}")]

    def raised(self, traceback: str) -> str:
        return last_line(traceback)

    def _listed(self, apps: Sequence[ListedApp]) -> str:
        entries = [self._entry(each) for each in apps if each.name != API_DOCS.name]
        more = ["more apps: apis.api_docs.show_app_descriptions()"] if len(entries) > _SHOWN else []
        return "\n".join([*entries[:_SHOWN], *more]) or "no apps"

    def _entry(self, app: ListedApp) -> str:
        """The name last, so that a small policy finds it by what it is for, and after a dot: its tokens are
        code's.
        """
        about = app.about(self.description_chars)
        return f"{about}: apis.{app.name}" if about else f"apis.{app.name}"


class Profile(Protocol):
    """A model's card names the profile it was trained with."""

    @property
    def name(self) -> str: ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts that end a generation, besides the model's own stop tokens. A turn may take several generations:
        it goes on until a block of Python is closed.
        """
        ...

    @property
    def look_up_chars(self) -> int:
        """The characters that a turn is shown of what it looks up: look-ups are made to fit."""
        ...

    def opening(self, task: Task, offers: Sequence[Offer], apps: Sequence[ListedApp]) -> list[Message]:
        """The messages before the first turn."""
        ...

    def observation(self, observation: Observation) -> str:
        """The user message after a turn."""
        ...


HOSTED: Profile = Full()
"""Hosted models were trained with none: this one explains itself."""
PROFILES: dict[str, Profile] = {profile.name: profile for profile in (HOSTED, Compact(), Brief())}


def choose_profile(setting: str, card: Mapping[str, Json]) -> Profile:
    """The profile of the setting, or of the card's `prompt_profile`, or `full`. Raises SettingError."""
    name = setting or str(card.get("prompt_profile", "full"))
    if name not in PROFILES:
        raise SettingError(
            f"no prompt profile is named {name!r}: set SAGE_PROMPT_PROFILE to one of {', '.join(PROFILES)}"
        )
    return PROFILES[name]


def adapter_profile(adapter: Path) -> str:
    """The setting for the prompt that an adapter learned with, by the card beside it; empty if none names it."""
    return str(read_card(adapter).get("prompt_profile", ""))


def sample_opening(profile: Profile) -> list[Message]:
    """The first messages of a task, as a chat template has to take them."""
    return profile.opening(_TASK, [_OFFER], [_APP])


def prompt_hash(profile: Profile, tokenizer: ChatTokenizer | None) -> str:
    """Hash of what the policy reads around any task: the profile's text and the model's chat template. A hosted
    model has no template here.

    The profile is rendered for a fixed task, since its text is code. The template is hashed as source, since its
    rendering may contain the date.
    """
    openings, observations = _openings(profile), _observations(profile)
    template = (tokenizer.source, sorted(tokenizer.variables.items())) if tokenizer else ()
    content = (profile.name, openings, observations, *template)
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def prompt_of(model: str, local: str) -> str:
    """The hash of the prompt that a policy reads: `local` for what is on model servers."""
    return local if hosted_id(model) is None else hosted_prompt()


@cache
def hosted_prompt() -> str:
    """The hash of the prompt of all hosted models."""
    return prompt_hash(HOSTED, None)


def prompt_text(profile: Profile, tokenizer: ChatTokenizer | None) -> str:
    """What `prompt_hash` is of, for people, who compare it with that of another version."""
    without, with_skill = (
        "\n".join(f"{each.role}:\n{each.content}" for each in messages) for messages in _openings(profile)
    )
    parts = {
        f"Profile {profile.name}, of a task without skills": without,
        "With a skill": with_skill,
        "After a turn": "\n---\n".join(dict.fromkeys(_observations(profile))),
    }
    if tokenizer is not None:
        parts |= {
            "Chat template": tokenizer.source,
            "Variables of the template": "\n".join(
                f"{name}: {value}" for name, value in sorted(tokenizer.variables.items())
            ),
        }
    return "".join(f"# {title}\n\n{text}\n\n" for title, text in parts.items())


def _openings(profile: Profile) -> list[list[Message]]:
    return [profile.opening(_TASK, [], [_APP]), profile.opening(_TASK, [_OFFER], [_UNLISTED])]


def _observations(profile: Profile) -> list[str]:
    return [profile.observation(each) for each in _OBSERVATIONS]


_TASK = Task(UUID(int=0), "archive the mails")
_APP = ListedApp("mail", "mails", ("archive_mail(id) -> done: archive one mail",))
_UNLISTED = ListedApp("mail", "mails")  # its operations
_OFFER = Offer(
    skill_id=UUID(int=1),
    name="archive",
    version=1,
    signature="archive(who: str) -> int",
    source="def archive(who: str) -> int:\n    return 0\n",
    instruction="archive a mail",
)
_LONG = "a line\n" * 10_000
_TRACEBACK = 'Traceback (most recent call last):\n  File "<turn 1>", line 1\n    f()\nKeyError: 3\n'
_OBSERVATIONS = (  # every way in which a turn can end
    Observation(stdout=""),
    Observation(stdout=_LONG),
    Observation(stdout="3\n", error=_TRACEBACK, stop=RunStop.ERROR),
    Observation(stdout="", error=_TRACEBACK + _LONG, stop=RunStop.ERROR),
    Observation(stdout="", error=f"{_TRACEBACK.rstrip()}{HINT}the keys are 1\n", stop=RunStop.ERROR),
    *(Observation(stdout="", stop=stop, alive=alive) for stop in RunStop for alive in (True, False)),
)
