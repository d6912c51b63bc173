"""Train drafters for the rule that will judge them: losses, and a loop around optax."""

from speculax.training import losses as losses
from speculax.training.fit import Fit as Fit, Schedule as Schedule, fit as fit
