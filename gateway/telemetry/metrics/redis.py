"""Metrics of what is kept in Redis."""

from __future__ import annotations

from collections.abc import Callable

from gateway.telemetry.metrics.registry import MetricRegistry

_ROUND_TRIP = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class RedisMetrics:
    """Round trips, the usage ledger, and the view of the directory."""

    def __init__(self, registry: MetricRegistry) -> None:
        self._redis_seconds = registry.histogram(
            "roundhouse_redis_seconds", "Round trips to Redis, of one command or many.", buckets=_ROUND_TRIP
        )()
        self._redis_errors = registry.counter(
            "roundhouse_redis_errors", "Round trips to Redis that failed or took too long."
        )()
        self._redis_up = registry.gauge("roundhouse_redis_up", "Whether Redis answered the last time it was asked.")()
        self._backup = registry.gauge(
            "roundhouse_backup_timestamp_seconds",
            "Unix time at which the last whole `roundhouse backup` of this Redis began; 0 if none is known.",
        )()
        self._ledger_lag = registry.gauge(
            "roundhouse_ledger_lag_seconds",
            "Seconds since Redis last had every entry of the usage ledger, while some wait for it.",
        )()
        self._ledger_dropped: Callable[[], float] = lambda: 0
        registry.read_counter(
            "roundhouse_ledger_dropped_entries",
            "Entries of the usage ledger lost because neither Redis nor the disk could take them.",
            read=lambda: [((), self._ledger_dropped())],
        )
        self._directory_age = registry.gauge(
            "roundhouse_directory_age_seconds",
            "Seconds since this gateway last knew tenants, keys and prices as Redis has them.",
        )()
        self._set_back = registry.gauge(
            "roundhouse_directory_set_back",
            "Whether Redis has lost changes of the directory that this gateway has seen.",
        )()
        self._unconfirmed: Callable[[], float] = lambda: 0
        registry.read_counter(
            "roundhouse_directory_unconfirmed_changes",
            "Changes of the directory by this gateway that too few replicas of Redis had within `redis.wait_timeout`.",
            read=lambda: [((), self._unconfirmed())],
        )

    def watch_directory(self, unconfirmed: Callable[[], float]) -> None:
        """Take the function that gives the number of unconfirmed changes; it is called when the page is read."""
        self._unconfirmed = unconfirmed

    def answered(self, seconds: float, failed: bool) -> None:
        """Count a round trip that has ended."""
        self._redis_seconds.observe(seconds)
        if failed:
            self._redis_errors.inc()

    def asked(self, *, answered: bool) -> None:
        self._redis_up.set(answered)

    def backed_up(self, at: int) -> None:
        """Set when the last backup began, in seconds since 1970."""
        self._backup.set(at)

    def watch_ledger(self, lag: Callable[[], float], dropped: Callable[[], float]) -> None:
        """Take the functions that give the ledger's lag and its lost entries; both are called when the page is read."""
        self._ledger_lag.set_function(lag)
        self._ledger_dropped = dropped

    def directory(self, *, age: float, set_back: bool) -> None:
        """Set the age of the view of the directory, in seconds, and whether Redis has an older one; called when the
        page is read."""
        self._directory_age.set(age)
        self._set_back.set(set_back)
