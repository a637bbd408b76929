"""In the place of the model servers: remembers what it loads, or refuses."""

from app.errors import AppError


class Loads:
    def __init__(self) -> None:
        self.models: list[str] = []
        self.refusal: AppError | None = None

    async def load(self, model: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.models.append(model)
