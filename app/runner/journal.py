"""Writes down what a task does while it does it, so that another process can go on where this one died."""

import msgspec
import structlog

from app.agent.halt import Halt
from app.agent.loop import Origin
from app.agent.watcher import Watcher
from app.db import calls, events, models, turns
from app.db.session import Sessions
from app.records import Call, Offer, Turn
from app.sandbox.journal import InDoubt

log = structlog.get_logger(__name__)


class TaskJournal(Watcher):
    """Hears the rollout's turns and the gateway's calls. Each is committed before what it announces happens.

    Every write fails with ConflictError once another runner has taken the task up.
    """

    def __init__(self, sessions: Sessions, task: models.Task, owner: str, halt: Halt) -> None:
        super().__init__(halt)
        self._sessions = sessions
        self._task = task
        self._owner = owner
        self._lost: dict[int, calls.JournalCall] = {}
        self._offers: tuple[Offer, ...] = ()

    def offer(self, offers: tuple[Offer, ...]) -> None:
        """The skills whose use is to be told."""
        self._offers = offers

    async def origin(self) -> Origin:
        """Where the task stands: what earlier attempts wrote down, and the seed and the clock that all share."""
        async with self._sessions() as session:
            recorded = await turns.of_task(session, self._task.id)
            made = await calls.of_task(session, self._task.id)
        self._lost = {each.seq: each for each in made if each.call is None}
        begun = recorded[-1] if recorded and not recorded[-1].ended else None
        known = tuple(
            each.call for each in made if begun and each.call is not None and each.call.turn == begun.index
        )
        return Origin(
            seed=self._task.id.int & 0x7FFFFFFF,
            now=self._task.started_at,
            recorded=tuple(each.turn for each in recorded if each.ended),
            begun=begun.turn if begun else None,
            known=known,
        )

    async def sampled(self, index: int, turn: Turn) -> None:
        async with self._sessions.begin() as session:
            await turns.begin(session, self._task.id, self._owner, index, turn)
            told = {"turn": index, "text": turn.text, "tokens": len(turn.sampled_ids)}
            await events.append(session, self._task.id, "turn", told)

    async def ended(self, index: int, turn: Turn) -> None:
        async with self._sessions.begin() as session:
            await turns.end(session, self._task.id, self._owner, index, turn)
            if turn.outcome:
                told = {"turn": index, "text": turn.observation, "outcome": turn.outcome}
                await events.append(session, self._task.id, "observation", told)
            for use in turn.uses:
                offer = next((each for each in self._offers if each.name == use.function), None)
                if offer is not None and use.inherited:
                    about = {"calls": use.calls, "returned": use.returned, "turn": index}
                    await events.append(session, self._task.id, "skill", told_of("used", offer) | about)

    async def begin(self, call: Call, repeatable: bool) -> Call | None:
        """Committed before the call goes out. Raises InDoubt for one that may have gone out already."""
        lost = self._lost.pop(call.seq, None)
        if lost is not None and not (lost.repeatable and repeatable and _same(lost, call)):
            raise InDoubt(lost.api)
        async with self._sessions.begin() as session:
            await calls.begin(session, self._task.id, self._owner, call, repeatable=repeatable)
        return None

    async def end(self, call: Call) -> None:
        async with self._sessions.begin() as session:
            await calls.end(session, self._task.id, call)
            told = {"turn": call.turn, "seq": call.seq, "api": call.api, "arguments": call.arguments}
            about = {"error": call.error, "seconds": round(call.seconds, 4)}
            await events.append(session, self._task.id, "call", told | about)


def told_of(what: str, offer: Offer) -> dict[str, str | int]:
    """A skill in an event: it was offered, used or written."""
    return {"what": what, "id": str(offer.skill_id), "name": offer.name, "version": offer.version}


def _same(lost: calls.JournalCall, call: Call) -> bool:
    return lost.api == call.api and lost.arguments == msgspec.to_builtins(call.arguments)
