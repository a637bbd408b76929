"""Encodes generations as vLLM's response bodies, whole or streamed."""

import time
from uuid import uuid4

import msgspec

from app.engine.tokenizer import ChatTokenizer
from app.model_server.generation import GenerationChunk
from app.model_server.schemas import CompletionChoice, CompletionRequest, CompletionResponse, Logprobs, Usage
from app.model_server.service import PreparedRequest

_REPLACEMENT = "\ufffd"  # decodes a character whose last bytes are still missing


class CompletionWriter:
    """Writes one response. Feed it every chunk, in order."""

    def __init__(self, tokenizer: ChatTokenizer, request: CompletionRequest, prepared: PreparedRequest) -> None:
        self._tokenizer, self._request, self._prepared = tokenizer, request, prepared
        self._id, self._created = f"cmpl-{uuid4().hex}", int(time.time())
        self._ids: list[int] = []
        self._text = ""

    def response(self, chunk: GenerationChunk) -> bytes:
        choice = self._choice(chunk)
        return self._body([choice], self._usage())

    def event(self, chunk: GenerationChunk) -> bytes:
        """One server-sent event."""
        return b"data: " + self._body([self._choice(chunk)], None) + b"\n\n"

    def end_events(self) -> bytes:
        options = self._request.stream_options
        usage = b"data: " + self._body([], self._usage()) + b"\n\n" if options and options.include_usage else b""
        return usage + b"data: [DONE]\n\n"

    def _body(self, choices: list[CompletionChoice], usage: Usage | None) -> bytes:
        return msgspec.json.encode(
            CompletionResponse(
                id=self._id, created=self._created, model=self._prepared.model, choices=choices, usage=usage
            )
        )

    def _choice(self, chunk: GenerationChunk) -> CompletionChoice:
        first, wants_ids = not self._ids, self._request.return_token_ids
        self._ids.extend(chunk.ids)
        before = self._text
        self._text = self._visible(chunk)
        return CompletionChoice(
            text=self._text[len(before) :],
            logprobs=self._logprobs(chunk, len(before)) if self._request.logprobs is not None else None,
            finish_reason=chunk.finish or None,
            stop_reason=self._stop_reason(chunk),
            token_ids=list(chunk.ids) if wants_ids else None,
            prompt_token_ids=self._prepared.prompt if wants_ids and first else None,
        )

    def _visible(self, chunk: GenerationChunk) -> str:
        """The text so far, without what stopped it or may be the beginning of that, and incomplete characters."""
        ids = self._ids[:-1] if self._ids and self._ids[-1] in self._prepared.stops else self._ids
        text: str = self._tokenizer.tokenizer.decode(ids, skip_special_tokens=self._request.skip_special_tokens)
        if chunk.stop_string:  # absent from the text if it is a special token that is left out
            return text.rpartition(chunk.stop_string)[0] if chunk.stop_string in text else text
        if chunk.finish:
            return text
        held = max(map(len, self._prepared.sampling.stop_strings), default=1) - 1
        return text.rstrip(_REPLACEMENT)[: -held or None]

    def _stop_reason(self, chunk: GenerationChunk) -> int | str | None:
        """vLLM reports the token only if the request named it."""
        if chunk.stop_string:
            return chunk.stop_string
        return chunk.stop_token if chunk.stop_token in self._prepared.sampling.stop_token_ids else None

    def _logprobs(self, chunk: GenerationChunk, offset: int) -> Logprobs:
        texts = [self._tokenizer.decode([token]) for token in chunk.ids]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        top = [{text: value} for text, value in zip(texts, chunk.logprobs, strict=True)]
        return Logprobs(texts, list(chunk.logprobs), top, offsets)

    def _usage(self) -> Usage:
        prompt, generated = len(self._prepared.prompt), len(self._ids)
        return Usage(prompt, generated, prompt + generated)
