"""Numbers as JSON can say them."""

import math
from typing import Any


def finite(value: Any) -> Any:
    """The value, tuples and lists of them as lists; None for NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [finite(one) for one in value] if isinstance(value, tuple | list) else value
