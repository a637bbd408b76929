"""Skills as folders of the Agent Skills format, as people and attackers write them."""

import msgspec

from app.base.values import Json
from app.skills.folders import SkillFolder

RECORD = '''\
from datetime import date


def today() -> str:
    return date.today().isoformat()


def record_gift(person: str, amount: int) -> int:
    """Write a gift into the ledger."""
    return apis.ledger.add_entry(text=f"{person} {today()}", amount=amount)["id"]'''

MANIFEST: dict[str, Json] = {
    "operations": {
        "ledger.add_entry": {
            "method": "POST",
            "safe": False,
            "arguments": {"text": ["parameter"], "amount": ["parameter"]},
        }
    }
}


def skill_md(name: str, *lines: str, description: str = "Writes gifts down") -> str:
    return "\n".join(["---", f"name: {name}", f"description: {description}", *lines, "---", "", "# How", ""])


def folder(
    name: str = "record-gift", script: str | None = RECORD, *lines: str, path: str = "", md: str | None = None
) -> SkillFolder:
    """By default one that can be imported. `lines` are more of its front matter."""
    files = {"SKILL.md": skill_md(name, *lines) if md is None else md}
    if script is not None:
        files[path or f"scripts/{name.replace('-', '_')}.py"] = script
    return SkillFolder(name, files)


def metadata(**values: Json) -> list[str]:
    """Lines of the front matter with our metadata; what is no text becomes JSON."""
    texts = {
        key: each if isinstance(each, str) else msgspec.json.encode(each).decode() for key, each in values.items()
    }
    return ["metadata:", *(f"  sage-{key}: {msgspec.json.encode(text).decode()}" for key, text in texts.items())]
