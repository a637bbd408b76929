"""Verifiers of projects: servers that score finished tasks. What they are asked, and how they answer. Pure."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from app.project.webhook import without_path
from app.records import Json, Trajectory, Turn
from app.untrusted.json_text import JsonError, decode_json

_TURNS = 5  # the last ones, which are shown
_CHARS = 4_000  # of each text
_ANSWER_CHARS = 20_000
_VALUES, _DEPTH = 1_000, 20  # of an answer


class Verifier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that is asked for the score of each task that is done and had no check. `PATCH` also takes a
    `secret`, which is never shown again.
    """

    url: Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^https?://")]
    """Receives one POST for each task, signed with the secret as messages to a webhook are."""

    def masked(self) -> "Verifier":
        """Without the path and query of the URL, which may hold a token."""
        return Verifier(url=without_path(self.url))


class VerifierAnswer(msgspec.Struct, frozen=True):
    """What a verifier answers. Other fields are ignored."""

    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None  # None: it cannot say
    reason: Annotated[str, msgspec.Meta(max_length=2_000)] | None = None


class VerifierAnswerError(ValueError):
    """The body is no answer. The message says why."""


def read_answer(body: bytes) -> VerifierAnswer:
    """Raises VerifierAnswerError.

    >>> read_answer(b'{"score": 0.5, "reason": "half of it"}')
    VerifierAnswer(score=0.5, reason='half of it')
    """
    try:
        return msgspec.convert(decode_json(body, max_values=_VALUES, max_depth=_DEPTH), VerifierAnswer)
    except (JsonError, msgspec.ValidationError) as error:
        raise VerifierAnswerError(str(error)) from error


def question(trajectory: Trajectory) -> dict[str, Json]:
    """What a verifier is told about a task: its trajectory as it is stored, without secrets, cut to size."""
    return {
        "instruction": trajectory.task.instruction,
        "conversation": trajectory.task.conversation[-_CHARS:],
        "scenario": trajectory.task.scenario,
        "stop_reason": trajectory.stop,
        "answer": _shortened(trajectory.answer),
        "turns": len(trajectory.turns),
        "last_turns": _shown(trajectory.turns[-_TURNS:]),
    }


def _shown(turns: Sequence[Turn]) -> list[dict[str, Json]]:
    return [
        {
            "text": turn.text[-_CHARS:],
            "observation": turn.observation[-_CHARS:],
            "calls": [call.api for call in turn.calls[:100]],
        }
        for turn in turns
    ]


def _shortened(answer: Json) -> Json:
    """The answer; of a very long one the start of its JSON, as text."""
    text = msgspec.json.encode(answer).decode()
    return answer if len(text) <= _ANSWER_CHARS else text[:_ANSWER_CHARS]
