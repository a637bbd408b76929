"""The bodies of vLLM's HTTP API that the embedded engine supports. Anything else is refused."""

from typing import Any, Literal

import msgspec

from app.engine.protocol import Sampling
from app.errors import InvalidError

_ACCEPTED: dict[str, tuple[Any, ...]] = {  # values of fields of which only "off" is supported
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "prompt_logprobs": (None,),
    "logprobs": (None, 0),
}


class ParameterError(InvalidError):
    """One field of the request is invalid."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class TokenLimits(msgspec.Struct, frozen=True, kw_only=True):
    context: int  # tokens of the model
    cache: int  # tokens that the KV cache holds
    vocabulary: int

    @property
    def longest(self) -> int:
        """The longest sequence that can be served."""
        return min(self.context, self.cache)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str = "base"
    prompt: list[int] | str
    max_tokens: int | None = 16
    temperature: float | None = 1.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None  # 0: of the sampled tokens only
    return_token_ids: bool | None = False
    skip_special_tokens: bool = True
    add_special_tokens: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    stop: list[str] | str | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    prompt_logprobs: int | None = None

    def sampling(self, prompt_tokens: int, limits: TokenLimits) -> Sampling:
        """Raises ParameterError if a value is out of range or not supported."""
        for name, accepted in _ACCEPTED.items():
            if getattr(self, name) not in accepted:
                raise ParameterError(
                    f"{name}={getattr(self, name)} is not supported by the embedded engine.", name
                )
        temperature = 1.0 if self.temperature is None else self.temperature
        if not 0 <= temperature <= 100:
            raise ParameterError(f"temperature must be between 0 and 100, not {temperature}.", "temperature")
        self._check_tokens(limits.vocabulary)
        room = limits.longest - prompt_tokens
        max_tokens = room if self.max_tokens is None else self.max_tokens
        if max_tokens < 1 and room >= 1:
            raise ParameterError(f"max_tokens must be at least 1, not {max_tokens}.", "max_tokens")
        if max_tokens > room or room < 1:
            raise _too_long(prompt_tokens, max_tokens, limits)
        return Sampling(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=self.seed,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            stop_strings=self._stop_strings(),
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
        )

    def _stop_strings(self) -> tuple[str, ...]:
        texts = [self.stop] if isinstance(self.stop, str) and self.stop else list(self.stop or ())
        if not all(texts):
            raise ParameterError("stop cannot contain an empty string.", "stop")
        return tuple(texts)

    def _check_tokens(self, vocabulary: int) -> None:
        for name in ("stop_token_ids", "allowed_token_ids"):
            if not all(0 <= token < vocabulary for token in getattr(self, name) or ()):
                raise ParameterError(f"{name} must lie between 0 and {vocabulary - 1}.", name)
        if self.allowed_token_ids == []:
            raise ParameterError("allowed_token_ids must hold at least one token.", "allowed_token_ids")


def _too_long(prompt_tokens: int, max_tokens: int, limits: TokenLimits) -> ParameterError:
    asked = f"the prompt has {prompt_tokens} and max_tokens asks for {max_tokens} more"
    remedy = "shorten the prompt or ask for fewer"
    if limits.cache < limits.context:
        return ParameterError(
            f"The KV cache holds {limits.cache} tokens, but {asked}: "
            f"raise SAGE_ENGINE_KV_MB (--kv-mb), or {remedy}.",
            "prompt",
        )
    return ParameterError(
        f"This model's maximum context length is {limits.context} tokens, but {asked}: {remedy}.", "prompt"
    )


class LoadAdapterRequest(msgspec.Struct, frozen=True):
    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterRequest(msgspec.Struct, frozen=True):
    lora_name: str


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float"] = "float"
    user: str | None = None


class Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    prompt_token_ids: list[int] | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None


class ErrorInfo(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: int


class ErrorResponse(msgspec.Struct, frozen=True):
    error: ErrorInfo
