"""The card that comes with the bundled adapter is what the code writes, up to the part written by hand."""

import re
from pathlib import Path

import msgspec

from app.base.model_catalog import DEFAULT_MODEL
from trainer.worlds.base_adapter.bootstrap import AdapterOrigin, adapter_card
from trainer.worlds.base_adapter.training import CurvePoint
from trainer.worlds.recipes import AdapterRecipe

CARD = Path(__file__).parents[2] / "app" / "releases" / "bundled" / DEFAULT_MODEL / "README.md"
BUILT = re.compile(
    r"Built with `(.*)` at commit (\w+), by (\d+) processes in \d+ CPU minutes of training(?:, each on (.*))?\.\n"
)


def test_the_card_is_what_the_code_writes() -> None:
    written = CARD.read_text().partition("## Written by hand")[0]
    recipe = msgspec.json.decode(found(r"Recipe: `(.*)`", written), type=AdapterRecipe)
    built = BUILT.search(written)
    assert built
    origin = AdapterOrigin(
        command=built[1],
        commit=built[2],
        processes=int(built[3]),
        hash=found(r"content hash `(\w+)`", written),
        demonstrations={row[0]: number(row[-1]) for row in rows(written, "## Data")},
        dropped={},
        recipe=recipe,
    )
    curve = [point(row, built[4] or "") for row in rows(written, "## Learning curve")]
    assert adapter_card(origin, curve, {}).partition("## Evaluation")[0] == written
    on_gpu = [msgspec.structs.replace(each, device="one GPU") for each in curve]
    assert found(r"each on (.*)\.\n", adapter_card(origin, on_gpu, {})) == "one GPU"


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match
    return match[1]


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    lines = [
        line for line in text.partition(heading)[2].partition("\n## ")[0].splitlines() if line.startswith("|")
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def point(cells: list[str], device: str) -> CurvePoint:
    step, examples, tokens, learned = map(number, cells[:4])
    minutes, loss, held_out = map(float, cells[4:])
    return CurvePoint(
        step=step,
        examples=examples,
        tokens=tokens,
        learned_tokens=learned,
        cpu_minutes=minutes,
        loss=loss,
        held_out_loss=held_out,
        adapter="",
        device=device,
    )
