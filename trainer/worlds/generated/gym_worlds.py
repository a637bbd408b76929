"""The live worlds of the gym: created from their ids, isolated, and discarded after use."""

from hashlib import blake2b

from trainer.worlds.generated.gym_items import GymItem, initial_items
from trainer.worlds.generated.gym_plans import place_in, plan_of


class GymState:
    """The mutable state of one world."""

    def __init__(self, name: str) -> None:
        key, self.index = place_in(name)
        self.plan = plan_of(key)
        self.items: dict[str, list[GymItem]] = initial_items(self.plan, self.index)
        self._secret = (
            f"{self.plan.key.text}-{self.index}"  # without the nonce: the same in all rollouts of a task
        )
        self._reads: dict[str, int] = {}
        self._writes: dict[str, int] = {}

    def password(self, app: str) -> str:
        return blake2b(f"{self._secret} {app} password".encode(), digest_size=5).hexdigest()

    def token(self, app: str) -> str:
        return blake2b(f"{self._secret} {app} token".encode(), digest_size=5).hexdigest()

    def is_too_fast(self, app: str) -> bool:
        """Counts a read; every fourth is refused, from the second on."""
        count = self._reads[app] = self._reads.get(app, 0) + 1
        return count % 4 == 2

    def is_busy(self, app: str) -> bool:
        """Counts a change; every third is refused, from the first on."""
        count = self._writes[app] = self._writes.get(app, 0) + 1
        return count % 3 == 1
