"""The vocabulary inside a GGUF file, as a tokenizer of the `tokenizers` library.

Two kinds are supported: "gpt2" (byte-level BPE with merges, whose way of cutting text into words is
named by `tokenizer.ggml.pre`) and "llama" (SentencePiece BPE with scores and byte fallback).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.errors import TokenizerError

_MAX_PIECE = 1024
"""Characters: looking for ways to cut a piece takes the square of them; published ones stay far below."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer and what its container says about it."""

    tokenizer: Tokenizer
    byte_level: bool
    """Pieces spell bytes in GPT-2's alphabet; otherwise they are SentencePiece text."""
    special_ids: frozenset[int]
    bos_id: int | None
    adds_bos: bool
    eos_id: int | None
    eos_ids: frozenset[int]
    """`eos_id` and every other token that ends a text or a turn."""
    chat_template: str | None
    infill_ids: tuple[int, int, int] | None = None
    """Prefix, suffix and middle of a fill-in-the-middle prompt, where the container says so."""


@contextmanager
def refuse_damage(problem: str) -> Iterator[None]:
    """TokenizerError in place of whatever the library raises for a vocabulary that contradicts itself.

    It raises bare Exception, and pyo3's PanicException, which is no Exception, where it had not looked.
    """
    try:
        yield
    except TokenizerError:
        raise
    except Exception as error:
        raise TokenizerError(f"{problem}: {error!s:.300}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{problem}: {error!s:.300}") from error


_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
"""Values of tokenizer.ggml.token_type."""

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER, _ENDING = (
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
)
O200K_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Of o200k (GPT-4o, GPT-OSS): a word ends where a capital begins."""
TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Of Mistral Nemo: as o200k, but digits stand apart and an apostrophe begins a word."""
DEEPSEEK_CODER_WORDS = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-\x{d7ff}]+", r"\p{N}")
"""One after the other."""
_DIGITS_APART = frozenset(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"))
_LLAMA3 = frozenset(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"))
_SPLITS = {
    **dict.fromkeys((*_LLAMA3, "smaug-bpe", "dbrx"), (LLAMA3_WORDS,)),  # SmolLM3's files say smaug-bpe
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), (QWEN2_WORDS,)),
    "gpt-4o": (O200K_WORDS,),
    "tekken": (TEKKEN_WORDS,),
    "deepseek-coder": DEEPSEEK_CODER_WORDS,
}
"""By tokenizer.ggml.pre, for rules that are not GPT-2's."""
_WHOLE_WORDS = _LLAMA3 | {"tekken"}
"""A word of the vocabulary is taken whole, whatever merges lead to; and texts begin with a BOS, though
files do not say so: llama.cpp derives both from the rule."""


def vocabulary_from_gguf(metadata: Mapping[str, Any]) -> Vocabulary:
    """Raises TokenizerError if the vocabulary is missing, contradicts itself, or is of an unknown kind."""
    kind = _word(metadata, "model", "")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise TokenizerError("the GGUF file holds no vocabulary (tokenizer.ggml.tokens)")
    types = _numbers(metadata, "token_type", len(tokens)) or [_NORMAL] * len(tokens)
    if kind == "gpt2":
        with refuse_damage("the GGUF vocabulary contradicts itself"):
            tokenizer = _byte_level_bpe(metadata, tokens)
    elif kind == "llama":
        with refuse_damage("the GGUF vocabulary contradicts itself"):
            tokenizer = _sentencepiece_bpe(metadata, tokens, types)
    else:
        raise TokenizerError(f"the GGUF vocabulary is of kind {kind!r}; supported are 'gpt2' and 'llama'")
    special = {i: tokens[i] for i, t in enumerate(types) if t in (_UNKNOWN, _CONTROL)}
    own = [tokens[i] for i, t in enumerate(types) if t == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special.values()])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in own])
    template = metadata.get("tokenizer.chat_template")
    eos = _id(metadata, "eos", len(tokens))
    return Vocabulary(
        tokenizer=tokenizer,
        byte_level=kind == "gpt2",
        special_ids=frozenset(special),
        bos_id=_id(metadata, "bos", len(tokens)),
        adds_bos=_flag(metadata, "add_bos_token", kind == "llama" or _pre(metadata) in _WHOLE_WORDS),
        eos_id=eos,
        eos_ids=frozenset(i for i in (eos, _id(metadata, "eot", len(tokens))) if i is not None),
        chat_template=template if isinstance(template, str) else None,
        infill_ids=_infill(metadata, len(tokens)),
    )


