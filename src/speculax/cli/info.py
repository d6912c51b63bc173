"""`speculax info`: devices, versions and cached models."""

import json
import platform
from importlib.metadata import version
from typing import Annotated

import jax
import typer

from speculax.cli.errors import reported
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
    if as_json:
        shown = {
            "versions": versions,
            "devices": devices,
            "cache": {"directory": str(cache_directory()), "model_bytes": models},
        }
        print(json.dumps(shown))
        return

    for name, number in versions.items():
        print(f"{name:<10}{number}")
    print(f"{'devices':<10}{', '.join(devices)}")
    print(f"{'cache':<10}{cache_directory()}")
    for name, size in models.items():
        print(f"{'':<10}{name}: {size / 1e6:,.0f} MB")
    if not models:
        print(f"{'':<10}no models yet")


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
