"""How long prompts and answers are, in tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blink_server.errors import BlinkError

MOST = 2**20
_FORMS = "fixed:N, uniform:MEAN:SPREAD (0.3 is 30 %), lognormal:MEDIAN:SIGMA"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of whole numbers from 1 to `MOST`.

    fixed: always `centre`. uniform: every whole number within `centre` * (1 - spread) and
    `centre` * (1 + spread), alike. lognormal: e ** normal(ln `centre`, spread), rounded.
    """

    kind: str
    centre: float
    spread: float = 0.0

    def draw(self, count: int, random: np.random.Generator) -> list[int]:
        """`count` independent lengths."""
        match self.kind:
            case "fixed":
                values = np.full(count, self.centre)
            case "uniform":
                low = np.floor(self.centre * (1 - self.spread))
                high = np.ceil(self.centre * (1 + self.spread))
                values = random.integers(int(low), int(high), count, endpoint=True)
            case _:
                values = np.rint(random.lognormal(np.log(self.centre), self.spread, count))
        drawn: list[int] = np.clip(values, 1, MOST).astype(int).tolist()
        return drawn

    def __str__(self) -> str:
        tail = "" if self.kind == "fixed" else f":{self.spread:g}"
        return f"{self.kind}:{self.centre:g}{tail}"


def parse_lengths(text: str) -> Lengths:
    """Read `fixed:N` (or a bare N), `uniform:MEAN:SPREAD`, `lognormal:MEDIAN:SIGMA`.

    Raises BlinkError.
    """
    kind, *numbers = text.split(":") if ":" in text else ("fixed", text)
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    wanted = {"fixed": 1, "uniform": 2, "lognormal": 2}.get(kind)
    if len(values) != wanted or not all(map(np.isfinite, values)) or values[0] < 1:
        raise BlinkError(f"the lengths {text!r} are none of {_FORMS}, with N, MEAN, MEDIAN >= 1")
    lengths = Lengths(kind, values[0], values[1] if len(values) > 1 else 0.0)
    if lengths.spread < 0 or (kind == "uniform" and lengths.spread > 1):
        raise BlinkError(f"the lengths {text!r}: a spread is 0 to 1, a sigma 0 or more")
    return lengths