def _pre(metadata: Mapping[str, Any]) -> str:
    """The name of the rule by which words are cut."""
    return _word(metadata, "pre", "default")


def _word(metadata: Mapping[str, Any], name: str, default: str) -> str:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, str):
        raise TokenizerError(f"tokenizer.ggml.{name} is {value!r:.80}; it must be a word")
    return value


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise TokenizerError(f"tokenizer.ggml.{name} is {value!r:.80}; it must be true or false")
    return value


def _id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < count:
        raise TokenizerError(
            f"tokenizer.ggml.{name}_token_id is {value!r}; the vocabulary has {count} tokens"
        )
    return value


def _numbers(metadata: Mapping[str, Any], name: str, count: int) -> list[float]:
    """One number for each token; [] if the file has none."""
    stored = metadata.get(f"tokenizer.ggml.{name}")
    if stored is None:
        return []
    values = np.asarray(stored)
    if values.shape != (count,) or values.dtype.kind not in "iuf":
        raise TokenizerError(f"tokenizer.ggml.{name} is not one number for each of the {count} tokens")
    return [float(v) for v in values]


def _infill(metadata: Mapping[str, Any], count: int) -> tuple[int, int, int] | None:
    prefix, suffix, middle = (_id(metadata, f"fim_{part}", count) for part in ("pre", "suf", "mid"))
    if prefix is None or suffix is None or middle is None:
        return None
    return prefix, suffix, middle


def _byte_level_bpe(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    lines = metadata.get("tokenizer.ggml.merges")
    if not isinstance(lines, list):
        raise TokenizerError("the GGUF vocabulary has no merges (tokenizer.ggml.merges)")
    merges = [tuple(line.split(" ", 1)) for line in lines]
    pre = _pre(metadata)
    ids = _ids(tokens)
    lost = next((line for line in lines if line.replace(" ", "", 1) not in ids), None)
    if lost is not None:  # the library would panic, and print so
        raise TokenizerError(f"the GGUF vocabulary contradicts itself: {lost!r:.80} merges to no token")
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=pre in _WHOLE_WORDS))
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in ("gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2"):
        return words
    if pre in _DIGITS_APART:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if pre in _SPLITS:
        splits = [pre_tokenizers.Split(Regex(words), "isolated") for words in _SPLITS[pre]]
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, letters])
    raise TokenizerError(
        f"the GGUF vocabulary cuts words by the rule {pre!r}, which is not supported;"
        " use the model's Hugging Face folder with its tokenizer.json"
    )


def _sentencepiece_bpe(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[float]
) -> Tokenizer:
    scores = _numbers(metadata, "scores", len(tokens))
    if not scores:
        raise TokenizerError("the GGUF vocabulary has no scores (tokenizer.ggml.scores)")
    ids = _ids(tokens)
    unknown = _id(metadata, "unknown", len(tokens))
    mergeable = [t for i, t in enumerate(tokens) if types[i] not in (_CONTROL, _BYTE)]
    model = models.BPE(
        ids,
        _merges_by_score(mergeable, ids, scores),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", "▁")
    prefix = _flag(metadata, "add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces] if prefix else [spaces])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _merges_by_score(
    pieces: Sequence[str], ids: Mapping[str, int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose union scores highest; as BPE merges, that is every way to cut
    each piece in two known ones, best scores first. Raises TokenizerError for one that takes long."""
    longest = max(map(len, pieces), default=0)
    if longest > _MAX_PIECE:
        raise TokenizerError(
            f"the GGUF vocabulary has a piece of {longest} characters; at most {_MAX_PIECE} can be cut in two"
        )
    cuts = [
        (-float(scores[ids[piece]]), ids[piece[:at]], ids[piece[at:]])
        for piece in pieces
        for at in range(1, len(piece))
        if piece[:at] in ids and piece[at:] in ids
    ]
    names = {i: piece for piece, i in ids.items()}
    return [(names[left], names[right]) for _, left, right in sorted(cuts)]


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise TokenizerError(f"the GGUF vocabulary lists {len(tokens) - len(ids)} tokens twice")
    return ids
