"""The `compact` prompt profile, for a tiny policy trained on this format, where every token counts. Pure."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from app.agent.observation import cut, error_of, last_line
from app.apis.listing import ListedApp
from app.base.values import Offer, Task
from app.engine.tokenizer import Message
from app.sandbox.protocol import Observation
from app.sandbox.wire import HINT

_LIMIT = 2000
_ERROR_LIMIT = 400


class Compact(msgspec.Struct, frozen=True):
    """One user message: the instruction verbatim, a line per offered skill, and what was said before."""

    name: ClassVar[str] = "compact"
    stop_strings: ClassVar[tuple[str, ...]] = ()
    look_up_chars: ClassVar[int] = _LIMIT

    def opening(self, task: Task, offers: Sequence[Offer], apps: Sequence[ListedApp]) -> list[Message]:  # noqa: ARG002
        lines = [task.instruction]
        if offers:
            lines += ["skills:", *(f"{offer.signature}: {offer.instruction}" for offer in offers)]
        if task.conversation:
            lines += ["said before:", task.conversation]
        return [Message("user", "\n".join(lines))]

    def observation(self, observation: Observation) -> str:
        """The output, then the exception in one line; `ok` if there is neither."""
        error = error_of(observation)
        raised = cut(self.raised(error), _ERROR_LIMIT) if error else ""
        printed = cut(observation.stdout.rstrip(), _LIMIT - len(raised))
        return "\n".join(part for part in (printed, raised) if part) or "ok"

    def raised(self, traceback: str) -> str:
        """What is shown of an exception."""
        return last_line(traceback).partition(HINT)[0]  # the tiny policy knows no hints
