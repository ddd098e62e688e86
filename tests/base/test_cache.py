"""What is remembered per object is bounded."""

from __future__ import annotations

from inferometer.base.cache import cache_by_identity


def test_what_is_remembered_is_bounded() -> None:
    calls: list[str] = []

    @cache_by_identity(3)
    def shout(thing: list[str], mark: str) -> str:
        calls.append(mark)
        return thing[0].upper() + mark

    words = ["a"]
    assert shout(words, "!") == shout(words, "!") == "A!" and calls == ["!"]
    others = [[letter] for letter in "bcdefg"]
    assert [shout(other, "?") for other in others] == ["B?", "C?", "D?", "E?", "F?", "G?"]
    assert shout(words, "!") == "A!" and calls.count("!") == 2  # forgotten in the meantime
