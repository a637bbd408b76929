"""Prompt profiles: how a task and its observations are presented to a policy. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol
from uuid import UUID

import msgspec

from app.agent.prompt_brief import Brief
from app.agent.prompt_compact import Compact
from app.agent.prompt_full import Full
from app.apis.listing import ListedApp
from app.base.errors import SettingError
from app.base.values import Json, Offer, Task, hosted_id
from app.engine.tokenizer import ChatTokenizer, Message, read_card
from app.sandbox.protocol import Observation, RunStop
from app.sandbox.wire import HINT


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
