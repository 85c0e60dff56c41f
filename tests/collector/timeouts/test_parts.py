"""What divides requests, which time-outs clients use, and what a second request would do: each beside a near miss."""

import numpy as np
import pytest

from collector.timeouts import hedge
from collector.timeouts.curve import waits_out
from collector.timeouts.evident import piles
from collector.timeouts.split import NOT_TOLD, OTHERS, lengths_of, splits_of, telling
from collector.timeouts.waits import ANSWERED, CENSORED, DEAD, ENDLESS, ERROR, GIVEN_UP, OK, Requests, Waits, waits_of

NAN = float("nan")
KINDS = {"slo_class": ["chat", "batch", ""], "vantage": ["server"] * 3, "operation": ["chat"] * 3}


def made(n, *, ttft, e2e=None, ended=None, kind=None, tokens=NAN, reasons=2, seconds=3600):
    """`n` requests that begin evenly in an hour. Waits are seconds."""
    column = lambda value: np.broadcast_to(np.asarray(value, float), n) * 1e6  # noqa: E731
    ttft_us = column(ttft)
    return Requests(
        began_ms=(np.arange(n) * seconds * 1000 // n).astype(np.uint32),
        kind=np.broadcast_to(np.uint16(0) if kind is None else kind.astype(np.uint16), n),
        ended=np.broadcast_to(np.uint8(OK) if ended is None else ended.astype(np.uint8), n), ttft_us=ttft_us,
        first_visible_us=ttft_us, gap_us=np.zeros(n), e2e_us=ttft_us * 2 if e2e is None else column(e2e),
        input_tokens=np.broadcast_to(np.asarray(tokens, float), n), reasons=np.broadcast_to(np.uint8(reasons), n),
        weight=np.ones(n),
    )  # fmt: skip


def split_of(requests):
    return telling(requests, waits_of(requests), splits_of(requests, KINDS))


class TestSplits:
    n = 3000
    random = np.random.default_rng(7)
    quick = random.lognormal(0, 0.3, n)
    tokens = random.choice([500, 2000, 30_000], n, p=[0.5, 0.3, 0.2])
    kind = random.choice(3, n, p=[0.6, 0.3, 0.1])

    def test_long_prompts_that_wait_longer_have_a_part_of_their_own(self):
        requests = made(
            self.n, ttft=self.quick * np.where(self.tokens > 20_000, 5, 1), tokens=self.tokens, kind=self.kind
        )
        found = split_of(requests)
        assert (found.dimension, found.values) == (
            "input_tokens",
            ["below 1,000", "1,000 to 3,999", "16,000 to 63,999"],
        )
        parts = dict(found.parts(requests))
        assert parts["16,000 to 63,999"].size == (self.tokens == 30_000).sum()

    def test_a_class_that_waits_longer_has_one_too(self):
        requests = made(self.n, ttft=self.quick * np.where(self.kind == 1, 5, 1), tokens=self.tokens, kind=self.kind)
        found = split_of(requests)
        assert (found.dimension, found.values) == ("slo_class", ["", "batch", "chat"])

    def test_nothing_divides_requests_that_are_alike(self):
        assert split_of(made(self.n, ttft=self.quick, tokens=self.tokens, kind=self.kind)) is None

    def test_a_little_longer_is_no_reason(self):
        ttft = self.quick * np.where(self.kind == 1, 1.1, 1)
        assert split_of(made(self.n, ttft=ttft, tokens=self.tokens, kind=self.kind)) is None

    def test_one_bad_hour_of_one_value_is_chance(self):
        """All slow requests are of one moment, in which only long prompts came."""
        moment = np.arange(self.n) < 200
        tokens = np.where(moment, 30_000, 500)
        tokens[self.n - 150 :] = 30_000
        requests = made(self.n, ttft=self.quick * np.where(moment & (np.arange(self.n) < 50), 9, 1), tokens=tokens)
        assert split_of(requests) is None

    def test_reasoning_divides(self):
        reasons = self.random.choice(2, self.n, p=[0.8, 0.2]).astype(np.uint8)
        found = split_of(made(self.n, ttft=self.quick * (1 + 9 * reasons), reasons=reasons))
        assert (found.dimension, found.values) == ("reasoning", ["no", "yes"])

    @pytest.mark.parametrize(("cut_at", "divides"), [(30.0, True), (300.0, True), (0.5, False)])
    def test_who_was_always_given_up_has_a_part_of_its_own(self, cut_at, divides):
        """Twice the longest answer is silence for those that are alike: no long prompt was ever answered."""
        long = self.tokens > 20_000
        ended = np.where(long, GIVEN_UP, OK)
        ttft = np.where(long, 0, self.quick)
        e2e = np.where(long, cut_at, self.quick * 2)
        requests = made(self.n, ttft=ttft, e2e=e2e, ended=ended, tokens=self.tokens)
        found = split_of(requests)
        assert (found is not None) == divides
        if found:
            part = dict(found.parts(requests))["16,000 to 63,999"]
            out = {out.wait: out for out in waits_out(part, 0.01, [])}
            assert {name: (one.answered, one.censored, one.dead) for name, one in out.items()} == {
                name: (0, long.sum(), 0) for name in ("first_token", "e2e")
            }
            assert [(one.timeout_s, one.requests) for one in out["first_token"].evident] == [(cut_at, long.sum())]
            assert "no request was answered" in out["e2e"].summary
            assert (out["e2e"].suggested, out["e2e"].more_requests) == (None, None)

    def test_whose_value_is_not_told_counts_in_each_part_by_its_share(self):
        tokens = np.where(np.arange(self.n) % 10 == 0, NAN, np.where(np.arange(self.n) % 3 == 0, 30_000, 500))
        requests = made(self.n, ttft=self.quick * np.where(tokens == 30_000, 5, 1), tokens=tokens)
        parts = dict(split_of(requests).parts(requests))
        assert sum(part.weight.sum() for part in parts.values()) == pytest.approx(self.n)
        assert all((part.weight < 1).sum() == self.n // 10 for part in parts.values())

    def test_rare_values_are_one(self):
        kind = np.repeat([0, 1, 2], [2000, 100, 150])
        (found,) = [one for one in splits_of(made(2250, ttft=1, kind=kind), KINDS) if one.dimension == "slo_class"]
        assert found.values == ["chat", OTHERS]
        assert (found.codes == 1).sum() == 250

    def test_a_range_with_few_requests_goes_to_its_neighbour(self):
        tokens = np.repeat([500, 2000, 30_000, 90_000], [1000, 50, 50, 900])
        (found,) = [
            one for one in splits_of(made(2000, ttft=1, tokens=tokens), KINDS) if one.dimension == "input_tokens"
        ]
        assert found.values == ["below 16,000", "16,000 or more"]
        assert np.bincount(found.codes).tolist() == [1050, 950]

    def test_lengths(self):
        told = [0, 999, 1000, 63_999, 64_000, NAN]
        assert lengths_of(np.array(told)).tolist() == [0, 0, 1, 3, 4, NOT_TOLD]


class TestEvident:
    random = np.random.default_rng(3)
    n = 2000

    def traffic(self, given_up_at, of=100, longest=70.0):
        """Requests that take up to `longest` seconds, of which some are given up at a time or times."""
        ttft = self.random.uniform(1, longest, self.n)
        ended = np.full(self.n, OK)
        slow = np.flatnonzero(ttft > given_up_at.max() if hasattr(given_up_at, "max") else ttft > given_up_at)[:of]
        ended[slow] = GIVEN_UP
        e2e = np.where(ended == GIVEN_UP, given_up_at + self.random.uniform(0, 0.05, self.n), ttft * 1.1)
        return made(self.n, ttft=np.where(ended == GIVEN_UP, 0, ttft), e2e=e2e, ended=ended)

    def test_a_pile_is_found_with_what_would_have_become_of_it(self):
        requests = self.traffic(60.0)
        (found,) = piles(requests, waits_of(requests)["first_token"])
        assert (found.timeout_s, found.of.sum()) == (60, 100)
        assert found.answered.share == 1
        assert 68 < found.within_s <= 70.6

    def test_times_that_are_spread_are_none(self):
        requests = self.traffic(np.linspace(5, 45, self.n))
        assert [*piles(requests, waits_of(requests)["first_token"])] == []

    def test_four_are_none(self):
        requests = self.traffic(60.0, of=4)
        assert [*piles(requests, waits_of(requests)["first_token"])] == []

    def test_where_nobody_waited_longer_nothing_is_said_of_them(self):
        requests = self.traffic(60.0, of=10_000)
        (found,) = piles(requests, waits_of(requests)["first_token"])
        assert (found.timeout_s, found.answered) == (60, None)

    @pytest.mark.parametrize("ttft", [NAN, 0.0])
    def test_a_time_out_of_requests_that_do_not_stream_bounds_the_whole(self, ttft):
        requests = self.traffic(60.0)
        given_up = requests.ended == GIVEN_UP
        ttft_us = np.where(given_up, 0, ttft)
        changed = Requests(**{**vars(requests), "ttft_us": ttft_us, "first_visible_us": ttft_us})
        (out,) = waits_out(changed, 0.01, [])
        assert (out.wait, [(one.timeout_s, one.requests) for one in out.evident]) == ("e2e", [(60, 100)])

    @pytest.mark.parametrize(("longest", "said"), [(25.0, "they count as dead"), (35.0, "too few others waited")])
    def test_those_of_a_time_out_that_count_as_dead_are_told_to(self, longest, said):
        requests = self.traffic(60.0, longest=longest)
        cut = np.arange(self.n) % 20 == 0
        ttft = np.where(cut, 0, requests.ttft_us)
        changed = Requests(
            **{**vars(requests), "ttft_us": ttft, "first_visible_us": ttft, "e2e_us": np.where(cut, 60e6, ttft * 1.1)}
            | {"ended": np.where(cut, GIVEN_UP, OK).astype(np.uint8)}
        )
        first = next(waits_out(changed, 0.01, []))
        assert (first.wait, first.dead) == ("first_token", 100 if longest < 30 else 0)
        assert f"100 requests were given up at 1 min, a client's time-out: {said}" in first.summary

    def test_dead_ones_among_those_that_waited_longer_count(self):
        requests = self.traffic(60.0)
        wait = waits_of(requests)["first_token"]
        longer = np.flatnonzero((wait.us > 60.5e6) & (wait.kind == ANSWERED))
        wait.kind[longer[::2]] = ENDLESS
        (found,) = piles(requests, wait)
        assert found.answered.share == pytest.approx(0.5, abs=0.05)
        assert found.answered.low < 0.5 < found.answered.high

    @pytest.mark.parametrize(("by", "share"), [(GIVEN_UP, None), (ERROR, 0.0), (DEAD, 0.0)])
    def test_what_cut_those_off_that_waited_longer_is_no_answer_to_what_would_have_been(self, by, share):
        """Nobody was answered after 25 s: 100 were given up at 60 s, and twenty ended later."""
        ttft = self.random.uniform(1, 25, self.n)
        ended, e2e = np.full(self.n, OK), ttft * 1.1
        ended[:100], ended[100:120] = GIVEN_UP, by
        e2e[:100], e2e[100:120] = 60, np.linspace(70, 90, 20)
        requests = made(self.n, ttft=np.where(np.arange(self.n) < 120, 0, ttft), e2e=e2e, ended=ended)
        found = next(piles(requests, waits_of(requests)["first_token"]))
        assert found.of.sum() == 100
        assert (None if found.answered is None else found.answered.share) == share
        assert found.answered is None or 0.1 < found.answered.high < 0.2

    def test_short_ones_are_no_timers(self):
        requests = self.traffic(0.3)
        assert [*piles(requests, waits_of(requests)["first_token"])] == []

    @pytest.mark.parametrize(("with_token", "wait"), [(0.0, "first_token"), (0.5, "e2e")])
    def test_a_time_out_stands_at_the_wait_that_it_bounds(self, with_token, wait):
        requests = self.traffic(60.0)
        given_up = np.flatnonzero(requests.ended == GIVEN_UP)
        ttft = requests.ttft_us.copy()
        ttft[given_up[: int(with_token * len(given_up))]] = 2e6
        changed = Requests(**{**vars(requests), "ttft_us": ttft, "first_visible_us": ttft})
        found = {out.wait: [one.timeout_s for one in out.evident] for out in waits_out(changed, 0.01, [])}
        assert {name for name, of in found.items() if of} == {wait}
        assert found[wait] == [60]


class TestHedging:
    n = 6000
    random = np.random.default_rng(5)

    def sent(self, seconds, process=None, kind=ANSWERED, length=None):
        n = len(seconds)
        waits = Waits(np.asarray(seconds, float) * 1e6, np.broadcast_to(np.uint8(kind), n).copy())
        zero = np.zeros(n, np.int64)
        return hedge.Sent.of(
            made(n, ttft=1), waits, zero if length is None else length, zero if process is None else process
        )

    def test_who_is_slow_alone_is_helped(self):
        one = self.sent(np.where(np.arange(self.n) % 33 == 0, 10.0, 1.0))
        found = hedge.best(one, one, same=True)
        assert found.p99[0] == pytest.approx(10e6, rel=0.01)
        assert found.p99[1] == pytest.approx(2e6, rel=0.05)
        assert found.shared == 0
        assert found.more == pytest.approx(1 / 33, rel=0.05)

    def test_who_is_slow_together_is_not(self):
        seconds = np.where(np.arange(self.n) // 300 % 10 == 0, 10.0, 1.0) + np.arange(self.n) / self.n
        one = self.sent(seconds)
        found = hedge.best(one, one, same=True)
        assert found.p99[1] == pytest.approx(found.p99[0], rel=0.01)
        assert found.shared > 0.9

    def test_another_process_helps_if_it_is_slow_at_other_times(self):
        place = np.arange(self.n) % 2
        slow = (np.arange(self.n) // 600 % 10 == 0) & (place == 0)
        one = self.sent(np.where(slow, 10.0, 1.0), place)
        same, other = (hedge.best(one, one, same=same) for same in (True, False))
        assert same.p99[1] == pytest.approx(10e6, rel=0.01)
        assert other.p99[1] < 3e6

    def test_a_long_prompt_is_long_in_the_second_request_too(self):
        length = (np.arange(self.n) % 20 == 0).astype(np.int64)
        one = self.sent(np.where(length, 10.0, 1.0), length=length)
        assert hedge.best(one, one, same=True).p99[1] == pytest.approx(10e6, rel=0.01)

    def test_a_request_is_not_its_own_second_one(self):
        one = self.sent(np.where(np.arange(self.n) % 33 == 0, 10.0, 1.0))
        slow = np.flatnonzero(one.us > 5e6)
        partner, known = hedge._partners(one, slow, one, one.began_ms[slow], same=True)
        assert known.all()
        assert not (partner == slow[:, None]).any()
        assert (abs(partner - slow[:, None]) <= 8).all(), "the nearest"

    def test_who_hangs_waits_for_ever_without_a_second_request(self):
        kind = np.where(np.arange(self.n) % 50 == 0, ENDLESS, ANSWERED)
        one = self.sent(np.full(self.n, 1.0), kind=kind)
        found = hedge.best(one, one, same=True)
        assert found.p99[0] == np.inf
        assert found.p99[1] == pytest.approx(2e6, rel=0.05)

    def test_who_was_given_up_would_have_waited_longer(self):
        kind = np.where(np.arange(self.n) % 2 == 0, CENSORED, ANSWERED)
        one = self.sent(np.where(kind == CENSORED, 3.0, np.linspace(1, 9, self.n)), kind=kind)
        given_up = one.us[::2]
        assert given_up.min() >= 3e6
        assert np.median(given_up) == pytest.approx(6e6, rel=0.05)

    def test_few_requests_and_those_far_apart_tell_nothing(self):
        few = self.sent(np.linspace(1, 2, hedge.LEAST - 1))
        assert hedge.best(few, few, same=True) is None
        far = made(1000, ttft=1, seconds=10**6)
        waits = Waits(np.linspace(1, 9, 1000) * 1e6, np.full(1000, ANSWERED, np.uint8))
        one = hedge.Sent.of(far, waits, np.zeros(1000, np.int64), np.zeros(1000, np.int64))
        assert hedge.best(one, one, same=True) is None

    @pytest.mark.parametrize(("apart_s", "told"), [(20, True), (50, False)])
    def test_three_others_of_a_time_are_enough(self, apart_s, told):
        n = 2000
        waits = Waits(np.where(np.arange(n) % 33 == 0, 10.0, 1.0) * 1e6, np.full(n, ANSWERED, np.uint8))
        zero = np.zeros(n, np.int64)
        one = hedge.Sent.of(made(n, ttft=1, seconds=apart_s * n), waits, zero, zero)
        found = hedge.best(one, one, same=True)
        assert (found is not None) is told
        if found is not None:
            assert found.p99[1] == pytest.approx(2e6, rel=0.05)

    def test_that_none_helps_is_said_only_where_each_was_tried(self):
        """The slowest have others of their time, who are slow too; those of the rarer slow times have none."""
        n = 3000
        began = np.where(np.arange(n) < 100, np.arange(n) * 10.0, 1000 + np.arange(n) * 50.0)
        made_then = made(n, ttft=1, seconds=1)
        made_then.began_ms[:] = began * 1000
        seconds = np.where(np.arange(n) < 100, 10.0, np.where(np.arange(n) % 16 == 0, 5.0, 1.0))
        zero = np.zeros(n, np.int64)
        one = hedge.Sent.of(made_then, Waits(seconds * 1e6, np.full(n, ANSWERED, np.uint8)), zero, zero)
        assert hedge.best(one, one, same=True) is None
