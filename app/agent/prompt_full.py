"""The `full` prompt profile, for instruct models not trained on our format: the prompt explains it. Pure."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from app.agent.observation import cut, error_of
from app.engine.tokenizer import Message
from app.records import Offer, Task
from app.sandbox.protocol import Observation

_LIMIT = 8000
_ERROR_LIMIT = 3000

_SYSTEM = """\
You are an autonomous agent. You carry out a task for a user by writing Python that calls the user's apps.

# How you work
Each of your turns is one or two sentences of thought and exactly one fenced block of Python:
```python
print(apis.api_docs.show_app_descriptions())
```
The block runs in a Python session that keeps its state from turn to turn: variables, imports and functions stay. \
You are then shown what it printed, and the traceback if it raised. Only what you print is shown. The standard \
library is there; files, network and other packages are not: the apps are reached through `apis` alone.
A turn without a Python block ends the task. Nobody answers questions: decide yourself, and act.

# The apps
{apps}
Every operation is a function `apis.<app>.<operation>(...)` that takes keyword arguments and returns JSON as \
Python values. It raises when the app refuses, and the message says why. Never guess, look things up:
- apis.api_docs.show_app_descriptions(): the apps
- apis.api_docs.show_api_descriptions(app_name=...): the operations of one app
- apis.api_docs.show_api_doc(app_name=..., api_name=...): arguments and results of one operation
- apis.api_docs.show_signatures(app_name=...): every operation of one app, one line each
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
User: Task: Delete all my drafts about the picnic.
You: I look at what the app can do.
```python
print(apis.api_docs.show_signatures(app_name="letters"))
```
User: Output:
list_drafts(page) -> id, subject: list drafts, pages start at 1
delete_draft(id): delete one draft
You: I write a function for it, and call it.
```python
def delete_drafts_about(topic: str) -> int:
    deleted = 0
    page = 1
    while drafts := apis.letters.list_drafts(page=page):
        for draft in drafts:
            if topic in draft["subject"].lower():
                apis.letters.delete_draft(id=draft["id"])
                deleted += 1
        page += 1
    return deleted

print(delete_drafts_about("picnic"))
```
User: Output:
3
You: All three are deleted. The task asks for no answer.
```python
apis.supervisor.complete_task()
```"""


class Full(msgspec.Struct, frozen=True):
    """A system message with the rules and one demonstration, then the skills as source, and the task."""

    name: ClassVar[str] = "full"
    stop_strings: ClassVar[tuple[str, ...]] = ("\n```\n", "\n``` ", "\n```\r", " ```\n")  # four: OpenAI's limit
    """Models that were not trained on this format often go on: with the user's next message, and their own."""

    def opening(self, task: Task, offers: Sequence[Offer], apps: Mapping[str, str]) -> list[Message]:
        listed = "\n".join(f"- {name}: {description}" for name, description in apps.items()) or "(none)"
        parts = [_skill(offer) for offer in offers]
        if parts:
            parts.insert(0, "Skills that are already defined:")
        if task.conversation:
            parts.append(f"What was said before, which the task may refer to:\n{task.conversation}")
        return [
            Message("system", _SYSTEM.format(apps=listed)),
            Message("user", "\n\n".join([*parts, f"Task: {task.instruction}"])),
        ]

    def observation(self, observation: Observation) -> str:
        """The output and the traceback."""
        error = error_of(observation)
        parts = []
        if observation.stdout.strip():
            parts.append(f"Output:\n{cut(observation.stdout.rstrip(), _LIMIT)}")
        if error:
            parts.append(f"Error:\n{_end(error.rstrip(), _ERROR_LIMIT)}")
        return "\n".join(parts) or "Output: none. The code ran without an error."


def _skill(offer: Offer) -> str:
    return f"Written for the task: {offer.instruction}\n```python\n{offer.source.strip()}\n```"


def _end(text: str, limit: int) -> str:
    """The last lines: the end of a traceback matters most."""
    if len(text) <= limit:
        return text
    tail = text[-limit:]
    tail = tail[tail.find("\n") + 1 :]
    return f"[{len(text) - len(tail)} characters cut]\n{tail}"
