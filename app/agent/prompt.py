"""How a task is put before the policy, and what it is shown afterwards. A model's card names its profile. Pure."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from app.agent.compact import Compact
from app.agent.full import Full
from app.engine.tokenizer import Message
from app.errors import SettingError
from app.records import Json, Offer, Task
from app.sandbox.protocol import Observation


class Profile(Protocol):
    @property
    def name(self) -> str: ...

    def opening(self, task: Task, offers: Sequence[Offer], apps: Mapping[str, str]) -> list[Message]:
        """The messages before the first turn. `apps` is the name and the description of each app."""
        ...

    def observation(self, observation: Observation) -> str:
        """The user message that follows a turn."""
        ...


PROFILES: dict[str, Profile] = {profile.name: profile for profile in (Full(), Compact())}


def choose_profile(setting: str, card: Mapping[str, Json]) -> Profile:
    """The profile that is set; without a setting, the card's `prompt_profile`; without that, `full`."""
    name = setting or str(card.get("prompt_profile", "full"))
    if name not in PROFILES:
        raise SettingError(
            f"There is no prompt profile {name!r}. Set SAGE_PROMPT_PROFILE to one of {', '.join(PROFILES)}."
        )
    return PROFILES[name]
