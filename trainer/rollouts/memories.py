"""Memories: what a task is shown, as text, of the tasks of its chain before it. Baselines of skills.

A memory is a plug-in: a function `load_memory(*, option: type = default, ...) -> Callable[[], Memory]`, registered
in the entry-point group `sage.memories` or named "module:attribute". It makes a memory for each chain: chains that
are compared share none. Its texts are written by the policy itself, or by a model behind a chat endpoint.
"""

import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol

import msgspec

from app.agent.action import extract_code
from app.agent.prompts import cut
from app.base import plugins
from app.base.errors import InvalidError
from app.base.plugins import PluginSpec, load_options
from app.base.values import Task, Trajectory
from app.engine.hosted.client import OpenAiChatModel, Remedies
from app.engine.tokenizer import Message
from app.skills.similarity import NgramIndex

GROUP: Final = "sage.memories"
_WRITTEN: Final = 1024  # tokens of a text by another model, at most
_OBSERVED: Final = 600  # characters of what a turn printed
_REMEMBERED: Final = 3  # workflows of a task
_RULES: Final = 12
_NEW: Final = 2  # what a new insight counts
_LINE: Final = re.compile(
    r"^[^\w\n]*(ADD|EDIT|REMOVE|AGREE|HELPFUL|HARMFUL)\b[ \t]*(\d*)[ \t]*[:.]?(.*)$", re.MULTILINE
)
_REMEDIES: Final = Remedies(
    key="name the variable that holds a good one with the option key_env",
    model="correct the option model or url",
    slow="take a faster one",
)

Write = Callable[[str, str], Awaitable[str]]
"""Writes a text to instructions, about some material. Raises EngineError."""
Count = Annotated[int, msgspec.Meta(ge=1, le=100)]


class Memory(Protocol):
    """Of one chain."""

    async def recall(self, task: Task) -> str:
        """What the task is shown; "" for nothing."""
        ...

    async def learn(self, trajectory: Trajectory, success: bool, write: Write) -> None:
        """Remember something of a task. `write` lets the policy write."""
        ...


NewMemory = Callable[[], Memory]


def open_memory(text: str) -> NewMemory | None:
    """What a setting names, such as "workflows?writer=rule"; None for "". Raises InvalidError."""
    if not text:
        return None
    spec = PluginSpec.parse(text)
    load = plugins.load(GROUP, spec.name)
    new: NewMemory = load(**load_options(load, spec))
    return new


def transcript(trajectory: Trajectory) -> str:
    """What was asked, written and printed."""
    parts = [f"Task: {trajectory.task.instruction}"]
    for turn in trajectory.turns:
        code = extract_code(turn.full_text) or turn.full_text
        parts.append(f"```python\n{code}\n```\nOutput:\n{cut(turn.observation, _OBSERVED)}")
    return "\n".join(parts)


def endpoint(url: str, model: str, key_env: str) -> Write | None:
    """A model behind a chat endpoint that writes instead of the policy, if there is one. Raises InvalidError."""
    if not url:
        return None
    key = os.environ.get(key_env, "") if key_env else ""
    if not model or (key_env and not key):
        raise InvalidError(f"url={url} needs the option model, and the key in the variable that key_env names")

    async def write(instructions: str, material: str) -> str:
        messages = [Message("system", instructions), Message("user", material)]
        async with OpenAiChatModel(
            url, model, key=key, timeout=120.0, patience=60.0, remedies=_REMEDIES
        ) as writer:
            answer = await writer.answer(messages, max_tokens=_WRITTEN, temperature=0.0)
        return answer.text.strip()

    return write


_WORKFLOW: Final = """\
You turn a task that was solved into a workflow for tasks of its kind. Write what it is for in one line, then its \
steps, each with the call that it makes. Put {names} for the values of this task. Write the workflow alone."""


def load_workflows(
    *, writer: str = "model", most: Count = _REMEMBERED, url: str = "", model: str = "", key_env: str = ""
) -> NewMemory:
    """The plug-in `workflows`: Agent Workflow Memory (arXiv 2409.07429), of tasks that succeeded.

    `writer=rule` keeps the code that ran as it is, as the paper's variant without a model. A task is shown the
    `most` workflows whose tasks were worded most like it.
    """
    if writer not in ("model", "rule"):
        raise InvalidError(f"writer={writer}: it is model or rule")
    other = endpoint(url, model, key_env)
    return lambda: Workflows(most, by_rule=writer == "rule", writer=other)


@dataclass
class Workflows:
    most: int
    by_rule: bool = False
    writer: Write | None = None
    _texts: dict[str, str] = field(default_factory=dict)  # by instruction
    _index: NgramIndex[str] = field(default_factory=NgramIndex)

    async def recall(self, task: Task) -> str:
        found = [self._texts[key] for key, _ in self._index.search(task.instruction, self.most)]
        return "\n".join(found)

    async def learn(self, trajectory: Trajectory, success: bool, write: Write) -> None:
        if not success:
            return
        asked = trajectory.task.instruction
        if self.by_rule:
            text = "\n".join([f"{asked}:", *_ran(trajectory)])
        else:
            text = await (self.writer or write)(_WORKFLOW, transcript(trajectory))
        if text and asked not in self._texts:
            self._index.add(asked, asked)
            self._texts[asked] = text


