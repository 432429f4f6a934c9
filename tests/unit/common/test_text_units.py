from minimq_common.text_units import count_of
from support.cases import for_each


@for_each(("count", "text"), [(0, "0 entries"), (1, "1 entry"), (2, "2 entries"), (2_000_000, "2,000,000 entries")])
def test_a_count_has_the_word_for_one_or_for_several(count: int, text: str) -> None:
    assert count_of(count, "entry", "entries") == text
    assert count_of(count, "queue") == text.replace("entry", "queue").replace("entries", "queues")
