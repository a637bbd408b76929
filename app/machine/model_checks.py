"""Checks of a model directory before it is installed or served: its tokenizer, its chat template, its profile."""

import re
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from app.agent.prompts import Profile, choose_profile, sample_opening
from app.base import errors
from app.base.errors import ChatTemplateError, ModelError, ModelTokenizerError
from app.base.processes import lower_limit, python_module
from app.base.values import Json
from app.engine.memory import weights_in
from app.engine.tokenizer import CLOSED_THOUGHT, ChatTokenizer, Message, end_of, opened_thought

_TURNS = 3
_CHECK_MEMORY, _CHECK_SECONDS = 4 << 30, 120  # bytes and CPU seconds, of the check of a directory
_CHANNEL = "<|channel|>"
_THOUGHTS = re.compile(rf"{CLOSED_THOUGHT}\s*", re.DOTALL)


def check_directory(path: Path) -> None:
    """Everything but the weights. The files may be anybody's, and a template is a program: they are read in a
    process of limited memory and time. Raises ModelError.
    """
    done = subprocess.run(python_module(__name__, str(path)), capture_output=True, check=False)
    if done.returncode:
        cause = (
            done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"it ended by {done.returncode}"
        )
        raise ModelError(
            f"tokenizer and chat template in {path} cannot be read within {_CHECK_MEMORY >> 30} GB of memory and "
            f"{_CHECK_SECONDS} s ({cause}): name another model"
        )
    if done.stdout:
        kind, message = msgspec.json.decode(done.stdout, type=tuple[str, str])
        raise getattr(errors, kind)(message)


def _check_here(path: Path) -> bytes:
    """The kind and the message of the error, as JSON; nothing if there is none."""
    lower_limit(resource.RLIMIT_AS, _CHECK_MEMORY)
    lower_limit(resource.RLIMIT_CPU, _CHECK_SECONDS)
    try:
        tokenizer = ChatTokenizer.load(path)
        check_ids(tokenizer, path)
        _check_template(tokenizer, path)
        choose_profile("", tokenizer.card)
    except errors.AppError as error:
        return msgspec.json.encode((type(error).__name__, str(error)))
    return b""


def check_weights(path: Path) -> None:
    """That all files of the weights are there and whole, which are one file or those of an index.

    Raises ModelError.
    """
    if not (path / "model.safetensors").is_file():
        _check_index(path)
    weights_in(path)


def _check_index(path: Path) -> None:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        raise ModelError(f"{path} has neither model.safetensors nor {index.name}")
    try:
        files = set(msgspec.json.decode(index.read_bytes(), type=_WeightIndex).weight_map.values())
    except msgspec.MsgspecError as error:
        raise ModelError(f"{index} cannot be read: {error}") from error
    if missing := sorted(file for file in files if not (path / file).is_file()):
        raise ModelError(f"{path} lacks {len(missing)} of {len(files)} files of its weights, such as {missing[0]}")


class _WeightIndex(msgspec.Struct):
    weight_map: dict[str, str]  # files by tensor


def load_served(
    path: Path, profile: str, template_kwargs: Mapping[str, Json] | None = None
) -> tuple[ChatTokenizer, Profile]:
    """The tokenizer of a directory that is to be served, and its profile: the one named, or the card's.

    Raises SettingError for an unknown profile, and ModelError for a tokenizer with ids that the weights lack and
    for a chat template that does not take the profile's messages, or rewrites them.
    """
    tokenizer = ChatTokenizer.load(path, template_kwargs)
    chosen = choose_profile(profile, tokenizer.card)
    check_ids(tokenizer, path)
    try:
        _check_history(tokenizer, path, sample_opening(chosen))
    except ChatTemplateError:
        raise
    except ModelError as error:
        raise ChatTemplateError(
            f"the chat template in {path} does not take the prompts of the profile {chosen.name}: {error}. "
            "Name an instruct model, or set SAGE_PROMPT_PROFILE"
        ) from error
    return tokenizer, chosen


def check_ids(tokenizer: ChatTokenizer, path: Path) -> None:
    """Raises ModelTokenizerError for a tokenizer with ids that the weights do not have."""
    largest = max(tokenizer.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= tokenizer.vocab_size:
        raise ModelTokenizerError(
            f"the tokenizer in {path} has ids up to {largest}, its model {tokenizer.vocab_size} tokens: they do "
            "not match. Take all files from one model"
        )


def _check_template(tokenizer: ChatTokenizer, path: Path) -> None:
    """Raises ChatTemplateError for a template that rewrites history, or takes no system prompt."""
    try:
        _check_history(
            tokenizer, path, [Message("system", "A system prompt."), Message("user", "The first task.")]
        )
    except ChatTemplateError:
        raise
    except ModelError as error:
        raise ChatTemplateError(
            f"the chat template in {path} does not take a system prompt and turns of user and assistant: {error}. "
            "Name an instruct model"
        ) from error


def _check_history(tokenizer: ChatTokenizer, path: Path, opening: Sequence[Message]) -> None:
    """Agents append to a conversation: each prompt, with its answer, must begin the next prompt.

    Thoughts between tags are not part of it: templates that drop those of earlier turns are common, and such a
    turn is encoded again. Raises ChatTemplateError for a template that rewrites others or has channels, and
    ModelError for messages that the template rejects.
    """
    if _CHANNEL in tokenizer.source:
        raise ChatTemplateError(
            f"the chat template in {path} puts thoughts and answers into channels (OpenAI's Harmony format, as of "
            "gpt-oss), which the agent does not read. Name another model"
        )
    messages, begun = list(opening), ""
    for turn in range(_TURNS):
        prompt = tokenizer.render(messages, generate=True)
        if not _without_thoughts(prompt).startswith(begun):
            raise ChatTemplateError(
                f"the chat template in {path} rewrites history: a conversation does not begin as it did a turn "
                "before, so an agent would lose what it did, and nothing learned or cached for it would hold. "
                "Name another model, or put the chat_template.jinja of an instruct model of its family there"
            )
        answer = f"The answer of turn {turn}."
        closed = f"{end_of(opened)}\n\n" if (opened := opened_thought(prompt)) else ""
        begun = _without_thoughts(prompt + closed + answer)
        messages += [Message("assistant", answer), Message("user", f"The observation after turn {turn}.")]


def _without_thoughts(text: str) -> str:
    return _THOUGHTS.sub("", text)


if __name__ == "__main__":
    sys.stdout.buffer.write(_check_here(Path(sys.argv[1])))
