"""Progress of a generation as the bodies vLLM answers with, whole or in pieces."""

import time
from uuid import uuid4

import msgspec

from app.engine.embedded.generation import Progress
from app.engine.embedded.schemas import Choice, CompletionAnswer, CompletionRequest, Logprobs, Usage
from app.engine.embedded.service import Prepared
from app.engine.tokenizer import ChatTokenizer

_CUT = "\ufffd"  # what a decoder writes for a character whose last bytes are still to come


class Writer:
    """Of one answer. Feed it every progress, in order."""

    def __init__(self, tokenizer: ChatTokenizer, request: CompletionRequest, prepared: Prepared) -> None:
        self._tokenizer, self._request, self._prepared = tokenizer, request, prepared
        self._id, self._created = f"cmpl-{uuid4().hex}", int(time.time())
        self._ids: list[int] = []
        self._text = ""

    def answer(self, progress: Progress) -> bytes:
        choice = self._choice(progress)
        return self._body([choice], self._usage())

    def piece(self, progress: Progress) -> bytes:
        """One server-sent event."""
        return b"data: " + self._body([self._choice(progress)], None) + b"\n\n"

    def end(self) -> bytes:
        options = self._request.stream_options
        usage = b"data: " + self._body([], self._usage()) + b"\n\n" if options and options.include_usage else b""
        return usage + b"data: [DONE]\n\n"

    def _body(self, choices: list[Choice], usage: Usage | None) -> bytes:
        return msgspec.json.encode(
            CompletionAnswer(
                id=self._id, created=self._created, model=self._prepared.model, choices=choices, usage=usage
            )
        )

    def _choice(self, progress: Progress) -> Choice:
        first, asked = not self._ids, self._request.return_token_ids
        self._ids.extend(progress.ids)
        before = self._text
        self._text = self._visible(final=bool(progress.finish))
        return Choice(
            text=self._text[len(before) :],
            logprobs=self._logprobs(progress, len(before)) if self._request.logprobs is not None else None,
            finish_reason=progress.finish or None,
            stop_reason=self._stop_reason(progress),
            token_ids=list(progress.ids) if asked else None,
            prompt_token_ids=self._prepared.prompt if asked and first else None,
        )

    def _visible(self, *, final: bool) -> str:
        """The text so far, without the token that ended it, and without half a character."""
        ids = self._ids[:-1] if self._ids and self._ids[-1] in self._prepared.stops else self._ids
        text: str = self._tokenizer.tokenizer.decode(ids, skip_special_tokens=self._request.skip_special_tokens)
        return text if final else text.rstrip(_CUT)

    def _stop_reason(self, progress: Progress) -> int | None:
        """vLLM names the token only where the request did."""
        return progress.stop_token if progress.stop_token in self._prepared.sampling.stop_token_ids else None

    def _logprobs(self, progress: Progress, offset: int) -> Logprobs:
        texts = [self._tokenizer.decode([token]) for token in progress.ids]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        top = [{text: value} for text, value in zip(texts, progress.logprobs, strict=True)]
        return Logprobs(texts, list(progress.logprobs), top, offsets)

    def _usage(self) -> Usage:
        prompt, generated = len(self._prepared.prompt), len(self._ids)
        return Usage(prompt, generated, prompt + generated)
