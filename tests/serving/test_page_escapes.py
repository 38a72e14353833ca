"""No text of a service becomes markup on its page: not of its name, nor of what a folder of it was changed to say."""

from __future__ import annotations

from typing import Any

import pytest

from simulator import np
from simulator.observe.page.document import document
from simulator.serving.files import REQUESTS, STEP_COLUMNS
from simulator.serving.kept_result import KeptService
from simulator.serving.page import service_page
from tests.serving.test_kept_result import EXPORTED, TIMES, changed

EVIL = "\"'></script><script>alert(1)</script><img src=x onerror=alert(1)>$x${x}"


def service(export: dict[str, Any]) -> KeptService:
    """Of one request and one step."""
    tables = [{name: np.array(["e"], dtype=object) if kind == "text" else np.ones(1) for name, (kind, _) in one.items()}
              for one in (REQUESTS, STEP_COLUMNS)]  # fmt: skip
    return KeptService(export, tables[0], tables[1])


@pytest.mark.parametrize(("key", "value"), [
    ("input_config", {"service": EVIL, "title": EVIL, "version": EVIL, "seed": EVIL, EVIL: EVIL,
                      "settings": {EVIL: EVIL, "a": [EVIL]}}),
    ("time_to_first_token", TIMES | {"unit": EVIL}), ("braid.goodput", {EVIL: 1.0}), ("braid.steady_state.why", EVIL),
    ("braid.over_time", {"start_s": [0.0], EVIL: [1.0]}),
    ("braid.whole.waits", {EVIL: {"mean_s": 1.0, "p99_s": 1.0, "share": 1.0}}),
])  # fmt: skip
def test_texts_of_a_service_are_texts_on_its_page(key: str, value: Any) -> None:
    evil = service(changed(key, value))
    for services in ([evil], [evil, service(EXPORTED)]):
        text = document(service_page(services), "/* plotly */")
        assert "<script>alert" not in text
        assert "<img" not in text
