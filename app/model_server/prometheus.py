"""Prometheus metrics of the scheduler, under vLLM's names where vLLM has the same metric."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LABELS = {"model_name": "base"}


class EngineMetrics:
    def __init__(self, max_loras: int = 1) -> None:
        self._registry = CollectorRegistry()
        self._running = self._gauge("vllm:num_requests_running", "Requests in the batch")
        self._waiting = self._gauge(
            "vllm:num_requests_waiting", "Requests that wait for a row of the batch, or for memory"
        )
        self._usage = self._gauge("vllm:kv_cache_usage_perc", "Part of the KV cache that running requests hold")
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens of all requests")
        self._generated = self._counter("vllm:generation_tokens", "Generated tokens of all requests")
        self._queried = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self._hit = self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Drafts that were verified")
        self._drafted = self._counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens that were verified")
        self._accepted = self._counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted")
        self._batch = Histogram(
            "sage:batch_size",
            "Rows of one forward pass",
            list(_LABELS),
            registry=self._registry,
            buckets=[1, 2, 4, 8, 16, 32, 64, 128, 256],
        ).labels(**_LABELS)

        adapters = Gauge(
            "vllm:lora_requests_info",
            "Running stats on lora requests.",
            ["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
            registry=self._registry,
        )
        adapters.labels(max_loras, "", "").set_to_current_time()

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, list(_LABELS), registry=self._registry).labels(**_LABELS)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, list(_LABELS), registry=self._registry).labels(**_LABELS)

    def set_load(self, running: int, waiting: int, usage: float) -> None:
        """`usage`: the part of the KV cache that running requests hold, 0 to 1."""
        self._running.set(running)
        self._waiting.set(waiting)
        self._usage.set(usage)

    def count_prompt(self, tokens: int, reused: int) -> None:
        self._prompt.inc(tokens)
        self._queried.inc(tokens)
        self._hit.inc(reused)

    def count_step(self, rows: int) -> None:
        self._batch.observe(rows)

    def count_draft(self, tokens: int, accepted: int) -> None:
        self._drafts.inc()
        self._drafted.inc(tokens)
        self._accepted.inc(accepted)

    def count_generated(self, tokens: int) -> None:
        self._generated.inc(tokens)

    def text(self) -> bytes:
        return generate_latest(self._registry)
