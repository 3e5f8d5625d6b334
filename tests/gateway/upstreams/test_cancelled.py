"""Whether answers end whose connections were closed, by what a server tells."""

from __future__ import annotations

from gateway.upstreams.cancelled import LAG, PATIENCE, CancelWatch


class Watched:
    """A watch whose clock a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.watch = CancelWatch(lambda: self.now)

    def closed(self, *marks: int, now: float = 0.0) -> None:
        self.now = now
        for mark in marks:
            self.watch.closed(mark)

    def seen(self, *running: int, now: float, live: tuple[int, ...] = ()) -> int:
        self.now = now
        return self.watch.seen(running, live)

    def counted(self, running: int, live: int, now: float) -> int:
        self.now = now
        return self.watch.counted(running, live)


class TestMarks:
    """A server that tells of each request."""

    def test_one_that_ends_in_time_does_not_count(self) -> None:
        watched = Watched()
        watched.closed(7)
        looks = [watched.seen(7, now=PATIENCE - 1), watched.seen(now=PATIENCE), watched.seen(7, now=2 * PATIENCE)]
        assert (looks, watched.watch.lingered) == ([0, 0, 0], 0)

    def test_one_that_goes_on_counts_once(self) -> None:
        watched = Watched()
        watched.closed(7, 8)
        looks = [watched.seen(7, 9, now=float(second), live=(9,)) for second in range(1, 20)]
        assert (sum(looks), watched.watch.lingered) == (1, 1)

    def test_an_equal_mark_of_a_live_answer_is_not_mistaken(self) -> None:
        watched = Watched()
        watched.closed(7)
        assert watched.seen(7, now=2 * PATIENCE, live=(7,)) == 0


class TestNumbers:
    """A server that tells how many requests run, with a lag."""

    def test_a_number_that_falls_in_time_does_not_count(self) -> None:
        watched = Watched()
        watched.counted(1, 1, now=0.0)
        watched.closed(7, now=0.5)
        assert [watched.counted(1, 0, now=second) for second in (1.0, LAG - 1)] == [0, 0]
        assert [watched.counted(running, 0, now=LAG + running) for running in (0, 1, 2)] == [0, 0, 0]

    def test_a_number_that_stays_counts_as_many_as_it_is_more(self) -> None:
        watched = Watched()
        watched.counted(3, 3, now=0.0)
        watched.closed(1, 2, 3, now=0.5)
        looks = [watched.counted(1, 0, now=float(second)) for second in range(1, int(LAG) + 5)]
        assert (sum(looks), watched.watch.lingered) == (1, 1)

    def test_requests_of_other_clients_that_were_there_before_do_not_count(self) -> None:
        watched = Watched()
        for second in range(5):
            watched.counted(3, 1, now=float(second))
        watched.closed(7, now=5.0)
        assert sum(watched.counted(2, 0, now=5.0 + second) for second in range(1, int(LAG) + 5)) == 0
