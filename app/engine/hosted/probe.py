"""Probes a hosted model: whether its key and its name are good, and what its endpoint can do."""

import asyncio
from typing import Any, Final
from urllib.parse import quote

import msgspec

from app.base.errors import EngineError, EngineRefusalError
from app.base.text import did_you_mean
from app.base.values import Json
from app.engine.hosted.client import Abilities, OpenAiChatModel, Request
from app.engine.tokenizer import Message

_SECONDS = 30.0  # of a probe
_QUESTION = (Message("system", "You do as you are told."), Message("user", "Count from 1 to 9: 1 2 3 4 5 6 7 8 9"))
_COUNT: Final = Request(_QUESTION, 64, 0.0, (" 5", "\n5"))
_CONTEXT_FIELDS = (
    "max_model_len",  # vLLM
    "loaded_context_length",  # LM Studio
    "max_context_length",
    "context_length",  # OpenRouter, Together and others
    "context_window",  # Groq
    "max_input_tokens",  # LiteLLM
)
_MOST_NAMES = 5  # that an error lists


async def probe(model: OpenAiChatModel) -> Abilities:
    """What the endpoint can do, by a few small requests.

    Raises EngineRefusalError with the endpoint's own reason, and with names that it has if it does not have this
    one; EngineError if it does not answer now.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            listed = await _listed(model)
            stops = await _ends_at_stops(model, listed)
            context = await _context(model, listed)
    except TimeoutError as error:
        raise EngineError(
            f"{model.url} did not answer the probe within {_SECONDS:g} s: if it loads the model first, try again"
        ) from error
    names = _names(listed)
    lists = "" if _is_among(model.model, names) else _some(names)
    stops = model.abilities.stops and stops
    return msgspec.structs.replace(model.abilities, stops=stops, context=context, lists=lists)


async def _listed(model: OpenAiChatModel) -> list[dict[str, Any]]:
    """The models that it lists; none where it does not, or not for this key. Raises as `probe` if it is away."""
    try:
        found = await model.get(f"{model.base}/models")
    except EngineError:
        if not model.has_answered:
            raise
        return []
    rows = found.get("data", found.get("models")) if isinstance(found, dict) else found
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


async def _ends_at_stops(model: OpenAiChatModel, listed: list[dict[str, Any]]) -> bool:
    """Asks to count. False if it counted on beyond a stop string that it did not refuse."""
    try:
        found = await model.raw_answer(_COUNT)
    except EngineRefusalError as refusal:
        names = _names(listed)
        if not names or model.model in names or refusal.code in {401, 403}:
            raise
        hint = did_you_mean(model.model, names) or f"it has {_some(names)}"
        raise EngineRefusalError(f"{refusal}; {hint}", refusal.code) from refusal
    return not any(stop in found.answer.text for stop in _COUNT.stop_strings)


def _names(listed: list[dict[str, Any]]) -> list[str]:
    return [str(row["id"])[:100] for row in listed if row.get("id")]


def _is_among(name: str, names: list[str]) -> bool:
    """Also by the short names that Ollama and Google take.

    >>> [_is_among(name, ["wise:latest", "models/wiser"]) for name in ("wise", "wise:latest", "wiser", "wisest")]
    [True, True, True, False]
    """
    return any(name in (each, each.removesuffix(":latest"), each.removeprefix("models/")) for each in names)


async def _context(model: OpenAiChatModel, listed: list[dict[str, Any]]) -> int | None:
    """As the list of models tells, or else a page of the servers that have one. What is in use goes before what
    the model could take.
    """
    row = next((row for row in listed if row.get("id") == model.model), listed[0] if len(listed) == 1 else {})
    if told := _length(row, *_CONTEXT_FIELDS):
        return told
    root, name = model.base.removesuffix("/v1"), model.model.removesuffix(":latest")
    props, running, loaded = await asyncio.gather(
        _page(model, f"{root}/props"),  # llama.cpp
        _page(model, f"{root}/api/ps"),  # Ollama
        _page(model, f"{root}/api/v0/models/{quote(model.model, safe='/')}"),  # LM Studio
    )
    in_memory = running.get("models")
    rows = [each for each in in_memory if isinstance(each, dict)] if isinstance(in_memory, list) else []
    ours = next((each for each in rows if str(each.get("name")).removesuffix(":latest") == name), {})
    return (
        _length(props.get("default_generation_settings"), "n_ctx")
        or _length(ours, "context_length")
        or _length(loaded, *_CONTEXT_FIELDS)
        or _length(row.get("meta"), "n_ctx", "n_ctx_train")
    )


async def _page(model: OpenAiChatModel, url: str) -> dict[str, Any]:
    try:
        found = await model.get(url)
    except EngineError:
        return {}
    return found if isinstance(found, dict) else {}


def _length(place: Json, *fields: str) -> int | None:
    """The first of the fields that is a length.

    >>> _length({"max_model_len": None, "context_length": 4096}, *_CONTEXT_FIELDS), _length([], "n_ctx")
    (4096, None)
    """
    values = [place.get(field) for field in fields] if isinstance(place, dict) else []
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_MOST_NAMES])
    return f"{shown} and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else shown
