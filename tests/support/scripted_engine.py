"""An engine with scripted answers, and a tokenizer with one token per byte. No torch."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from app.base.errors import EngineError, EngineRefusalError
from app.engine.protocol import Completion, Sampling
from app.engine.tokenizer import ChatTokenizer

END = "<|im_end|>"
CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def byte_tokenizer(directory: Path, *, template: str = CHATML, max_length: int = 32_768) -> ChatTokenizer:
    """The tokenizer of a model directory without weights."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", END])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"max_position_embeddings": max_length, "vocab_size": len(alphabet) + 2}
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}), "utf-8")
    (directory / "chat_template.jinja").write_text(template, "utf-8")
    return ChatTokenizer.load(directory)


def block(code: str) -> str:
    """An answer that runs this code."""
    return f"So be it.\n```python\n{code}\n```"


Answer = str | EngineError
Script = Callable[[str, int], Answer]
"""Maps the prompt as text and the number of turns so far to the next answer."""


class ScriptedEngine:
    """Fulfils `Engine`. Returns the given answers one by one, or those of the given function."""

    def __init__(self, tokenizer: ChatTokenizer, *answers: Answer, script: Script | None = None) -> None:
        self.prompts: list[str] = []
        self.samplings: list[Sampling] = []
        self.models: list[str] = []
        self._tokenizer = tokenizer
        self._answers = list(answers)
        self._script = script

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        prompt = self._tokenizer.decode(prompt_ids)
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        self.models.append(model)
        answer = await self._next(prompt)
        if isinstance(answer, EngineError):
            raise answer
        ids = tuple(self._tokenizer.encode(answer + END))
        finish = "stop" if len(ids) <= sampling.max_tokens else "length"
        ids = ids[: sampling.max_tokens]
        return Completion(ids, tuple(-0.5 for _ in ids), finish)

    async def _next(self, prompt: str) -> Answer:
        if self._script is not None:
            return self._script(prompt, prompt.count("<|im_start|>assistant") - 1)
        if not self._answers:
            return EngineRefusalError("the script has no more answers")  # others are tried again for ever
        return self._answers.pop(0)
