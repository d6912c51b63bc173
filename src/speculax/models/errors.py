"""The error of a model that cannot be loaded."""


class LoadError(ValueError):
    """A model cannot be loaded.

    The message is one sentence: what is wrong, then what to do.

    Attributes:
        hint: What to do, alone; no full stop.
    """

    def __init__(self, problem: str, hint: str):
        super().__init__(f"{problem}; {hint}.")
        self.hint = hint
