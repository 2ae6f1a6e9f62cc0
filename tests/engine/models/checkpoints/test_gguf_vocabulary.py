"""Vocabularies inside GGUF files, against plain statements of what each kind means."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import TokenizerError
from engine.models.checkpoints.gguf_vocabulary import vocabulary_from_gguf
from engine.models.infill import InfillTokens
from engine.models.prompt import ChatMessage, Prompt
from engine.models.tokenizer import Tokenizer
from tests.engine.models.checkpoints.files import byte_vocabulary

WORDS = (
    "the",
    "de",
    "ef",
    "def",
    "▁def",
    "▁t",
    "▁the",
    "he",
    "th",
    "er",
    "▁▁",
    "▁▁▁▁",
    "ab",
    "bc",
    "abc",
    "日本",
    "12",
)
LETTERS = ("▁", *"abcdefghrt12日本")
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *WORDS, *LETTERS]
SPM = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": SPM_TOKENS,
    "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(WORDS) + len(LETTERS))],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(WORDS) + len(LETTERS)),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}
BPE = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [
        *byte_vocabulary(260),
        "Ġab",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
    ],
    "tokenizer.ggml.merges": ["a b", "Ġ ab"],
    "tokenizer.ggml.token_type": [3, 3, 3] + [1] * 258 + [4] * 3,
    "tokenizer.ggml.eos_token_id": 2,
}
TEXTS = st.text(alphabet=[*"abcdefghrt12 \n<>é日本🙂/s"], max_size=24)


def sentencepiece(text: str) -> list[str]:
    """SentencePiece's BPE by its definition: join the best-scoring neighbours until none is left."""
    score = dict(zip(SPM_TOKENS, SPM["tokenizer.ggml.scores"], strict=True))  # type: ignore[arg-type]
    pieces = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joins = [(score[a + b], -i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in score]
        if not joins:
            return [p for piece in pieces for p in _or_bytes(piece)]
        at = -max(joins)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


def _or_bytes(piece: str) -> Sequence[str]:
    return [piece] if piece in SPM_TOKENS else [f"<0x{b:02X}>" for b in piece.encode()]


@given(TEXTS)
def test_sentencepiece_vocabularies_encode_by_their_definition(text: str) -> None:
    ids = _spm().encode(text)

    assert [SPM_TOKENS[i] for i in ids] == sentencepiece(text)


@given(TEXTS)
def test_sentencepiece_text_comes_back_after_the_space_it_starts_with(text: str) -> None:
    tokenizer = _spm()

    assert tokenizer.decode(tokenizer.encode(text)) == (" " + text if text else "")


@cache
def _spm() -> Tokenizer:
    return Tokenizer.from_gguf(SPM)


def test_a_sentencepiece_model_starts_with_bos_and_ends_with_eos() -> None:
    tokenizer = _spm()

    assert tokenizer.bos_id == 1
    assert tokenizer.eos_ids == {2}
    assert tokenizer.token_bytes(1) == tokenizer.token_bytes(2) == tokenizer.token_bytes(0) == b""


def test_a_piece_that_would_take_seconds_to_cut_is_refused() -> None:
    long = {**SPM, "tokenizer.ggml.tokens": [*SPM_TOKENS[:-1], "本" * 80_000]}
    with pytest.raises(TokenizerError, match="a piece of 80000 characters; at most 1024"):
        Tokenizer.from_gguf(long)


def test_byte_tokens_spell_one_byte() -> None:
    assert _spm().token_bytes(3 + 0xF0) == b"\xf0"


@given(st.text())
def test_byte_level_text_comes_back_whole(text: str) -> None:
    tokenizer = _bpe()

    assert tokenizer.decode(tokenizer.encode(text)) == text


@cache
def _bpe() -> Tokenizer:
    return Tokenizer.from_gguf(BPE)


def test_merges_apply_in_order() -> None:
    tokens = BPE["tokenizer.ggml.tokens"]

    assert [tokens[i] for i in _bpe().encode("ab ab")] == ["ab", "Ġab"]


RULES = ["gpt-2", "smollm", "llama-bpe", "smaug-bpe", "qwen2", "gpt-4o", "tekken", "deepseek-coder"]


@pytest.mark.parametrize("rule", RULES)
def test_every_known_rule_keeps_the_text(rule: str) -> None:
    tokenizer = Tokenizer.from_gguf({**BPE, "tokenizer.ggml.pre": rule})
    text = "def f(x):\n\n    return 12345 + x  # it's 你好 🙂\r\n"

    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("gpt-2", ["a12345"]),
        ("smollm", ["1", "2", "3", "4", "5"]),
        ("qwen2", ["1", "2", "3", "4", "5"]),
        ("llama-bpe", ["123", "45"]),
        ("gpt-4o", ["123", "45"]),
        ("smaug-bpe", ["123", "45"]),
        ("tekken", ["1", "2", "3", "4", "5"]),
        ("deepseek-coder", ["1", "2", "3", "4", "5"]),
    ],
)
def test_rules_differ_in_how_they_cut_digits(rule: str, expected: list[str]) -> None:
    cuts = vocabulary_from_gguf({**BPE, "tokenizer.ggml.pre": rule}).tokenizer.pre_tokenizer

    words = [word for word, _ in cuts.pre_tokenize_str("a12345")]

    assert words == (["a", "12345"] if rule == "gpt-2" else ["a", *expected])


