"""An app without its schemas, from what is known of one whose document was read in another process. Pure."""

from collections.abc import Mapping

from app.apis.app_view import OperationTraits
from app.apis.catalog import App, Operation, Parameter


def outline(name: str, traits: Mapping[str, OperationTraits]) -> App:
    """Enough to check names, methods and arguments by; no call can be made with it."""
    operations = {each: _operation(name, each, known) for each, known in traits.items()}
    return App(name=name, description="", server="", variables={}, operations=operations, digest="")


def _operation(app: str, name: str, traits: OperationTraits) -> Operation:
    return Operation(
        app=app,
        name=name,
        method=traits.method,
        path="",
        summary="",
        declared_safe=traits.safe,
        parameters=tuple(
            Parameter(name=each, wire_name=each, place="body", required=each in traits.required, schema={})
            for each in traits.arguments
        ),
    )
