"""A request to the scheduler: the chunks of tokens that it reports, the text that ends it, and the tokens drafted
for it by look-up, since agents copy names, calls and code from what they have read and written.
"""

import random
from collections.abc import Callable, Sequence

import msgspec

from app.engine.protocol import Sampling
from app.engine.tokenizer import ChatTokenizer
from app.model_server.kv_cache import Ids, start_key

_NGRAM = 3  # tokens that have to agree with an earlier place
_MAX_DRAFT = 15  # tokens
_FORGET = 0.9  # weight of what was observed one token earlier
_WORTH = 1.1  # the least expected gain in tokens per second; below it noise decides
_MANY = 8  # rows from which on more is demanded: 16 lost 4 % with _WORTH
_WORTH_OF_MANY = 1.3


class StopStrings:
    """The texts that end one generation."""

    def __init__(self, tokenizer: ChatTokenizer, texts: Sequence[str]) -> None:
        self._tokenizer, self._texts = tokenizer, texts
        self._reach = max(len(text.encode()) for text in texts)  # tokens: each has a byte of the text, or more

    def completed(self, ids: Sequence[int]) -> str:
        """The text that the last of these ids completes; "" if none does."""
        tail = self._tokenizer.decode(ids[-self._reach :])
        return next((text for text in self._texts if text in tail), "")


class LookupDrafter:
    """Follows one sequence, prompt included. Every token that it could have drafted teaches it how often it is
    right, whether or not it was drafted.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        self._after = {  # n-gram -> the position after its latest occurrence but the present one
            tuple(self._tokens[end - _NGRAM : end]): end for end in range(_NGRAM, len(self._tokens))
        }
        self._next = self._look_up()
        self._hits, self._tries = 0.0, 0.0

    @property
    def confidence(self) -> float:
        """The estimated probability that the next token is the drafted one; below 1."""
        return (self._hits + 1) / (self._tries + 2)

    def draft(self, limit: int) -> list[int]:
        if self._next is None:
            return []
        return self._tokens[self._next : self._next + min(limit, _MAX_DRAFT)]

    def append(self, token: int) -> None:
        hit = self._next is not None and self._tokens[self._next] == token
        if self._next is not None:
            self._hits = self._hits * _FORGET + hit
            self._tries = self._tries * _FORGET + 1
        self._after[tuple(self._tokens[-_NGRAM:])] = len(self._tokens)
        self._tokens.append(token)
        self._next = self._next + 1 if self._next is not None and hit else self._look_up()

    def _look_up(self) -> int | None:
        return self._after.get(tuple(self._tokens[-_NGRAM:]))


def draft_lengths(confidences: Sequence[float], limits: Sequence[int], pass_seconds: Sequence[float]) -> list[int]:
    """How many tokens to draft for each row, at most its limit, so that tokens per second are expected highest.

    pass_seconds[n - 1] is the time of a pass over n rows; each drafted token is one more row. Rows are not drafted
    for beyond the passes that were timed.

    >>> draft_lengths([0.9], [4], [1.0, 1.1, 1.2, 1.3, 1.4])
    [4]
    >>> draft_lengths([0.5, 0.9], [4, 2], [1.0, 1.0, 1.4, 1.8, 2.2])
    [0, 0]
    """
    lengths = [0] * len(confidences)
    rows = len(lengths)
    chances = sorted(
        (
            (confidence**length, row)
            for row, (confidence, limit) in enumerate(zip(confidences, limits, strict=True))
            for length in range(1, limit + 1)
        ),
        reverse=True,
    )[: max(0, len(pass_seconds) - rows)]
    if not chances:
        return lengths
    worth = _WORTH if rows < _MANY else _WORTH_OF_MANY
    expected, best, count = float(rows), rows / pass_seconds[rows - 1] * worth, 0
    for drafted, (chance, _) in enumerate(chances, 1):
        expected += chance
        if (rate := expected / pass_seconds[rows + drafted - 1]) > best:
            best, count = rate, drafted
    for _, row in chances[:count]:
        lengths[row] += 1
    return lengths


class GenerationChunk(msgspec.Struct, frozen=True):
    """Tokens since the last chunk. `finish` is "" until the last one: then stop, length, abort or error."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str = ""
    stop_token: int | None = None  # the stop token that ended it
    stop_string: str = ""  # that ended it, in the text of the last tokens


class Generation:
    """One request in the scheduler. Only `cancel` may be called from another thread."""

    def __init__(
        self,
        prompt: Ids,
        *,
        adapter: int,
        sampling: Sampling,
        stops: frozenset[int],
        report: Callable[[GenerationChunk], None],
        stop_strings: StopStrings | None = None,
        stream: bool = False,
    ) -> None:
        self.prompt, self.adapter = prompt, adapter
        self.start = start_key(adapter, prompt)
        self.max_tokens, self.temperature, self.stops = sampling.max_tokens, sampling.temperature, stops
        self._stop_strings, self._stop_string = stop_strings, ""
        self.allowed = sampling.allowed_token_ids
        self._random = random.Random(sampling.seed)
        self._uniforms: list[float] = []  # of the next tokens
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.blocks: list[int] = []  # of the KV cache, while it runs
        self.computed = 0  # tokens of the prompt whose keys and values are in them
        self.passed_over = 0  # how many that came later were admitted before it
        self.cached, self.cached_version = 0, -1  # tokens of the prompt, while it waits
        self.drafter: LookupDrafter | None = None  # while it runs, if tokens are drafted
        self.cancelled = False
        self._report, self._stream, self._reported = report, stream, 0

    @property
    def prefilled(self) -> bool:
        return self.computed == len(self.prompt)

    def cancel(self) -> None:
        self.cancelled = True

    def uniforms(self, count: int) -> list[float]:
        """The random numbers of the next tokens. `add` uses up the first, so the others stay as they are."""
        self._uniforms += [self._random.random() for _ in range(count - len(self._uniforms))]
        return self._uniforms[:count]

    def add(self, token: int, logprob: float) -> str:
        """Return the finish reason, or "" if the generation continues."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        del self._uniforms[:1]
        if self.drafter:
            self.drafter.append(token)
        if self._stop_strings and token not in self.stops:
            self._stop_string = self._stop_strings.completed(self.ids)
        stopped = token in self.stops or self._stop_string
        finish = "stop" if stopped else "length" if len(self.ids) >= self.max_tokens else ""
        if self._stream and not finish:
            self.finish("")
        return finish

    def finish(self, reason: str) -> None:
        start, self._reported = self._reported, len(self.ids)
        token = self.ids[-1] if reason == "stop" and not self._stop_string else None
        ids, logprobs = tuple(self.ids[start:]), tuple(self.logprobs[start:])
        self._report(GenerationChunk(ids, logprobs, reason, token, self._stop_string))