def test_a_word_of_o200k_ends_where_a_capital_begins() -> None:
    cuts = vocabulary_from_gguf({**BPE, "tokenizer.ggml.pre": "gpt-4o"}).tokenizer.pre_tokenizer

    words = [word for word, _ in cuts.pre_tokenize_str("getHTTPCodeNow it's a/b//\nEND")]

    assert words == ["get", "HTTPCode", "Now", "Ġit's", "Ġa", "/b", "//Ċ", "END"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("tekken", ["get", "HTTPCode", "Now", "Ġit", "'s", "Ġ", "4", "2", "//Ċ", "ä½łå¥½"]),
        ("deepseek-coder", ["getHTTPCodeNow", "Ġit", "'", "s", "Ġ", "4", "2", "//", "Ċ", "ä½łå¥½"]),
    ],
)
def test_words_of_other_models_end_by_their_own_rules(rule: str, expected: list[str]) -> None:
    cuts = vocabulary_from_gguf({**BPE, "tokenizer.ggml.pre": rule}).tokenizer.pre_tokenizer

    assert [word for word, _ in cuts.pre_tokenize_str("getHTTPCodeNow it's 42//\n你好")] == expected


@pytest.mark.parametrize(
    ("rule", "said", "begins"),
    [
        ("llama-bpe", {}, True),
        ("tekken", {}, True),
        ("llama-bpe", {"tokenizer.ggml.add_bos_token": False}, False),
        ("qwen2", {}, False),
        ("smaug-bpe", {}, False),
    ],
)
def test_texts_of_llama_3_begin_with_bos_although_their_files_do_not_say_so(
    rule: str, said: dict[str, bool], begins: bool
) -> None:
    tokenizer = Tokenizer.from_gguf(
        {**BPE, "tokenizer.ggml.pre": rule, "tokenizer.ggml.bos_token_id": 1, **said}
    )

    assert tokenizer.bos_id == (1 if begins else None)
    assert tokenizer.encode_prompt(Prompt("ab"))[:1] == ([1] if begins else tokenizer.encode("ab"))


