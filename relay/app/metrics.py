"""Prometheus metrics of one relay process, in a registry of their own so that several relays fit one test process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """What is counted. Label values are bounded: no repository, no delivery id."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.webhooks = Counter(
            "relay_webhooks_total", "Webhooks by event and outcome", ["event", "outcome"], registry=self.registry
        )
        self.callbacks = Counter("relay_callbacks_total", "Callbacks by outcome", ["outcome"], registry=self.registry)
        self.requests = Histogram(
            "relay_request_seconds",
            "Time to answer",
            ["path", "status"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.tasks = Counter(
            "relay_tasks_total", "Attempts of tasks by kind and outcome", ["kind", "outcome"], registry=self.registry
        )
        self.task_seconds = Histogram(
            "relay_task_seconds", "Time of one attempt", ["kind"], buckets=_SECONDS, registry=self.registry
        )
        self.queue = Gauge("relay_queue_tasks", "Tasks by kind and state", ["kind", "state"], registry=self.registry)
        self.jobs = Gauge("relay_jobs", "Jobs by state", ["state"], registry=self.registry)
        self.unanswered = Gauge(
            "relay_dispatches_unanswered",
            "Dispatches sent longer ago than the job timeout that no job has reported for",
            registry=self.registry,
        )
        self.timed_out = Counter("relay_jobs_timed_out_total", "Jobs that the sweeper ended", registry=self.registry)
        self.allowlist_ok = Gauge(
            "relay_allowlist_ok", "1 if the newest allowlist is in force, 0 if an older one is", registry=self.registry
        )

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
