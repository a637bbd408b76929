"""The `brief` prompt profile, for a small policy trained on APIs that it does not know by heart. Pure.

It is `compact` after a line for each app: what it is for, then its name as code writes it. Without them a policy
must guess which app has the tickets, or spend a turn on asking. Exceptions come with the sandbox's hints.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from app.agent.observation import last_line
from app.agent.prompt_compact import Compact
from app.engine.tokenizer import Message
from app.records import Offer, Task

_SHOWN = 24  # apps
_DESCRIPTION = 60  # characters
_LOOK_UPS = "api_docs"  # in every project


class Brief(Compact, frozen=True):
    """One user message: the apps, then as `compact`. The apps come first: tasks share that prefix."""

    name: ClassVar[str] = "brief"

    def opening(self, task: Task, offers: Sequence[Offer], apps: Mapping[str, str]) -> list[Message]:
        [message] = super().opening(task, offers, apps)
        return [Message("user", f"{_listed(apps)}\n{message.content}")]

    def raised(self, traceback: str) -> str:
        return last_line(traceback)


def _listed(apps: Mapping[str, str]) -> str:
    entries = [_entry(name, about) for name, about in apps.items() if name != _LOOK_UPS]
    more = ["more apps: apis.api_docs.show_app_descriptions()"] if len(entries) > _SHOWN else []
    return "\n".join([*entries[:_SHOWN], *more]) or "no apps"


def _entry(name: str, description: str) -> str:
    """The name last, so that a small policy finds it by what it is for, and after a dot: its tokens are code's.

    >>> _entry("pages", "# Pages API\\n\\nKeeps what is read.\\n\\n## Log-in")  # descriptions are Markdown
    'Keeps what is read: apis.pages'
    """
    about = " ".join(_first_paragraph(description).split()).rstrip(".")
    if len(about) > _DESCRIPTION:
        about = f"{about[:_DESCRIPTION].rpartition(' ')[0]} ..."
    return f"{about}: apis.{name}" if about else f"apis.{name}"


def _first_paragraph(markdown: str) -> str:
    """Of what is no heading; the first heading if there is nothing else."""
    lines = markdown.strip().splitlines()
    text = "\n".join(line.strip() for line in lines if not line.startswith("#")).strip()
    return text.partition("\n\n")[0] or "".join(lines[:1]).lstrip("# ")
