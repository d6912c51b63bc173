"""Noise that is a function of seed, position and token, whatever else is computed.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", 2011): a hash, so that any piece of a row of noise can be made alone.
"""

import jax
import jax.numpy as jnp

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA


def gumbel(seed: jax.Array, position: jax.Array, tokens: jax.Array) -> jax.Array:
    """Standard Gumbel noise float32 for `tokens` int32 (size,).

    Made from 64 random bits a token: noise of 32 bits has ties, and an end, that rows of 100,000
    tokens reach.
    """
    high, low = threefry(seed, position, tokens.astype(jnp.uint32), jnp.uint32(0))
    uniform = (high.astype(jnp.float32) + low.astype(jnp.float32) * 2.0**-32) * 2.0**-32
    # Where the exponential is small, and the noise large, the uniform is exact to 24 bits.
    uniform = jnp.clip(uniform, 2.0**-64, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform))


def threefry(
    key_0: jax.Array, key_1: jax.Array, counter_0: jax.Array, counter_1: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Two uint32 numbers for each pair of counters uint32, under a key of two uint32.

    A counter may be one number for all.
    """
    keys = (key_0, key_1, key_0 ^ key_1 ^ jnp.uint32(PARITY))
    x, y = counter_0 + keys[0], counter_1 + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x += y
            y = x ^ ((y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation)))
        x += keys[(group + 1) % 3]
        y += keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y
