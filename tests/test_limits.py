"""The limits of a rollout on turns that no test of whole rollouts has."""

from msgspec.structs import replace

from app.agent.limits import RolloutLimits
from app.agent.prompt_full import Full
from app.records import Stop, Turn
from app.sandbox.protocol import Observation, RunStop
from tests.rows import turn_of

CODE = "```python\ngo(0)\n```"


def deep(number: int, error: str = "RecursionError: too deep") -> Turn:
    """A turn that fails with a traceback longer than prompts show."""
    frames = [f'  File "<turn {number}>", line {line % 7}, in go\n    go({line % 7})\n' for line in range(900)]
    traceback = f"Traceback (most recent call last):\n{''.join(frames)}{error}\n"
    shown = Full().observation(Observation(stdout="", error=traceback, stop=RunStop.ERROR))
    return replace(turn_of(CODE), observation=shown, outcome="error")


def test_a_repeated_failure_is_recognised_by_the_end_of_a_long_traceback() -> None:
    turns = [deep(number) for number in (9, 10, 100)]
    assert len({turn.observation.count("in go") for turn in turns}) > 1
    assert RolloutLimits().reached(turns[:2]) is None
    assert RolloutLimits().reached(turns) == Stop.ERROR_LIMIT
    assert RolloutLimits().reached([*turns[:2], deep(100, "ValueError: 3")]) is None
