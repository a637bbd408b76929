"""The request of a chat completion, as a task: the last message is its instruction."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

import msgspec

from app.api.chat_completions.openai_errors import UnsupportedError
from app.api.submission import Submission
from app.base.values import Json

_MOST: Final = 12_000  # characters of a conversation that the agent reads
_MOST_OF_ONE: Final = 4_000  # of its messages
_RULES: Final = ("system", "developer")
_PARAMS: Final = {"instruction": "messages", "principal": "user", "scenario": "metadata"}


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """Only parts of the type `text` are understood."""

    type: str
    text: str = ""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`content` is text, or a list of parts that are text."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class ChatStreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`include_usage`: the chunk before the last line has the numbers of tokens."""

    include_usage: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is the name of a project. The last message, of the user, is the instruction; the agent reads what
    was said before. Fields that are not named here, such as `temperature`, are ignored.
    """

    model: str
    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1, max_length=10_000)]
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    user: str | None = None  #: the task's principal
    safety_identifier: str | None = None  #: the principal, if `user` is missing
    metadata: dict[str, str] | None = None  #: its `scenario` is the task's
    n: int | None = None
    tools: list[Json] | None = None
    functions: list[Json] | None = None
    response_format: dict[str, Json] | None = None
    modalities: list[str] | None = None
    logprobs: bool | None = None

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def submission(self) -> Submission:
        """Raises UnsupportedError for what the agent cannot do, and for texts that no task may have."""
        for param, reason in _unsupported(self):
            raise UnsupportedError(f"{param}: {reason}", param)
        *before, last = self.messages
        fields = {
            "project": self.model,
            "instruction": last.text,
            "conversation": conversation_of(before),
            "principal": self.user or self.safety_identifier or "",
            "scenario": (self.metadata or {}).get("scenario"),
        }
        try:
            return msgspec.convert(fields, Submission)
        except msgspec.ValidationError as error:
            reason, _, place = str(error).partition(" - at `$.")
            param = _PARAMS.get(place.rstrip("`"), "messages")
            raise UnsupportedError(f"{param}: {reason}", param) from error


def conversation_of(messages: Sequence[ChatMessage]) -> str:
    """The messages as lines such as `user: ...`: all rules of the system, and the newest others that fit.

    >>> conversation_of([ChatMessage(role="system", content="Be brief"), ChatMessage(role="user", content="Hi")])
    'system: Be brief\\nuser: Hi'
    """
    lines = [f"{each.role}: {_cut(each.text)}" for each in messages]
    order = sorted(range(len(lines)), key=lambda place: (messages[place].role not in _RULES, -place))
    kept: set[int] = set()
    left = _MOST
    for place in order:
        left -= len(lines[place]) + 1
        if left < 0:
            break
        kept.add(place)
    shown = [line for place, line in enumerate(lines) if place in kept]
    missing = len(lines) - len(shown)
    return "\n".join([*([f"[{missing} messages are left out]"] if missing else []), *shown])


def _unsupported(request: ChatRequest) -> Iterator[tuple[str, str]]:
    """The fields that ask for what the agent cannot do, each with the reason."""
    if request.tools or request.functions:
        what = "the agent calls the APIs of its project, and none of the client: register them as APIs"
        yield "tools" if request.tools else "functions", what
    if request.n not in (None, 1):
        yield "n", "a task is done once: send 1, or nothing"
    if (request.response_format or {}).get("type", "text") != "text":
        yield "response_format", "the answer is text: say in the message which form it should have"
    if request.modalities not in (None, ["text"]):
        yield "modalities", "the answer is text"
    if request.logprobs:
        yield (
            "logprobs",
            "an answer has none; GET /v1/tasks/{task_id}/trajectory?tokens=true has those of the code",
        )
    yield from _unreadable(request.messages)


def _unreadable(messages: Sequence[ChatMessage]) -> Iterator[tuple[str, str]]:
    for place, each in enumerate(messages):
        parts = each.content if isinstance(each.content, list) else []
        if kinds := sorted({part.type for part in parts} - {"text"}):
            yield f"messages[{place}].content", f"only text is understood, not {', '.join(kinds)}"
    if messages[-1].role != "user":
        yield "messages", "the last one has to be the user's: it is the instruction"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_OF_ONE else f"{text[:_MOST_OF_ONE]}..."
