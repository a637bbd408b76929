"""Tokenizes text and renders the model's own chat template, without torch or transformers; and the tags between
which models think before they answer. Nothing in a thought is done.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import jinja2
import msgspec
import yaml
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from app.base.errors import ModelError, first_line
from app.base.values import Json

_TAGS = {
    "<think>": "</think>",  # Qwen3, QwQ, DeepSeek-R1, SmolLM3, GLM and most others
    "[THINK]": "[/THINK]",  # Magistral
    "<seed:think>": "</seed:think>",
    "◁think▷": "◁/think▷",  # Kimi
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command A
}
_CLOSED = "|".join(f"{re.escape(begin)}.*?{re.escape(end)}" for begin, end in _TAGS.items())
_BEGIN = "|".join(map(re.escape, _TAGS))
_OPENED = re.compile(rf"({_BEGIN})\s*\Z")

CLOSED_THOUGHT = rf"(?:{_CLOSED})"
OPEN_THOUGHT = rf"(?:{_BEGIN}).*\Z"
"""Patterns, with `re.DOTALL`. What is no closed thought may be an open one, which has no end."""

NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TEMPLATE_ERRORS = (  # a template is a program
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_PROBE = "probe"  # an answer, after which the template puts the end of a turn


def opened_thought(prompt: str) -> str:
    """The tag by which the template opens a thought in the prompt, for the model to go on with; "" if it does not.

    >>> opened_thought("<|im_start|>assistant\\n<think>\\n")
    '<think>\\n'
    """
    opened = _OPENED.search(prompt)
    return opened.group() if opened else ""


def end_of(opened: str) -> str:
    """The tag that ends what `opened_thought` found."""
    return _TAGS[opened.rstrip()]


def after_thought(prompt: str, answer: str) -> str:
    """An answer that the model itself did not write, for a prompt that may have opened a thought: it ends the
    thought, and does not open it again.

    >>> after_thought("assistant\\n<think>\\n", "I look.")
    '</think>\\n\\nI look.'
    >>> after_thought("assistant\\n<think>\\n", "<think>\\nHm.\\n</think>\\n\\nI look.")
    'Hm.\\n</think>\\n\\nI look.'
    """
    opened = opened_thought(prompt)
    if not opened:
        return answer
    if answer.lstrip().startswith(opened.rstrip()):
        return answer.lstrip().removeprefix(opened.rstrip()).lstrip("\n")
    return answer if end_of(opened) in answer else f"{end_of(opened)}\n\n{answer}"


class Message(msgspec.Struct, frozen=True):
    role: str  # system, user, assistant, ...: any that the template supports
    content: str


class ChatTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """The tokenizer and chat template of a model directory. Its ids are those of transformers' tokenizer."""

    tokenizer: Tokenizer
    template: jinja2.Template
    source: str  # of the template
    variables: dict[str, Json]  # of the template in all prompts: bos_token, eos_token, ..., and those given
    eos_ids: tuple[int, ...]  # generation ends after any of these, regardless of the request
    stop_ids: tuple[int, ...]  # these, and the end of a chat turn
    max_length: int  # positions of the model
    vocab_size: int
    card: dict[str, Json]  # the YAML front matter of README.md

    @classmethod
    def load(cls, model_dir: Path, template_kwargs: Mapping[str, Json] | None = None) -> Self:
        """Load without the weights; `template_kwargs` are variables of the chat template, such as enable_thinking.

        Raises ModelError that names the file that is missing or does not parse.
        """
        config = read_json(model_dir, "config.json")
        options = read_json(model_dir, "tokenizer_config.json")
        tokenizer = _tokenizer(model_dir)
        special = {name: text for name in _SPECIAL if (text := _token_text(options.get(name)))}
        source = _template_source(model_dir, options)
        template = _template(model_dir, source)
        variables: dict[str, Json] = {**special, **(template_kwargs or {})}
        shape = config.get("text_config", config)
        eos = {*_eos_ids(model_dir, config), *_ids(tokenizer, [special.get("eos_token", "")])}
        return cls(
            tokenizer=tokenizer,
            template=template,
            source=source,
            variables=variables,
            eos_ids=tuple(sorted(eos)),
            stop_ids=tuple(sorted(eos | _turn_end(tokenizer, template, variables))),
            max_length=_number(model_dir, shape, "max_position_embeddings"),
            vocab_size=_number(model_dir, shape, "vocab_size"),
            card=read_card(model_dir),
        )

    def encode(self, text: str) -> list[int]:
        """Special tokens in the text become their ids; none are added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens stay visible."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def has_ended(self, sampled_ids: Sequence[int]) -> bool:
        """Whether an answer ended with a stop token."""
        return bool(sampled_ids) and sampled_ids[-1] in self.stop_ids

    def text_of(self, sampled_ids: Sequence[int]) -> str:
        """An answer as text, without its stop token."""
        return self.decode(sampled_ids[:-1] if self.has_ended(sampled_ids) else sampled_ids)

    def is_text_of(self, text: str, sampled_ids: Sequence[int]) -> bool:
        """Whether the ids are those of the text. Another model's, which has another vocabulary, are not."""
        return self.text_of(sampled_ids) == text

    def render(self, messages: Sequence[Message], *, generate: bool) -> str:
        """The conversation in the model's format; `generate` opens the assistant's next turn.

        Raises ModelError if the template rejects the messages.
        """
        return _render(self.template, self.variables, messages, generate=generate)


