"""What the custom resources of routers require: fields, types and values, as their definitions have them.

Sources: gateway-api-inference-extension 1.4, AIBrix 0.8, vLLM production-stack (operator, v1alpha1). Fields that a
definition does not have are errors here, since Kubernetes drops them.
"""

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NAME: Schema = {
    "type": "string",
    "maxLength": 253,
    "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}
_LABEL_VALUE: Schema = {
    "type": "string",
    "maxLength": 63,
    "pattern": r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
}
_LABELS: Schema = {"type": "object", "additionalProperties": _LABEL_VALUE}


def _of(fields: Schema, *required: str) -> Schema:
    return {"type": "object", "properties": fields, "required": [*required], "additionalProperties": False}


def _resource(api: str, kind: str, spec: Schema) -> Schema:
    metadata = _of({"name": _NAME, "namespace": _NAME, "labels": _LABELS}, "name")
    fields = {"apiVersion": {"const": api}, "kind": {"const": kind}, "metadata": metadata, "spec": spec}
    return _of(fields, "apiVersion", "kind", "metadata", "spec")


_TARGET = _of(
    {"modelRewrite": _TEXT, "weight": {"type": "integer", "minimum": 1, "maximum": 1_000_000}}, "modelRewrite"
)
_MATCH = _of(
    {"model": _of({"type": {"enum": ["Exact"]}, "value": {"type": "string", "minLength": 1}}, "value")}, "model"
)
_RULE = _of(
    {
        "matches": {"type": "array", "items": _MATCH},
        "targets": {"type": "array", "items": _TARGET, "minItems": 1},
    }
)
_POOL = _of({"group": _NAME, "kind": {"type": "string", "maxLength": 63}, "name": _NAME}, "name")

CRD_SCHEMAS: dict[str, Schema] = {
    "InferenceModelRewrite": _resource(
        "inference.networking.x-k8s.io/v1alpha2",
        "InferenceModelRewrite",
        _of({"poolRef": _POOL, "rules": {"type": "array", "items": _RULE}}, "poolRef", "rules"),
    ),
    "ModelAdapter": _resource(
        "model.aibrix.ai/v1alpha1",
        "ModelAdapter",
        _of(
            {
                "artifactURL": _TEXT,
                "baseModel": _TEXT,
                "podSelector": _of({"matchLabels": _LABELS}),
                "replicas": {"type": "integer"},
                "schedulerName": _TEXT,
                "additionalConfig": _LABELS,
            },
            "artifactURL",
            "podSelector",
        ),
    ),
    "LoraAdapter": _resource(
        "production-stack.vllm.ai/v1alpha1",
        "LoraAdapter",
        _of(
            {
                "baseModel": _TEXT,
                "adapterSource": _of(
                    {
                        "type": {"enum": ["local", "s3", "http", "huggingface"]},
                        "adapterName": _TEXT,
                        "adapterPath": _TEXT,
                        "repository": _TEXT,
                    },
                    "adapterName",
                    "type",
                ),
                "loraAdapterDeploymentConfig": _of(
                    {"algorithm": {"enum": ["default", "ordered", "equalized"]}, "replicas": {"type": "integer"}},
                    "algorithm",
                ),
            },
            "adapterSource",
            "baseModel",
        ),
    ),
}
