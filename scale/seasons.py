"""What yesterday says about the next minutes, used only while it is right more often than the present alone.

Offered work is kept as means of ten minutes over a day. The forecast for the next ten minutes is the present mean times
the ratio by which the work changed at this time yesterday; the naive one is the present mean. The errors of both are
averaged over about three days, and the ratio is believed while its own are the smaller ones.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

BUCKET_SECONDS = 600.0
BUCKETS = 144
"""Number of buckets in a day."""
_JUDGED = 3 * BUCKETS
_LARGEST_RATIO = 2.0


class Season(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A day of offered work, and how well it has foretold the next one."""

    bucket: int = -1
    """Number of the bucket that is being filled; -1 before the first one."""
    total: float = 0.0
    looks: int = 0
    """Number of looks whose offered work `total` sums up."""
    means: tuple[float, ...] = ()
    """Means of the buckets before, the latest one last; a day and one."""
    judged: int = 0
    """Number of forecasts that were compared with what came."""
    error: float = 0.0
    """Mean absolute error of the ratio's forecasts; `naive_error` is that of the present mean."""
    naive_error: float = 0.0

    @property
    def believed(self) -> bool:
        return self.judged >= BUCKETS and self.error < self.naive_error


def observe(season: Season, time: float, offered: float) -> Season:
    """Add the offered work of a look, in replicas."""
    bucket = int(time // BUCKET_SECONDS)
    if season.bucket < 0:
        return replace(season, bucket=bucket, total=offered, looks=1)
    if bucket <= season.bucket:
        return replace(season, total=season.total + offered, looks=season.looks + 1)
    mean = season.total / season.looks
    season = _judge(season, mean)
    # Buckets without a look are taken to be like the one before.
    passed = min(bucket - season.bucket, BUCKETS + 1)
    means = (*season.means, *[mean] * passed)[-(BUCKETS + 1) :]
    return replace(season, bucket=bucket, total=offered, looks=1, means=means)


def ratio(season: Season, seconds: float) -> float:
    """Return by what the work is expected to be multiplied after some seconds, at least 1; 1 if that is not known."""
    if not season.believed or len(season.means) <= BUCKETS:
        return 1.0
    now, later = season.means[-BUCKETS], season.means[-BUCKETS + 1]
    growth = (later / now - 1) * seconds / BUCKET_SECONDS if now > 0 else 0.0
    return min(max(1.0, 1 + growth), _LARGEST_RATIO)


def _judge(season: Season, mean: float) -> Season:
    """Compare both forecasts for the bucket that has ended with its mean."""
    if len(season.means) <= BUCKETS:
        return season
    before, naive = season.means[-BUCKETS - 1], season.means[-1]
    change = min(season.means[-BUCKETS] / before, _LARGEST_RATIO) if before > 0 else 1.0
    share = 1 / min(season.judged + 1, _JUDGED)
    return replace(
        season,
        judged=season.judged + 1,
        error=season.error + share * (abs(naive * change - mean) - season.error),
        naive_error=season.naive_error + share * (abs(naive - mean) - season.naive_error),
    )
