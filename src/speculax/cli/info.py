"""`speculax info`: devices, versions and cached models."""

import json
import platform
from importlib.metadata import version
from typing import Annotated, Any

import jax
import typer

from speculax.cli.errors import reported, writing
from speculax.models.load import cache_directory


@reported
def info(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else.")
    ] = False,
) -> None:
    """Show devices, versions and cached models."""
    versions = {name: version(name) for name in ("speculax", "jax", "jaxlib", "numpy")}
    versions["python"] = platform.python_version()
    devices = [f"{device} ({device.device_kind})" for device in jax.devices()]
    models = _cached_models()
    shown = {
        "versions": versions,
        "devices": devices,
        "cache": {"directory": str(cache_directory()), "model_bytes": models},
    }
    with writing():
        print(json.dumps(shown) if as_json else _as_text(shown))


def _as_text(shown: dict[str, Any]) -> str:
    lines = [f"{name:<10}{number}" for name, number in shown["versions"].items()]
    lines.append(f"{'devices':<10}{', '.join(shown['devices'])}")
    lines.append(f"{'cache':<10}{shown['cache']['directory']}")
    models = shown["cache"]["model_bytes"]
    lines += [f"{'':<10}{name}: {size / 1e6:,.0f} MB" for name, size in models.items()]
    return "\n".join(lines if models else [*lines, f"{'':<10}no models yet"])


def _cached_models() -> dict[str, int]:
    """Bytes on disk of each converted model, by the name of its directory."""
    directories = sorted(
        path.parent
        for path in cache_directory().glob("*/model.safetensors")
        if path.parent.suffix != ".tmp"  # a conversion under way
    )
    return {
        directory.name: sum(file.stat().st_size for file in directory.iterdir())
        for directory in directories
    }
