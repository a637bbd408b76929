"""The span of a generation, by OpenTelemetry's GenAI semantic conventions. No text, no token."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from app.base.telemetry import Attributes, Span, span
from app.engine.protocol import Completion, Sampling, Tokens

_OPERATION = "text_completion"  # a prompt of tokens, not of messages
_CHAT = "chat"


def generation_span(prompt: Sequence[int], model: str, sampling: Sampling) -> AbstractContextManager[Span]:
    attributes: Attributes = {
        "gen_ai.operation.name": _OPERATION,
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.usage.input_tokens": len(prompt),
    }
    if sampling.seed is not None:
        attributes["gen_ai.request.seed"] = sampling.seed
    return span(f"{_OPERATION} {model}", attributes, client=True)


def completion_attributes(completion: Completion) -> Attributes:
    return {
        "gen_ai.usage.output_tokens": len(completion.ids),
        "gen_ai.response.finish_reasons": [completion.finish],
    }


def chat_span(model: str, max_tokens: int, temperature: float) -> AbstractContextManager[Span]:
    """Of a hosted model."""
    attributes: Attributes = {
        "gen_ai.operation.name": _CHAT,
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": max_tokens,
        "gen_ai.request.temperature": temperature,
    }
    return span(f"{_CHAT} {model}", attributes, client=True)


def answer_attributes(used: Tokens, finish: str) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": used.prompt,
        "gen_ai.usage.output_tokens": used.generated,
        "gen_ai.response.finish_reasons": [finish],
    }
