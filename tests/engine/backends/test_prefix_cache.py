import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.prefix_cache import PINNED, PrefixCache, PrefixCacheUse, budget_of, common_prefix
from engine.errors import BackendUnavailable, NoRoom

TALK = (1, 2, 3, 4, 5, 6)


@pytest.fixture
def released() -> list[str]:
    return []


@pytest.fixture
def cache(released: list[str]) -> PrefixCache[str]:
    return PrefixCache(100, released.append)


def test_the_longest_common_prefix_is_found_and_handed_over(cache) -> None:
    cache.keep("anna", (1, 2, 9), "short", 10)
    cache.keep("anna", TALK, "talk", 10)

    match = cache.reuse("anna", (*TALK, 7, 8))

    assert match == ("talk", 6, False)
    assert cache.use == PrefixCacheUse(100, 10, 1)


def test_the_last_token_of_a_prompt_is_always_computed(cache) -> None:
    cache.keep("anna", TALK, "talk", 10)

    assert cache.reuse("anna", TALK).length == len(TALK) - 1


def test_a_sequence_that_would_lose_more_than_is_gained_stays_and_is_copied(cache) -> None:
    cache.keep("anna", tuple(range(10)), "talk", 10)

    match = cache.reuse("anna", (0, 1, 2, 77))

    assert match == ("talk", 3, True)
    assert cache.use.sequences == 1


def test_nothing_crosses_owners(cache) -> None:
    cache.keep("anna", TALK, "talk", 10)

    assert cache.reuse("ben", (*TALK, 7)) is None
    assert cache.reuse("", (*TALK, 7)) is None


def test_a_job_without_an_owner_is_not_kept(cache, released) -> None:
    cache.keep("", TALK, "talk", 10)

    assert (cache.use.sequences, released) == (0, ["talk"])


def test_the_least_recently_used_go_first_when_the_budget_is_spent(cache, released) -> None:
    cache.keep("anna", (1, 2), "one", 40)
    cache.keep("anna", (3, 4), "two", 40)
    match = cache.reuse("anna", (1, 2, 5))
    cache.keep("anna", (1, 2, 5), match.value, 45)
    cache.keep("ben", (1, 2), "three", 50)

    assert released == ["two"]
    assert cache.use == PrefixCacheUse(100, 95, 2)


def test_a_sequence_that_a_longer_one_begins_with_goes(cache, released) -> None:
    cache.keep("anna", TALK, "short", 10)
    cache.keep("ben", TALK, "ben's", 10)
    cache.keep("anna", (*TALK, 7), "long", 10)

    assert (cache.use.sequences, released) == (2, ["short"])


def test_values_are_never_compared() -> None:
    class Arrays:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth value of an array is ambiguous")

    cache: PrefixCache[Arrays] = PrefixCache(100)
    for salt in ("anna", "ben"):
        cache.keep(salt, TALK, Arrays(), 10)
    assert cache.reuse("ben", (*TALK, 7)).length == len(TALK)


def test_a_sequence_larger_than_the_budget_is_not_kept(cache, released) -> None:
    cache.keep("anna", (1, 2), "small", 40)
    cache.keep("anna", TALK, "large", 101)

    assert (cache.use.sequences, released) == (1, ["large"])


def test_clear_releases_all(cache, released) -> None:
    cache.keep("anna", (1, 2), "one", 40)
    cache.clear()

    assert (cache.use.used_bytes, released) == (0, ["one"])


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_a_common_prefix_is_as_long_as_item_by_item(one: list[int], other: list[int]) -> None:
    longest = 0
    while longest < min(len(one), len(other)) and one[longest] == other[longest]:
        longest += 1

    assert common_prefix(one, other) == longest


def test_a_budget_is_whole_mebibytes() -> None:
    assert budget_of({}, 3) == 3 << 20
    assert budget_of({"prefix_cache_mib": 0}, 3) == 0
    for wrong in (-1, 1.5, True, "all"):
        with pytest.raises(BackendUnavailable, match="prefix_cache_mib is"):
            budget_of({"prefix_cache_mib": wrong}, 3)


