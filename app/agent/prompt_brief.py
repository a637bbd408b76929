"""The `brief` prompt profile, for a small policy trained on APIs that it does not know by heart. Pure.

It is `compact` after a line for each app: what it is for, then its name as code writes it. Without them a policy
must guess which app has the tickets, or spend a turn on asking. Exceptions come with the sandbox's hints.
"""

from collections.abc import Sequence
from typing import ClassVar

from app.agent.observation import last_line
from app.agent.prompt_compact import Compact
from app.apis.catalog import API_DOCS
from app.apis.listing import ListedApp
from app.base.values import Offer, Task
from app.engine.tokenizer import Message

_SHOWN = 24  # apps
_DESCRIPTION = 60  # characters


class Brief(Compact, frozen=True):
    """One user message: the apps, then as `compact`. The apps come first: tasks share that prefix."""

    name: ClassVar[str] = "brief"

    def opening(self, task: Task, offers: Sequence[Offer], apps: Sequence[ListedApp]) -> list[Message]:
        [message] = super().opening(task, offers, apps)
        return [Message("user", f"{_listed(apps)}\n{message.content}")]

    def raised(self, traceback: str) -> str:
        return last_line(traceback)


def _listed(apps: Sequence[ListedApp]) -> str:
    entries = [_entry(each) for each in apps if each.name != API_DOCS.name]
    more = ["more apps: apis.api_docs.show_app_descriptions()"] if len(entries) > _SHOWN else []
    return "\n".join([*entries[:_SHOWN], *more]) or "no apps"


def _entry(app: ListedApp) -> str:
    """The name last, so that a small policy finds it by what it is for, and after a dot: its tokens are code's."""
    about = app.about(_DESCRIPTION)
    return f"{about}: apis.{app.name}" if about else f"apis.{app.name}"
