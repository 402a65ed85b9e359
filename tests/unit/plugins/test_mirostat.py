"""The sampler plugin `mirostat`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink_persistent import _native
from blink_persistent.engines import Sampler
from blink_persistent.samplers.default import DefaultSampler
from blink_persistent.samplers.source import SourceSampler
from blink_persistent.testing.sampling_bench import ROWS, SamplingBench, random_logits
from blink_server.errors import EngineFailure
from blink_server.plugins import load_plugins
from blink_server.testing import SamplerContract

PLUGINS = Path(__file__).parents[3] / "plugins"


def mirostat(**options: float) -> SourceSampler:
    made: SourceSampler = load_plugins([PLUGINS]).samplers["mirostat"](options)
    return made


class TestMirostat(SamplerContract):
    @pytest.fixture
    def sampler(self) -> Sampler:
        return mirostat(tau=5.0, eta=0.1)


class TestDefault(SamplerContract):
    @pytest.fixture
    def sampler(self) -> Sampler:
        return DefaultSampler()


def reference(logits: Any, mu: float, tau: float, eta: float, uniform: float) -> tuple[int, float]:
    """Algorithm 2 of arXiv 2007.14966, plainly: a token and the next mu."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    surprises = -np.log2(weights / weights.sum())
    kept = np.where(surprises <= max(mu, surprises.min()), weights, 0.0)
    token = int(np.searchsorted(np.cumsum(kept), uniform * kept.sum(), side="right"))
    surprise = -np.log2(kept[token] / kept.sum())
    return token, mu - eta * (surprise - tau)


def test_it_is_the_paper_s_algorithm() -> None:
    tau, bench = 3.0, SamplingBench()
    sampling = bench.bind(mirostat(tau=tau, eta=0.1))
    bench.ask()
    mus = [2 * tau] * ROWS
    for step in range(40):
        logits = random_logits(step)
        bench.rows["position"] = step
        found = bench.sample(sampling, logits)
        for row in range(ROWS):
            uniform = _native.uniform_at(int(bench.rows["seed"][row]), step)
            token, mus[row] = reference(logits[row], mus[row], tau, 0.1, uniform)
            assert found[row] == token
            kept = bench.rows["kept"].view(np.float32)[row]
            assert kept == pytest.approx(mus[row], abs=1e-3)


def test_what_does_not_compile_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.h"
    file.write_text(
        "template <class Block>\n"
        "BLINK_DEV int32_t choose(blink::Choice<Block>& choice) {\n"
        "    return nonsense;\n"
        "}\n"
    )
    with pytest.raises(EngineFailure, match=r"broken\.h:3"):
        SamplingBench().bind(SourceSampler(file, {}))


@pytest.mark.parametrize("options", [{"no name": 1}, {"x": "text"}, {"x": float("inf")}])
def test_options_that_are_no_constants_are_refused(tmp_path: Path, options: Any) -> None:
    with pytest.raises(ValueError, match="sampler_options"):
        SourceSampler(tmp_path / "x.h", options)


def test_a_machine_without_a_compiler_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineFailure, match=r"needs a C\+\+ compiler .* install g\+\+"):
        SamplingBench().bind(mirostat(tau=5.0, eta=0.1))