def _harmony() -> tuple[Tokenizer, int]:
    """GPT-OSS's special tokens behind those of BPE, and the id of the first."""
    names = ["<|return|>", "<|end|>", "<|call|>", "<|channel|>", "<|message|>"]
    tokens = [*BPE["tokenizer.ggml.tokens"], *names]
    types = [*BPE["tokenizer.ggml.token_type"], *[3] * len(names)]
    metadata = {**BPE, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    metadata = {name: value for name, value in metadata.items() if "eos" not in name and "eot" not in name}
    return Tokenizer.from_gguf(metadata), len(tokens) - len(names)


def test_a_message_that_ends_does_not_end_an_answer_of_gpt_oss() -> None:
    """Its answers are several messages, each of which `<|end|>` ends."""
    tokenizer, first = _harmony()

    assert {first, first + 2} <= tokenizer.eos_ids
    assert first + 1 not in tokenizer.eos_ids


def test_only_answers_in_a_chat_have_channels() -> None:
    tokenizer, first = _harmony()
    letter = BPE["tokenizer.ggml.tokens"].index("a")
    answer = [first + 3, letter, first + 4, letter]

    def spelled(prompt: Prompt) -> bytes:
        speller = tokenizer.speller(prompt)
        return b"".join(speller.token_bytes(token) for token in answer)

    assert spelled(Prompt(text="a")) == b"aa"
    assert spelled(Prompt(messages=(ChatMessage("user", "a"),))) == b"<think>\na"
    assert _bpe().speller(Prompt(messages=(ChatMessage("user", "a"),))).token_bytes(letter) == b"a"


def test_fill_in_the_middle_tokens_are_found_by_name() -> None:
    tokens = BPE["tokenizer.ggml.tokens"]

    assert _bpe().infill == InfillTokens(
        tokens.index("<|fim_prefix|>"), tokens.index("<|fim_suffix|>"), tokens.index("<|fim_middle|>")
    )


def test_fill_in_the_middle_tokens_that_the_file_names_come_first() -> None:
    named = {f"tokenizer.ggml.fim_{part}_token_id": i for i, part in enumerate(("pre", "suf", "mid"), 5)}

    assert Tokenizer.from_gguf({**BPE, **named}).infill == InfillTokens(5, 6, 7)


def test_users_cannot_type_fill_in_the_middle_tokens() -> None:
    tokenizer = _bpe()
    assert tokenizer.infill is not None

    assert tokenizer.infill.prefix not in tokenizer.encode("<|fim_prefix|>")
    assert tokenizer.encode("<|fim_prefix|>", special=True) == [tokenizer.infill.prefix]


@pytest.mark.parametrize(
    ("base", "changes", "problem"),
    [
        (BPE, {"tokenizer.ggml.model": "bert"}, "of kind 'bert'; supported are 'gpt2' and 'llama'"),
        (
            BPE,
            {"tokenizer.ggml.pre": "falcon"},
            "rule 'falcon', which is not supported; use the model's Hugging",
        ),
        (BPE, {"tokenizer.ggml.pre": "default"}, "rule 'default'"),
        (BPE, {"tokenizer.ggml.tokens": None}, "no vocabulary"),
        (BPE, {"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, "1 tokens twice"),
        (BPE, {"tokenizer.ggml.merges": None}, "no merges"),
        (BPE, {"tokenizer.ggml.merges": ["a nothing"]}, "contradicts itself"),
        (BPE, {"tokenizer.ggml.merges": ["a"]}, "contradicts itself"),
        (BPE, {"tokenizer.ggml.merges": ["a c"]}, "contradicts itself"),
        (BPE, {"tokenizer.ggml.model": np.array([1, 2])}, r"model is array\(.*it must be a word"),
        (BPE, {"tokenizer.ggml.pre": np.array([1, 2])}, r"pre is array\(.*it must be a word"),
        (BPE, {"tokenizer.ggml.add_bos_token": np.array([1, 2])}, "it must be true or false"),
        (BPE, {"tokenizer.ggml.token_type": [1]}, "token_type is not one number for each of the 264 tokens"),
        (BPE, {"tokenizer.ggml.eos_token_id": 9999}, "eos_token_id is 9999; the vocabulary has 264"),
        (BPE, {"tokenizer.ggml.token_type": ["x"] * 264}, "token_type is not one number"),
        (SPM, {"tokenizer.ggml.scores": None}, "has no scores"),
        (SPM, {"tokenizer.ggml.scores": [0.0]}, "scores is not one number for each"),
        (SPM, {"tokenizer.ggml.unknown_token_id": "x"}, "unknown_token_id is 'x'"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_one_error(
    base: dict[str, Any], changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TokenizerError, match=problem):
        Tokenizer.from_gguf({**base, **changes})
