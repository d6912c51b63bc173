"""The error of a model that cannot be loaded."""


class LoadError(ValueError):
    """A model cannot be loaded.

    The message is one sentence: what is wrong, then what to do.

    Attributes:
        problem: What is wrong, alone; no full stop.
        hint: What to do, alone; no full stop.
    """

    def __init__(self, problem: str, hint: str):
        super().__init__(f"{problem}; {hint}.")
        self.problem = problem
        self.hint = hint
