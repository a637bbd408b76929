"""A request to the scheduler, and the chunks of tokens it reports."""

import random
from collections.abc import Callable

import msgspec

from app.engine.protocol import Sampling
from app.model_server.prefix_cache import Ids, start_key
from app.model_server.speculation import LookupDrafter
from app.model_server.stop_strings import StopStrings


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
