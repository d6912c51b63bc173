"""The models that come with the package: a small target and a smaller draft of one tokenizer.

Made by `examples/train_demo.py` from the source of Python's standard library; float16 in the files,
float32 in use.
"""

import json
from importlib import resources
from typing import Any

import jax.numpy as jnp

from speculax.models.config import DecoderConfig
from speculax.models.decoder import Decoder
from speculax.models.model import Model
from speculax.models.params import nested
from speculax.models.tokenizer import Tokenizer

NAMES = ("demo", "demo-draft")
_END_ID = 0  # starts and ends a text


def load_embedded(name: str) -> Model:
    """One of `NAMES`."""
    from safetensors import safe_open

    files = resources.files("speculax.models") / "weights"
    with (
        resources.as_file(files / f"{name}.safetensors") as path,
        safe_open(path, framework="numpy") as file,
    ):
        config = DecoderConfig.from_json(json.loads(file.metadata()["config"]))
        names = list(file.keys())
        tensors: dict[str, Any] = {
            name: jnp.asarray(file.get_tensor(name), jnp.float32) for name in names
        }
    return Model(
        network=Decoder(config),
        params=nested(tensors, config.num_layers),
        tokenizer=Tokenizer.from_json((files / "tokenizer.json").read_bytes(), _END_ID),
        eos_ids=(_END_ID,),
        name=name,
    )
