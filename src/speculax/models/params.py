"""The decoder's parameters by name, as files have them, and nested, as the decoder takes them."""

from typing import Any


def nested(tensors: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """From names such as `layers.3.qkv`."""
    params: dict[str, Any] = {"layers": [{} for _ in range(num_layers)]}
    for name, array in tensors.items():
        if name.startswith("layers."):
            _, layer, kind = name.split(".")
            params["layers"][int(layer)][kind] = array
        else:
            params[name] = array
    return params


def flat(params: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `nested`."""
    tensors = {name: array for name, array in params.items() if name != "layers"}
    for i, layer in enumerate(params["layers"]):
        tensors |= {f"layers.{i}.{kind}": array for kind, array in layer.items()}
    return tensors
