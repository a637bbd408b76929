"""A word-level tokenizer for the seed policy: each word of the office is one token, and so are fixed pieces.

A small model learns to copy a value only if the value has the same tokens in prompt and code, so words include
no leading space and whole identifiers are tokens. Other text falls back to characters, and outside ASCII to
bytes, so every text survives a round trip. Fixed pieces of code and prose make turns short.
"""

import json
import string
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL = (PAD, USER, ASSISTANT, END)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_PROSE = (
    "skills:\n",
    " -> int",
    " every one of my ",
    "how many ",
    "count my ",
    "what is the number of ",
    "what is the total ",
    "add up the ",
    "sum the ",
    "please ",
    " the one ",
    " only the ",
    " one of my ",
    " of my ",
    " of all ",
    " of the ",
    " do i have",
    " from my ",
    " from ",
    " in ",
    " with ",
    " over ",
    " all ",
    " the ",
)

_DOCUMENTS = (
    "(password) -> access_token: log in",
    "(access_token, page) -> id, ",
    "(access_token, id) -> id, ",
    "(access_token, group) -> ",
    "(access_token, id)",
    ": list ",
    ": list the members of one group",
    ": show one ",
    ": unlock one ",
    ", pages start at ",
    ", needs ",
    " first",
    " one ",
    ": ",
    ", ",
)

_CODE = (
    "\n```python\n",
    "\n```",
    '\nprint(apis.api_docs.show_signatures("',
    'print(apis.api_docs.show_signatures("',
    '"))',
    "apis.supervisor.complete_task(",
    "answer=result",
    "def ",
    "_by_",
    "(name: str)",
    "(label: str)",
    "(group: str)",
    "(limit: int)",
    ":\n    token = apis.",
    "\n    token = apis.",
    "token = apis.",
    '(password=apis.supervisor.show_passwords()["',
    '"])["access_token"]',
    'members = [row["',
    '"] for row in apis.contacts.',
    "(access_token=token, group=group)]",
    '"] in members:',
    '"] == name:',
    '"] == label:',
    '"] > limit:',
    *(f"\n    {name} = 0" for name in ("done", "count", "total", "best", "most")),
    "page = ",
    "while rows := apis.",
    "(access_token=token, page=page):",
    "for row in rows:",
    "row = apis.",
    '(access_token=token, id=row["id"])',
    "(access_token=token, id=best)",
    'if row["',
    '"] > most:',
    'most = row["',
    'best = row["id"]',
    *(f"{name} += 1" for name in ("done", "count", "page")),
    'total += row["',
    '"]',
    *(f"return {name}\n" for name in ("done", "count", "total", "best")),
    "result = ",
    "\nprint(result)",
    *("\n" + " " * (4 * depth) for depth in range(1, 6)),
    'name = "',
    'label = "',
    'group = "',
    "limit = ",
    '("',
    '")',
    "apis.",
)

PIECES = (*_PROSE, *_DOCUMENTS, *_CODE)


def build_tokenizer(pieces: Iterable[str]) -> Tokenizer:
    """A tokenizer that splits text into as few of these pieces as possible.

    It is a unigram model with equal scores; single characters score lower than any word, and bytes lower still.
    """
    words = sorted({piece for piece in pieces if len(piece) > 1}, key=lambda piece: (len(piece), piece))
    characters = sorted({*string.printable[:95], "\n", *(str(digit) for digit in range(10))})
    vocabulary = [(token, 0.0) for token in SPECIAL]
    vocabulary += [(word, -1.0) for word in words]
    vocabulary += [(character, -1.5) for character in characters]
    vocabulary += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path, max_length: int) -> None:
    """Write the files that transformers, vLLM and this project's own loader read."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
