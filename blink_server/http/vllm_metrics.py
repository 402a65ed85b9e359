"""Metrics of requests under vLLM's names, which its dashboards and autoscalers read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from blink_server.backend import RequestTiming
from blink_server.finished_request import FinishedRequest
from blink_server.http.gap_histogram import GapHistogram

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
_CHOICES = (1, 2, 5, 10, 20)
_MODEL = ("model_name",)
_LONGEST_EXEMPLAR = 128  # characters of all names and values: OpenMetrics' limit


class VllmMetrics:
    """Every method's `model` is a name without version."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._define_counts(registry)
        self._define_times(registry)

    def _define_counts(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, _MODEL, buckets=buckets, registry=registry)

        self._running = Gauge(
            "vllm:num_requests_running",
            "Requests that have given a token",
            _MODEL,
            registry=registry,
        )
        self._waiting = Gauge(
            "vllm:num_requests_waiting", "Requests without a token yet", _MODEL, registry=registry
        )
        self._prompt = Counter("vllm:prompt_tokens", "Prompt tokens", _MODEL, registry=registry)
        self._generated = Counter(
            "vllm:generation_tokens", "Generated tokens", _MODEL, registry=registry
        )
        self._ended = Counter(
            "vllm:request_success",
            "Requests ended, by reason",
            (*_MODEL, "finished_reason"),
            registry=registry,
        )
        self._prompt_of = histogram("vllm:request_prompt_tokens", "Tokens of a prompt", _TOKENS)
        self._generated_of = histogram(
            "vllm:request_generation_tokens", "Tokens generated for a choice", _TOKENS
        )
        self._longest = histogram(
            "vllm:request_max_num_generation_tokens",
            "Tokens of a request's longest choice",
            _TOKENS,
        )
        self._n = histogram("vllm:request_params_n", "Choices asked for with a prompt", _CHOICES)
        self._max_tokens = histogram(
            "vllm:request_params_max_tokens", "The parameter max_tokens, where given", _TOKENS
        )

    def _define_times(self, registry: CollectorRegistry) -> None:
        def seconds(name: str, text: str, buckets: Sequence[float] = _LONG) -> Histogram:
            return Histogram(
                f"vllm:{name}_seconds", text, _MODEL, buckets=buckets, registry=registry
            )

        self._first_token = seconds("time_to_first_token", "Time to first token")
        self._between = GapHistogram(
            *("vllm:inter_token_latency_seconds", "Time between tokens", "model_name"),
            buckets=_SHORT,
            registry=registry,
        )
        self._per_token = seconds(
            "request_time_per_output_token", "Mean time per token after the first", _SHORT
        )
        self._whole = seconds("e2e_request_latency", "Time from request to end")
        self._queue = seconds("request_queue_time", "Time waiting for a row")
        self._inference = seconds("request_inference_time", "Time from first prefill to end")
        self._prefill = seconds("request_prefill_time", "Time in prefill")
        self._decode = seconds("request_decode_time", "Time in decode")

    def submitted(self, model: str) -> None:
        """A choice has its slot."""
        self._waiting.labels(model).inc()

    def first_token(self, model: str) -> None:
        """A submitted choice has given its first token."""
        self._waiting.labels(model).dec()
        self._running.labels(model).inc()

    def tokens_after(self, model: str) -> Callable[[float], None]:
        """What to tell, whenever tokens come, how many seconds a token after those before them."""
        return self._between.observer(model)

    def finished(self, finished: FinishedRequest) -> None:
        """A submitted choice has ended."""
        model = finished.model
        (self._waiting if finished.first_token_ns is None else self._running).labels(model).dec()
        self._prompt.labels(model).inc(finished.prompt_tokens)
        self._generated.labels(model).inc(finished.generated_tokens)
        self._ended.labels(model, finished.outcome).inc()
        self._prompt_of.labels(model).observe(finished.prompt_tokens)
        self._generated_of.labels(model).observe(finished.generated_tokens)
        exemplar = _exemplar(finished)
        self._whole.labels(model).observe(finished.seconds, exemplar)
        if (first := finished.first_token_seconds) is not None:
            self._first_token.labels(model).observe(first, exemplar)
        if (per_token := finished.seconds_per_token) is not None:
            self._per_token.labels(model).observe(per_token)
        if finished.timing is not None:
            self._observe_stages(model, finished.timing)

    def _observe_stages(self, model: str, timing: RequestTiming) -> None:
        # Only differences of the scheduler's own stamps: its clock may be another machine's.
        if timing.prefill_ns:
            self._queue.labels(model).observe((timing.prefill_ns - timing.claimed_ns) / 1e9)
            self._inference.labels(model).observe((timing.finished_ns - timing.prefill_ns) / 1e9)
        if timing.first_token_ns:
            self._prefill.labels(model).observe((timing.first_token_ns - timing.prefill_ns) / 1e9)
            self._decode.labels(model).observe((timing.finished_ns - timing.first_token_ns) / 1e9)

    def request_ended(self, model: str, n: int, max_tokens: int | None, longest: int) -> None:
        """A request has ended; `longest`: tokens of the longest of its choices."""
        self._n.labels(model).observe(n)
        self._longest.labels(model).observe(longest)
        if max_tokens is not None:
            self._max_tokens.labels(model).observe(max_tokens)


def _exemplar(finished: FinishedRequest) -> dict[str, str] | None:
    """Who sees a slow bucket finds one of its requests in the logs and traces."""
    told = {"request_id": finished.request_id, "trace_id": finished.trace_id}
    told = {name: value for name, value in told.items() if value}
    if sum(map(len, (*told, *told.values()))) > _LONGEST_EXEMPLAR:
        del told["request_id"]  # its client chose it
    return told or None
