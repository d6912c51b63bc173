"""Small models in a file of their own: the pair that comes with the package, and others like it.

Made by `examples/train_demo.py`: weights in float16, float32 in use, and a tokenizer beside them.
"""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from speculax.models.config import DecoderConfig
from speculax.models.decoder import Decoder
from speculax.models.errors import LoadError
from speculax.models.model import Model
from speculax.models.params import nested
from speculax.models.tokenizer import Tokenizer

NAMES = ("demo", "demo-draft")
_END_ID = 0  # starts and ends a text


def load_embedded(name: str) -> Model:
    """One of `NAMES`."""
    with resources.as_file(resources.files("speculax.models") / "weights") as directory:
        return load_small(directory / f"{name}.safetensors")


def load_small(path: Path) -> Model:
    """The model in a file of weights, with `tokenizer.json` beside it.

    Raises:
        LoadError: If there are no such files, or they are others.
    """
    from safetensors import SafetensorError, safe_open

    hint = "it takes what examples/train_demo.py writes, with its tokenizer.json beside it"
    try:
        with safe_open(path, framework="numpy") as file:
            config = DecoderConfig.from_json(json.loads((file.metadata() or {})["config"]))
            names = list(file.keys())
            tensors: dict[str, Any] = {
                name: jnp.asarray(file.get_tensor(name), jnp.float32) for name in names
            }
        tokenizer = (path.parent / "tokenizer.json").read_bytes()
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise LoadError(
            f"{path} is not a file of weights with their configuration", hint
        ) from error
    except OSError as error:
        raise LoadError(f"{error.filename or path} cannot be read", hint) from error
    return Model(
        network=Decoder(config),
        params=nested(tensors, config.num_layers),
        tokenizer=Tokenizer.from_json(tokenizer, _END_ID),
        eos_ids=(_END_ID,),
        name=path.stem,
    )