def test_what_is_pinned_serves_every_owner_and_stays(cache) -> None:
    cache.keep(PINNED, TALK, "system", 10)

    for owner in ("anna", "ben"):
        assert cache.reuse(owner, (*TALK, 7)) == ("system", 6, True)
    assert cache.reuse("", (*TALK, 7)) is None
    assert cache.use.sequences == 1


def test_an_owner_s_own_sequence_is_handed_over_before_a_pinned_one_is_copied(cache) -> None:
    cache.keep("anna", TALK, "talk", 10)
    cache.keep(PINNED, TALK, "system", 10)

    assert cache.reuse("anna", (*TALK, 7)) == ("talk", 6, False)


def test_what_is_pinned_makes_room_for_nobody(cache, released) -> None:
    cache.keep(PINNED, TALK, "system", 60)
    cache.keep("anna", (1, 2), "one", 40)
    cache.keep("anna", (3, 4), "two", 40)
    cache.keep("anna", (5, 6), "large", 50)

    assert released == ["one", "large"]
    assert cache.use == PrefixCacheUse(100, 100, 2)


def test_a_request_goes_on_from_a_sequence_that_both_together_are_too_large_for(cache, released) -> None:
    cache.keep("anna", TALK, "talk", 60)

    match = cache.reserve("anna", (*TALK, 7), 70, 80)

    assert match == ("talk", 6, False)
    assert (cache.use.used_bytes, released) == (0, [])


def test_a_request_alone_takes_the_place_of_others_for_its_prompt_only(cache, released) -> None:
    for owner in ("anna", "ben", "carl"):
        cache.keep(owner, TALK, owner, 30)

    cache.reserve("dora", TALK, 30, 500)

    assert released == ["anna"]


def test_what_a_request_has_filled_takes_the_place_of_others_once_it_is_kept(cache, released) -> None:
    for owner in ("anna", "ben", "carl"):
        cache.keep(owner, TALK, owner, 30)
    cache.reserve("dora", TALK, 30, 500)

    cache.give_back(500)
    cache.keep("dora", TALK, "dora", 50)

    assert released == ["anna", "ben"]


def test_a_prompt_beyond_the_budget_takes_nobodys_place(cache, released) -> None:
    cache.keep("anna", TALK, "talk", 60)

    cache.reserve("", TALK, 101, 500)

    assert released == []


def test_requests_in_flight_and_kept_sequences_fit_the_budget_together(cache, released) -> None:
    for owner in ("anna", "ben", "carl"):
        cache.keep(owner, TALK, owner, 30)
    cache.reserve("dora", TALK, 10, 40)

    cache.reserve("emil", TALK, 10, 30)

    assert released == ["anna", "ben"]


def test_a_request_that_has_to_wait_leaves_what_it_would_go_on_from(cache) -> None:
    cache.keep("anna", TALK, "talk", 30)
    cache.reserve("ben", TALK, 10, 60)

    with pytest.raises(NoRoom, match="the memory for keys and values is full"):
        cache.reserve("anna", (*TALK, 7), 10, 41)

    assert cache.reuse("anna", (*TALK, 7)) == ("talk", 6, False)


def test_a_sequence_to_copy_goes_after_all_others(cache, released) -> None:
    cache.keep("anna", TALK, "talk", 40)
    cache.keep("ben", TALK, "ben's", 40)

    assert cache.reserve("anna", (1, 2, 9), 30, 30) == ("talk", 2, True)

    assert released == ["ben's"]


def test_a_sequence_to_copy_that_cannot_stay_is_handed_over(cache, released) -> None:
    cache.keep("anna", TALK, "talk", 40)

    assert cache.reserve("anna", (1, 2, 9), 70, 70) == ("talk", 2, False)

    assert (cache.use.sequences, released) == (0, [])
