"""Whether more requests come than a service can serve, told while it runs.

Of a queue that is stable the number who wait stays, of one that is not it grows as long as requests come, by the rate
that is too much. It is looked at twice: what came in between less what grew in between could be served.

Worked example. 60 requests came and 4 wait after 30 s, 120 came and 34 wait after 60 s: 2 a second come, 1 a second is
added to who waits, so 1 a second is stable.
"""

from __future__ import annotations

LOOKED_AT_S = 60.0  # the second look, after the first arrival
LEAST_WAITING, LEAST_SHARE = 10, 0.1  # below so many who wait, or so small a share of the rate, it is chance


class Saturation:
    """found: rate_per_s at which requests come, stable_per_s at which they could; None as long as the service keeps up.
    """

    def __init__(self) -> None:
        self.found: dict[str, float] | None = None
        self._before: tuple[float, int, int] | None = None

    def look(self, at_s: float, arrived: int, waiting: int) -> None:
        """So many have come so far, of whom so many have not been scheduled."""
        before, self._before = self._before, (at_s, arrived, waiting)
        if before is None or at_s <= before[0]:
            return
        span_s = at_s - before[0]
        rate, growth = (arrived - before[1]) / span_s, (waiting - before[2]) / span_s
        if waiting >= LEAST_WAITING and growth > LEAST_SHARE * rate > 0.0:
            self.found = {"rate_per_s": rate, "stable_per_s": max(rate - growth, 0.0)}

    @property
    def text(self) -> str:
        """For who watches."""
        assert self.found is not None
        return (f"{self.found['rate_per_s']:.3g} requests a second come, and those who wait are ever more: "
                f"{self.found['stable_per_s']:.3g} a second would be stable")
