"""A conversation as token ids that only ever grow: the policy reads back exactly what it sampled."""

from collections.abc import Sequence

import msgspec

from app.engine.tokenizer import ChatTokenizer, Message
from app.records import Turn


class Prompt(msgspec.Struct, frozen=True):
    """What the engine is asked next."""

    ids: tuple[int, ...]
    context_ids: tuple[int, ...]  # the end of ids that is new since the last turn, or all of them
    extends: bool  # False: the chat template rewrote what went before, so ids were made anew


class Chat:
    """Grows by what the template puts between the messages. Sampled ids are kept, never made from text again.

    The template renders text, so that it may rewrite earlier turns (drop their thoughts, say). Whether it did is
    seen by comparing texts: what was said so far must begin what it renders now. White space that it trims off an
    answer is no rewriting.
    """

    def __init__(self, tokenizer: ChatTokenizer, opening: Sequence[Message]) -> None:
        self._tokenizer = tokenizer
        self._special = [
            token.content for token in tokenizer.tokenizer.get_added_tokens_decoder().values() if token.special
        ]
        self._messages = [self._plain(message.role, message.content) for message in opening]
        self._ids: tuple[int, ...] = ()
        self._seen = ""  # the text that the ids stand for, up to the last answer
        self._answer = ""
        self._ended = False  # did the last answer end with a stop token?

    def prompt(self) -> Prompt:
        """The prompt for the next turn."""
        text = self._tokenizer.render(self._messages, generate=True)
        glue = self._glue(text)
        extends = glue is not None or not self._ids
        new = self._tokenizer.encode(text if glue is None else glue)
        if glue is not None and self._ended and new and new[0] in self._tokenizer.stop_ids:
            new = new[1:]  # the answer brought it along
        context = tuple(new)
        return Prompt(self._ids + context if glue is not None else context, context, extends)

    def text_of(self, sampled_ids: Sequence[int]) -> str:
        """An answer as text, without the token that ended it."""
        ended = bool(sampled_ids) and sampled_ids[-1] in self._tokenizer.stop_ids
        return self._tokenizer.decode(sampled_ids[:-1] if ended else sampled_ids)

    def add(self, turn: Turn) -> None:
        """Append an answer and its observation."""
        before = self._ids if turn.extends else ()
        self._ids = before + turn.context_ids + turn.sampled_ids
        self._seen = self._tokenizer.render(self._messages, generate=True)
        self._answer = turn.text
        self._ended = bool(turn.sampled_ids) and turn.sampled_ids[-1] in self._tokenizer.stop_ids
        self._messages += [Message("assistant", turn.text), self._plain("user", turn.observation)]

    def _plain(self, role: str, content: str) -> Message:
        """Text from outside cannot end its own message: special tokens in it are split by a space."""
        for token in self._special:
            content = content.replace(token, f"{token[:1]} {token[1:]}")
        return Message(role, content)

    def _glue(self, text: str) -> str | None:
        """What the template adds after the last answer. None if it rewrote what went before, or nothing did."""
        if not self._ids:
            return None
        for answer in (self._answer, self._answer.rstrip(), self._answer.strip()):
            said = self._seen + answer
            if text.startswith(said):
                return text[len(said) :]
        return None
