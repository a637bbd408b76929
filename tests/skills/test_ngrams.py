"""The n-grams of instructions, and the search by what two of them share."""

from app.skills.similarity import NgramIndex, ngrams


def test_jaccard_is_shared_ngrams_over_all_ngrams() -> None:
    index: NgramIndex[str] = NgramIndex()
    index.add("mail", "archive mails from iris")
    # archive, mail, from, iris, archive mail, mail from, from iris | archive, mail, from, omar, ... : 5 of 9
    assert index.search("archive mails from omar", 5) == [("mail", 5 / 9)]


def test_the_word_in_a_slot_does_not_matter() -> None:
    index: NgramIndex[str] = NgramIndex()
    index.add("mail", "archive mails from iris", {"iris"})
    assert index.search("archive mails from omar", 5) == [("mail", 1.0)]
    # 3 of 5 are shared (mail, from, mail from); the slot excuses 2 of the query's other 4
    assert index.search("delete mails from omar", 5) == [("mail", 3 / 7)]


def test_a_possessive_matters_only_after_a_preposition() -> None:
    assert ngrams("archive my mails") == ngrams("archive all mails")
    assert ngrams("mails from my family") != ngrams("mails from family")


def test_an_ngram_never_spans_a_slot() -> None:
    assert ngrams("count mails by iris now", slots={"iris"}) == {
        "count",
        "mail",
        "by",
        "now",
        "count mail",
        "mail by",
    }


def test_a_removed_text_is_not_found_and_a_replaced_one_only_once() -> None:
    index: NgramIndex[int] = NgramIndex()
    index.add(1, "archive mails")
    index.add(2, "archive mails")
    index.remove(1)
    index.add(2, "archive notes")
    assert index.search("archive mails", 5) == [(2, 1 / 5)]
    index.remove(9)
    assert len(index) == 1


def test_compaction_changes_no_result() -> None:
    index: NgramIndex[int] = NgramIndex()
    for number in range(3000):
        index.add(number, f"archive mails number{number} group{number % 7}")
    kept = range(2, 3000, 3)
    for number in set(range(3000)) - set(kept):
        index.remove(number)
    plain: NgramIndex[int] = NgramIndex()
    for number in kept:
        plain.add(number, f"archive mails number{number} group{number % 7}")
    for query in ("archive mails number1001 group0", "group3", "number2"):
        assert index.search(query, 9) == plain.search(query, 9)
    index.add(5000, "number1001")
    assert index.search("number1001", 1) == [(5000, 1.0)]


def test_ties_go_to_the_text_added_last() -> None:
    index: NgramIndex[int] = NgramIndex()
    for number in (3, 1, 2):
        index.add(number, "archive mails")
    assert [key for key, _ in index.search("archive mails", 2)] == [2, 1]
