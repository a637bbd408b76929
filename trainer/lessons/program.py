"""A program that solves tasks of one form: a typed function, and a call of it. Pure."""

import msgspec


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Code for one form of task; `values` are Python expressions, in the order of the parameters."""

    name: str
    parameters: tuple[tuple[str, str], ...]  # name and type
    returns: str
    body: tuple[str, ...]
    result: str  # an expression

    @property
    def function(self) -> str:
        """A skill."""
        given = ", ".join(f"{name}: {kind}" for name, kind in self.parameters)
        lines = [f"def {self.name}({given}) -> {self.returns}:", *indent([*self.body, f"return {self.result}"])]
        return "\n".join([*self._imports, *lines])

    def call(self, values: tuple[str, ...]) -> str:
        return f"result = {self.name}({', '.join(values)})\nprint(result)"

    def inline(self, values: tuple[str, ...]) -> str:
        """The same without a function: it solves one task and leaves no skill."""
        given = [f"{name} = {value}" for (name, _), value in zip(self.parameters, values, strict=True)]
        return "\n".join([*self._imports, *given, *self.body, f"result = {self.result}", "print(result)"])

    @property
    def _imports(self) -> list[str]:
        return ["import time", ""] if any("time.sleep" in line for line in self.body) else []


def indent(lines: list[str], levels: int = 1) -> list[str]:
    return ["    " * levels + line for line in lines]
