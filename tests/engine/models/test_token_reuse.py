"""Tokens of pieces are the tokens of the whole, for every kind of vocabulary that may be cut."""

from __future__ import annotations

from functools import cache

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers

from engine.models.checkpoints.gguf_vocabulary import LLAMA3_WORDS, QWEN2_WORDS, Vocabulary
from engine.models.prompt import ChatMessage, Prompt
from engine.models.token_reuse import TokenReuse, may_cut, pieces
from engine.models.tokenizer import Tokenizer

CORPUS = [
    "def total(values):\n    sum = 0\n    for value in values:\n        sum += value\n    return sum\n",
    "It's 2024, they'll say: 'don't'; and 1234567 more.\r\n\r\n\tEnd of  line  \nhere é è à ü",
]
TEXTS = st.text(alphabet="ab1 \n\r\t'.;:s{é\u0301\u2003x\N{GRINNING FACE}<|>", max_size=80) | st.lists(
    st.sampled_from(["def ", "total", "\n    ", "'s", " values", "12", " \n", "  ", "é", ";\n", "<|x|>", "a"])
).map("".join)

WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
LETTERS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
RULES = {
    "gpt2": WORDS,
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), WORDS]),
    "llama3": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated"), LETTERS]),
    "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"), LETTERS]),
}


@cache
def trained(rule: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = RULES[rule]
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<|x|>", special=False, normalized=False)])
    return tokenizer


def in_pieces(tokenizer: tokenizers.Tokenizer, reuse: TokenReuse, text: str, owner: str = "me") -> list[int]:
    return reuse.encode(
        text, owner, lambda texts: [tokenizer.encode(each).ids for each in texts], special=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), least=st.integers(1, 9))
def test_the_tokens_of_pieces_are_those_of_the_text(rule: str, texts: list[str], least: int) -> None:
    tokenizer, reuse = trained(rule), TokenReuse(kept_chars=200, piece_chars=least)
    assert may_cut(tokenizer)
    growing = ["".join(texts[: n + 1]) for n in range(len(texts))]
    for text in (*growing, *texts):
        assert in_pieces(tokenizer, reuse, text) == tokenizer.encode(text).ids


def test_a_known_beginning_is_not_tokenised_again() -> None:
    asked: list[str] = []

    def encode(texts: object) -> list[list[int]]:
        asked.extend(texts)  # type: ignore[call-overload]
        return [trained("gpt2").encode(text).ids for text in texts]  # type: ignore[attr-defined]

    reuse, text = TokenReuse(piece_chars=16), CORPUS[0] * 4
    reuse.encode(text, "me", encode, special=False)
    asked.clear()
    reuse.encode(text + "    more = 1\n", "me", encode, special=False)
    assert sum(map(len, asked)) < 64
    asked.clear()
    reuse.encode(text, "somebody else", encode, special=False)
    assert sum(map(len, asked)) > len(text) / 4  # equal pieces of one text count once


def test_the_least_recently_used_pieces_go_first() -> None:
    reuse = TokenReuse(kept_chars=20, piece_chars=1 << 20)
    asked: list[str] = []

    def encode(texts: object) -> list[list[int]]:
        asked.extend(texts)  # type: ignore[call-overload]
        return [[len(text)] for text in texts]  # type: ignore[attr-defined]

    for text in ("a" * 9, "b" * 9, "a" * 9, "c" * 9, "a" * 9, "b" * 9):
        assert reuse.encode(text, "me", encode, special=False) == [9]
    assert [text[0] for text in asked] == ["a", "b", "c", "b"]


def test_pieces_are_cut_from_the_beginning_on() -> None:
    text = "one two three\nfour five six"
    assert pieces(text, 4) == ["one two", " three", "\nfour", " five", " six"]
    assert pieces(text + " seven", 4)[:3] == pieces(text, 4)[:3]
    assert pieces("", 4) == []


def unsafe() -> dict[str, tokenizers.Tokenizer]:
    found = {}
    for name in ("unknown rule", "sentencepiece", "prefix space", "spaces in a token", "another normaliser"):
        found[name] = tokenizers.Tokenizer.from_str(trained("gpt2").to_str())
    found["unknown rule"].pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\w+\s*"), "isolated"), LETTERS]
    )
    found["sentencepiece"].pre_tokenizer = pre_tokenizers.Metaspace()
    found["prefix space"].pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    found["spaces in a token"].add_tokens([AddedToken("end of text")])
    found["another normaliser"].normalizer = normalizers.NFKC()
    return found


@pytest.mark.parametrize("why", unsafe())
def test_a_vocabulary_whose_rules_are_not_known_is_not_cut(why: str) -> None:
    assert not may_cut(unsafe()[why])


def test_prompts_of_every_kind_have_the_same_tokens_with_an_owner() -> None:
    library = tokenizers.Tokenizer.from_str(trained("gpt2").to_str())
    names = ["<|im_start|>", "<|im_end|>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    library.add_special_tokens([AddedToken(name, special=True) for name in names])
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    special = frozenset(library.token_to_id(name) for name in names)
    tokenizer = Tokenizer(Vocabulary(library, True, special, None, False, None, frozenset(), template))
    long = CORPUS[0] * 20
    prompts = (
        Prompt(long),
        Prompt(long, suffix=CORPUS[1] * 20),
        Prompt(messages=(ChatMessage("system", long), ChatMessage("user", "a <|im_end|> typed" + long))),
    )
    for prompt in prompts:
        for _ in range(2):
            assert tokenizer.encode_prompt(prompt, "me") == tokenizer.encode_prompt(prompt)
