"""What is kept of tensors: never more than the limit, and what is asked for again longest."""

from __future__ import annotations

import numpy as np

from quantpipe.scoring.tensor_cache import TensorCache


def state(size: int, fill: int = 0) -> dict[str, np.ndarray]:
    return {"t": np.full(size, fill, np.uint8)}


def test_gives_back_what_was_put() -> None:
    cache = TensorCache(1000)
    cache.begin([b"a"])
    cache.put(b"a", 0, state(10, 3))
    cache.put(b"a", 2, state(10, 5))
    for number, fill in ((0, 3), (2, 5)):
        found = cache.get(b"a", number)
        assert found is not None and found["t"].tolist() == [fill] * 10
    assert cache.get(b"a", 1) is None and cache.get(b"b", 0) is None


def test_never_holds_more_than_the_limit() -> None:
    rng = np.random.default_rng(0)
    cache, known = TensorCache(500), [bytes([i]) for i in range(20)]
    for _ in range(400):
        keys = [known[i] for i in rng.integers(0, 20, 3)]
        cache.begin(keys)
        for key in keys:
            for batch in range(3):
                if cache.get(key, batch) is None:
                    cache.put(key, batch, state(int(rng.integers(1, 90))))
                assert cache.used <= 500
    assert cache.used > 250


def test_what_was_wanted_twice_outlives_what_was_not() -> None:
    """One change after the other from one point: that point's tensors stay, those behind the changes go."""
    cache = TensorCache(100)
    for turn in range(30):
        cache.begin([b"point", b"change%d" % turn])
        if cache.get(b"point", 0) is None:
            assert turn < 1
            cache.put(b"point", 0, state(30))
        cache.put(b"change%d" % turn, 0, state(30))
    assert cache.get(b"change29", 0) is not None


def test_what_comes_back_after_it_was_dropped_stays() -> None:
    cache = TensorCache(100)
    cache.begin([b"a"])
    cache.put(b"a", 0, state(60))
    cache.begin([b"b"])
    cache.put(b"b", 0, state(60))
    assert cache.get(b"a", 0) is None
    cache.begin([b"a"])
    cache.put(b"a", 0, state(60))
    cache.begin([b"c"])
    cache.put(b"c", 0, state(60))
    assert cache.get(b"a", 0) is not None and cache.get(b"c", 0) is None


def test_what_is_too_large_is_not_kept() -> None:
    cache = TensorCache(10)
    cache.begin([b"a"])
    cache.put(b"a", 0, state(11))
    assert cache.get(b"a", 0) is None and cache.used == 0
