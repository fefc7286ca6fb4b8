"""How much a loss is multiplied by, so that small gradients survive in float16."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class LossScale:
    """The rule by which a loss scale changes; the defaults are those of ``torch.amp.GradScaler``.

    Attributes:
        initial: the scale to begin with.
        growth: what it is multiplied by after ``interval`` good updates in a row.
        backoff: what it is multiplied by after an update whose gradient is not finite.
        interval: see ``growth``.

    Raises:
        ValueError: a number that would make the scale, or a change of it, meaningless.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        if not (0 < self.initial < float("inf") and self.growth >= 1 and 0 < self.backoff <= 1):
            raise ValueError(
                f"{self}: a loss scale is a number above 0, grows by at least 1 and backs off by "
                f"at most 1"
            )
        if self.interval < 1:
            raise ValueError(f"{self}: interval must be at least 1 update")

    @classmethod
    def of(cls, value: "float | str | LossScale | None") -> Self | None:
        """Return what a user's ``loss_scale`` means.

        Args:
            value: a number that stays as it is, "dynamic" for the defaults, a rule, or None.

        Raises:
            ValueError: it is none of these.
        """
        if value is None or isinstance(value, cls):
            return value
        if value == "dynamic":
            return cls()
        if isinstance(value, (int, float)):
            return cls(float(value), growth=1.0, backoff=1.0)
        raise ValueError(
            f"loss_scale must be a number, 'dynamic', a pipekit.LossScale or None, not {value!r}"
        )