def _ran(trajectory: Trajectory) -> Iterator[str]:
    for turn in trajectory.turns:
        if not turn.failed and (code := extract_code(turn.full_text)):
            yield code


_INSIGHTS: Final = """\
You keep a list of rules for an agent that does tasks by writing Python. You are shown the list, and how tasks \
went. Change the list so that later tasks of this kind succeed: rules are general, and short. Reply with lines of \
these forms alone:
ADD: a new rule
EDIT 3: rule 3 in other words
AGREE 3
REMOVE 3"""


def load_insights(*, most: Count = _RULES, url: str = "", model: str = "", key_env: str = "") -> NewMemory:
    """The plug-in `insights`: ExpeL (arXiv 2308.10144). Rules from failures beside a success, and from successes.

    A rule counts 2 when it is new, one more with each edit or agreement, one less with each removal; at 0 it goes.
    """
    other = endpoint(url, model, key_env)
    return lambda: Insights(most, other)


@dataclass
class Rule:
    text: str
    count: int = _NEW
    harm: int = 0


@dataclass
class Insights:
    most: int
    writer: Write | None = None
    rules: list[Rule] = field(default_factory=list)
    _failed: str = ""  # the latest one, until a success stands beside it

    async def recall(self, task: Task) -> str:
        del task  # they are for all
        return _numbered(self.rules)

    async def learn(self, trajectory: Trajectory, success: bool, write: Write) -> None:
        went = transcript(trajectory)
        if not success:
            self._failed = went
            return
        material = f"The list:\n{_numbered(self.rules) or '(empty)'}\n\nA task that succeeded:\n{went}"
        if self._failed:
            material += f"\n\nA task that failed:\n{self._failed}"
            self._failed = ""
        self.rules = edited(self.rules, await (self.writer or write)(_INSIGHTS, material), self.most)


_PLAYBOOK: Final = """\
You curate the playbook of an agent that does tasks by writing Python: numbered lessons on strategies, calls and \
mistakes. You are shown the playbook, a task, how it went, and whether it succeeded. Find out what helped and \
what went wrong. Reply with lines of these forms alone, and repeat no lesson:
HELPFUL 3
HARMFUL 3
ADD: a lesson that is missing, in one sentence"""


def load_playbook(*, most: Count = 2 * _RULES, url: str = "", model: str = "", key_env: str = "") -> NewMemory:
    """The plug-in `playbook`: Agentic Context Engineering (arXiv 2510.04618). Lessons that each task adds to, and
    finds helpful or harmful; those that harmed more often than they helped go.
    """
    other = endpoint(url, model, key_env)
    return lambda: Playbook(most, other)


@dataclass
class Playbook:
    most: int
    writer: Write | None = None
    rules: list[Rule] = field(default_factory=list)

    async def recall(self, task: Task) -> str:
        del task  # it is for all
        return _numbered(self.rules)

    async def learn(self, trajectory: Trajectory, success: bool, write: Write) -> None:
        result = "succeeded" if success else f"failed ({trajectory.stop.value})"
        material = (
            f"The playbook:\n{_numbered(self.rules) or '(empty)'}\n\nA task that {result}:\n"
            f"{transcript(trajectory)}"
        )
        self.rules = edited(self.rules, await (self.writer or write)(_PLAYBOOK, material), self.most)


def _numbered(rules: Sequence[Rule]) -> str:
    return "\n".join(f"{number}. {each.text}" for number, each in enumerate(rules, 1))


def edited(rules: Sequence[Rule], reply: str, most: int) -> list[Rule]:
    """The list after what a writer wants, at most `most` of those that count most. Other lines are passed over.

    >>> rules = [Rule("look first"), Rule("guess", count=1)]
    >>> [each.text for each in edited(rules, "REMOVE 2\\nADD: read pages", 9)]
    ['look first', 'read pages']
    >>> edited([Rule("look first")], "EDIT 7: x\\nAGREE 1\\nHARMFUL 1\\nwell done", 9)
    [Rule(text='look first', count=3, harm=1)]
    """
    changed, added = [Rule(each.text, each.count, each.harm) for each in rules], list[Rule]()
    for word, number, text in _LINE.findall(reply):
        text = text.strip()
        if word == "ADD":
            if text and text not in {each.text for each in (*changed, *added)}:
                added.append(Rule(text))
            continue
        if not number or not 1 <= int(number) <= len(changed):
            continue
        rule = changed[int(number) - 1]
        match word:
            case "EDIT" if text:
                rule.text, rule.count = text, rule.count + 1
            case "AGREE" | "HELPFUL":
                rule.count += 1
            case "REMOVE":
                rule.count -= 1
            case "HARMFUL":
                rule.harm += 1
    kept = [each for each in (*changed, *added) if each.count > each.harm]
    best = sorted(kept, key=lambda each: each.harm - each.count)[:most]
    return [each for each in kept if each in best]