def read_json(model_dir: Path, name: str) -> dict[str, Any]:
    path = model_dir / name
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise _missing(model_dir, name) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}). Copy the model directory again.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object. Copy the model directory again.")
    return value


def read_card(directory: Path) -> dict[str, Json]:
    """The front matter of README.md; empty without one. Raises ModelError."""
    path = directory / "README.md"
    if not path.is_file():
        return {}
    text = path.read_text("utf-8", errors="replace")
    if not text.startswith("---\n"):
        return {}
    try:
        card = yaml.safe_load(text[4:].partition("\n---")[0])
    except yaml.YAMLError as error:
        raise ModelError(f"the front matter of {path} is not YAML: {error}") from error
    return card if isinstance(card, dict) else {}


def _missing(model_dir: Path, name: str) -> ModelError:
    return ModelError(
        f"{model_dir} has no {name}. A model directory needs {', '.join(NEEDED)} and a chat template: "
        "name another directory, or put the file there."
    )


def _tokenizer(model_dir: Path) -> Tokenizer:
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise _missing(model_dir, path.name)
    text = path.read_text("utf-8", errors="replace")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{path} is not a tokenizer file: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _template_source(model_dir: Path, options: Mapping[str, Any]) -> str:
    path = model_dir / "chat_template.jinja"
    try:
        source = path.read_text("utf-8") if path.is_file() else options.get("chat_template")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8 at byte {error.start}. Copy the model directory again.") from error
    if isinstance(source, list):  # several, by name
        source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
    if not isinstance(source, str):
        raise _missing(model_dir, path.name)
    return source


def _template(model_dir: Path, source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise ModelError(f"the chat template in {model_dir} does not compile: {error}") from error


class _Generation(Extension):
    """`{% generation %}` marks text of the assistant. It renders as its body."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return str(caller())


def _environment() -> ImmutableSandboxedEnvironment:
    """Templates come with model files, so they run sandboxed, with the globals that transformers provides."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _render(
    template: jinja2.Template, variables: Mapping[str, Json], messages: Sequence[Message], *, generate: bool
) -> str:
    chat = [{"role": message.role, "content": message.content} for message in messages]
    try:
        return template.render(
            messages=chat, tools=None, documents=None, add_generation_prompt=generate, **variables
        )
    except _TEMPLATE_ERRORS as error:
        raise ModelError(f"the model's chat template rejects these messages: {first_line(error)}") from error


def _token_text(token: Any) -> str:
    """A special token is configured as text, or as a dict with its content."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _eos_ids(model_dir: Path, config: Mapping[str, Any]) -> set[int]:
    sources = [config, config.get("text_config", {})]
    if (model_dir / "generation_config.json").is_file():
        sources.append(read_json(model_dir, "generation_config.json"))
    eos_ids: set[int] = set()
    for source in sources:
        eos = source.get("eos_token_id")
        eos_ids.update(eos if isinstance(eos, list) else [] if eos is None else [eos])
    return eos_ids


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> set[int]:
    return {number for text in texts if text and (number := tokenizer.token_to_id(text)) is not None}


def _turn_end(tokenizer: Tokenizer, template: jinja2.Template, variables: Mapping[str, Json]) -> set[int]:
    """The special token that the template puts after an answer. Not every model has it as its eos."""
    messages = [Message("user", "?"), Message("assistant", _PROBE)]
    tail = _render(template, variables, messages, generate=False).rpartition(_PROBE)[2].lstrip()
    ids: list[int] = tokenizer.encode(tail, add_special_tokens=False).ids
    added = tokenizer.get_added_tokens_decoder()
    return {ids[0]} if ids and ids[0] in added and added[ids[0]].special else set()


def _number(model_dir: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int):
        raise ModelError(f"{model_dir / 'config.json'} does not set {name}. Add it to the file.")
    return value
