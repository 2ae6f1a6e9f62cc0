"""Fill in the middle in the styles of four families."""

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Inner

from engine.models.checkpoints.gguf_vocabulary import Vocabulary
from engine.models.infill import STYLES, InfillTokens, find_infill
from engine.models.prompt import Prompt
from engine.models.tokenizer import Tokenizer

LETTERS = [*pre_tokenizers.ByteLevel.alphabet(), "<s>"]


def vocabulary(style: str, *, ends: bool = True) -> Vocabulary:
    """A byte-level vocabulary whose style's tokens are ordinary ones, as Qwen2.5-Coder lists them."""
    names = STYLES[style]
    added = [names.prefix, names.suffix, names.middle, *(names.ends if ends else ())]
    inner = Inner(models.BPE({letter: i for i, letter in enumerate(LETTERS)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens([AddedToken(name, special=False, normalized=False) for name in added])
    return Vocabulary(inner, True, frozenset(), None, False, None, frozenset(), None)


@pytest.mark.parametrize("style", STYLES)
def test_each_style_is_found_by_the_names_of_its_tokens(style: str) -> None:
    tokenizer = Tokenizer(vocabulary(style))
    names = STYLES[style]
    prefix, suffix, middle = (
        tokenizer.encode(name, special=True)[0] for name in (names.prefix, names.suffix, names.middle)
    )

    ids = tokenizer.encode_prompt(Prompt(text="a = ", suffix=" + 1"))

    assert ids == [prefix, *tokenizer.encode("a = "), suffix, *tokenizer.encode(" + 1"), middle]


@pytest.mark.parametrize("style", STYLES)
def test_what_a_model_writes_when_the_gap_is_full_ends_the_text(style: str) -> None:
    tokenizer = Tokenizer(vocabulary(style))

    assert tokenizer.infill is not None
    assert len(tokenizer.infill.ends) == len(STYLES[style].ends)
    assert tokenizer.infill.ends <= tokenizer.eos_ids


@pytest.mark.parametrize("style", STYLES)
def test_users_cannot_type_what_steers_the_gap(style: str) -> None:
    tokenizer = Tokenizer(vocabulary(style))
    names = STYLES[style]

    for name in (names.prefix, names.suffix, names.middle, *names.ends):
        assert not set(tokenizer.encode(f"x {name} y")) & set(tokenizer.infill or ())
        assert tokenizer.decode(tokenizer.encode(f"x {name} y")) == f"x {name} y"


def test_tokens_that_the_container_names_win_and_keep_their_styles_ends() -> None:
    ids = {"<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3, "<fim_pad>": 4, "<|fim_prefix|>": 5}

    assert find_infill(ids.get, (1, 2, 3)) == InfillTokens(1, 2, 3, frozenset({4}))
    assert find_infill(ids.get, (7, 8, 9)) == InfillTokens(7, 8, 9)
    assert find_infill(ids.get, None) == InfillTokens(1, 2, 3, frozenset({4}))


def test_a_vocabulary_with_two_of_three_tokens_has_no_style() -> None:
    assert find_infill({"<fim_prefix>": 1, "<fim_suffix>": 2}.get, None) is None


def test_a_sentencepiece_suffix_does_not_begin_with_a_space_of_its_own() -> None:
    """Code Llama: the text before the gap starts with a space, as every text does; the one after does not."""
    names = STYLES["codellama"]
    inner = Inner(models.BPE({"▁": 0, "a": 1, "b": 2, "☺": 3}, []))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    marks = (names.prefix, names.suffix, names.middle)
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in marks])
    special = frozenset((4, 5, 6))
    tokenizer = Tokenizer(Vocabulary(inner, False, special, None, False, None, frozenset(), None))

    assert tokenizer.encode_prompt(Prompt(text="a", suffix="b")) == [4, 0, 1, 5, 2, 6]
