"""The `full` prompt profile, for instruct models not trained on our format: the prompt explains it. Pure."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from app.agent.observation import cut, error_of
from app.apis.catalog import API_DOCS
from app.apis.listing import ListedApp
from app.base.values import Offer, Task
from app.engine.tokenizer import Message
from app.sandbox.protocol import Observation

_LIMIT = 8000
_ERROR_LIMIT = 3000
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
    look_up_chars: ClassVar[int] = _LIMIT

    def opening(self, task: Task, offers: Sequence[Offer], apps: Sequence[ListedApp]) -> list[Message]:
        parts = [f"Apps:\n{_listed(apps)}"]
        if offers:
            parts += ["Skills that are already defined:", *map(_skill, offers)]
        if task.conversation:
            parts.append(f"What was said before, which the task may refer to:\n{task.conversation}")
        return [Message("system", _SYSTEM), Message("user", "\n\n".join([*parts, f"Task: {task.instruction}"]))]

    def observation(self, observation: Observation) -> str:
        """The output and the traceback."""
        error = error_of(observation)
        parts = []
        if observation.stdout.strip():
            parts.append(f"Output:\n{cut(observation.stdout.rstrip(), _LIMIT)}")
        if error:
            parts.append(f"Error:\n{_end(error.rstrip(), _ERROR_LIMIT)}")
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
