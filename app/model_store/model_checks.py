"""Checks of a model directory before it is installed: its tokenizer, its chat template, its profile."""

from itertools import pairwise
from pathlib import Path

from app.agent.prompt_profiles import Profile, choose_profile, sample_conversation
from app.engine.tokenizer import ChatTokenizer, Message
from app.errors import ChatTemplateError, ModelError, ModelTokenizerError

_TURNS = 3


def check_directory(path: Path) -> ChatTokenizer:
    """Everything but the weights. Raises ModelError."""
    tokenizer = ChatTokenizer.load(path)
    check_ids(tokenizer, path)
    check_template(tokenizer, path)
    choose_profile("", tokenizer.card)
    return tokenizer


def load_served(path: Path, profile: str) -> tuple[ChatTokenizer, Profile]:
    """The tokenizer of a directory that is to be served, and its profile: the one named, or the card's.

    Raises SettingError for an unknown profile, and ModelError for a tokenizer with ids that the weights lack and
    for a chat template that does not take the profile's messages.
    """
    tokenizer = ChatTokenizer.load(path)
    chosen = choose_profile(profile, tokenizer.card)
    check_ids(tokenizer, path)
    try:
        tokenizer.render(sample_conversation(chosen), generate=True)
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


def check_template(tokenizer: ChatTokenizer, path: Path) -> None:
    """Agents append to a conversation: each prompt, with its answer, must begin the next prompt.

    Thoughts between tags are not part of it: templates that drop those of earlier turns are common, and such a
    turn is encoded again. Raises ChatTemplateError.
    """
    messages = [Message("system", "A system prompt."), Message("user", "The first task.")]
    prompts, answers = [], []
    try:
        for turn in range(_TURNS):
            prompts.append(tokenizer.render(messages, generate=True))
            answers.append(f"The answer of turn {turn}.")
            messages += [Message("assistant", answers[-1]), Message("user", f"The observation after turn {turn}.")]
    except ChatTemplateError:
        raise
    except ModelError as error:
        raise ChatTemplateError(
            f"the chat template in {path} does not take a system prompt and turns of user and assistant: {error}. "
            "Name an instruct model"
        ) from error
    for (before, after), answer in zip(pairwise(prompts), answers, strict=False):
        if not after.startswith(before + answer):
            raise ChatTemplateError(
                f"the chat template in {path} rewrites history: a conversation does not begin as it did a turn "
                "before, so nothing learned or cached for it would hold. Name another model"
            )
