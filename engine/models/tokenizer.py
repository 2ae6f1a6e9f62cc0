"""Text to token ids and back, for any vocabulary that a checkpoint brings.

Built on the `tokenizers` library, from a tokenizer.json or from the vocabulary inside a GGUF file.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import tokenizers

from engine.errors import RequestError, TokenizerError
from engine.models import harmony
from engine.models.chat import ChatTemplate
from engine.models.checkpoints.gguf_vocabulary import Vocabulary, refuse_damage, vocabulary_from_gguf
from engine.models.checkpoints.json_file import read_object
from engine.models.infill import InfillTokens, find_infill
from engine.models.prompt import ChatMessage, Prompt
from engine.models.text_stream import SpellsTokens
from engine.models.token_reuse import TokenReuse, may_cut

_END_NAMES = frozenset(
    (
        "<|endoftext|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<end_of_turn>",
        "<｜end▁of▁sentence｜>",
        "</s>",
    )
)
"""Special tokens that end a text or a turn, whether or not a checkpoint says so."""
_MARK = "\u263a"
"""A character that no vocabulary joins with what follows: what Code Llama's own tokenizer puts there."""

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


class Tokenizer:
    """One checkpoint's vocabulary. Safe to share between threads.

    vocab_size: ids run from 0 to vocab_size - 1. bos_id: the token that starts a text, None if the model
    wants none. eos_ids: tokens after which nothing follows. chat_template and infill: None if the model
    has none.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises TokenizerError if the chat template does not parse."""
        self.infill = find_infill(vocabulary.tokenizer.token_to_id, vocabulary.infill_ids)
        self._special_ids = vocabulary.special_ids | _promote(vocabulary, self.infill)
        self._special = vocabulary.tokenizer
        # The library finds special tokens in any text unless told not to, and the switch belongs to the
        # object: user text goes through a copy that never finds them.
        self._plain = _twin(vocabulary.tokenizer)
        self._plain.encode_special_tokens = True
        self._byte_level = vocabulary.byte_level
        self._reuse = TokenReuse() if may_cut(vocabulary.tokenizer) else None
        self._added_ids = frozenset(self._special.get_added_tokens_decoder())
        self._bytes: dict[int, bytes] = {}
        self._special_text = [t for i in self._special_ids if (t := self._special.id_to_token(i))]
        self.vocab_size: int = self._special.get_vocab_size(with_added_tokens=True)
        self.bos_id = vocabulary.bos_id if vocabulary.adds_bos else None
        infill_ends = self.infill.ends if self.infill else frozenset()
        self._is_harmony = self._special.token_to_id(harmony.RETURN) in self._special_ids
        self.eos_ids = frozenset(vocabulary.eos_ids | self._named_ends() | infill_ends)
        self.chat_template = vocabulary.chat_template
        self._chat: ChatTemplate | None = None
        if vocabulary.chat_template is not None:
            bos, eos = self._name(vocabulary.bos_id), self._name(vocabulary.eos_id)
            self._chat = ChatTemplate(vocabulary.chat_template, bos_token=bos, eos_token=eos)

    def _named_ends(self) -> set[int]:
        """Special tokens that end a text by their names."""
        names = harmony.ENDS if self._is_harmony else _END_NAMES
        return {i for name in names if (i := self._special.token_to_id(name)) in self._special_ids}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Self:
        """The vocabulary inside a GGUF file. Raises TokenizerError if it is of an unknown kind."""
        return cls(vocabulary_from_gguf(metadata))

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """tokenizer.json in `folder`, with tokenizer_config.json and generation_config.json if there.

        Raises TokenizerError if a file is missing or damaged.
        """
        return cls(_vocabulary_from_folder(folder))

    def encode(self, text: str, *, special: bool = False, owner: str = "") -> list[int]:
        """Token ids of `text`, no BOS. `special` parses the names of special tokens in the text as such.

        With an `owner` the tokens are kept, and what an earlier text of that owner began with is not
        tokenised again. Raises RequestError if `text` is not Unicode (it holds a lone surrogate).
        """
        encoder = self._special if special else self._plain
        try:
            if self._reuse is None or not owner:
                return encoder.encode(text, add_special_tokens=False).ids
            return self._reuse.encode(text, owner, partial(_encode_each, encoder), special=special)
        except TypeError as error:
            raise RequestError(f"the text is not Unicode: {_first_surrogate(text)}") from error

    def encode_prompt(self, prompt: Prompt, owner: str = "") -> list[int]:
        """Token ids that the model should see for `prompt`; `owner` as in `encode`.

        Text gets a BOS if the model wants one; text with a suffix becomes a fill-in-the-middle prompt;
        chat messages go through the model's template. The names of special tokens inside users' text
        are only text. Raises RequestError if the model cannot do what the prompt asks for.
        """
        if prompt.messages:
            return self._encode_chat(prompt.messages, owner)
        if prompt.tokens:
            return self._check_ids(prompt.tokens)
        start = [] if self.bos_id is None else [self.bos_id]
        text = self.encode(prompt.text or "", owner=owner)
        if prompt.suffix is None:
            return start + text
        if self.infill is None:
            raise RequestError(
                "this model has no fill-in-the-middle tokens; send the prompt without a suffix"
            )
        return start + self.infill.arrange(text, self._encode_after_gap(prompt.suffix, owner))

    def _encode_after_gap(self, suffix: str, owner: str) -> list[int]:
        """`suffix` without the space that a SentencePiece vocabulary puts before a text."""
        if self._byte_level:
            return self.encode(suffix, owner=owner)
        marked = self.encode(_MARK + suffix)
        bare = self.encode(_MARK)
        return marked[len(bare) :] if marked[: len(bare)] == bare else self.encode(suffix)

    def _check_ids(self, tokens: Sequence[int]) -> list[int]:
        wrong = next((token for token in tokens if not 0 <= token < self.vocab_size), None)
        if wrong is not None:
            raise RequestError(
                f"token id {wrong} is not in the vocabulary; ids are 0 to {self.vocab_size - 1}"
            )
        return list(tokens)

    def token_bytes(self, token: int) -> bytes:
        """What `token` adds to the text: UTF-8, possibly a part of a character; b"" for special tokens."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._spell(token)
        return known

    def speller(self, prompt: Prompt) -> SpellsTokens:
        """What writes the tokens of one answer to `prompt`."""
        if self._is_harmony and prompt.messages:
            return harmony.HarmonySpeller(self.token_bytes, self._special.token_to_id)
        return self

    def label(self, token: int) -> str:
        """How to show `token` by itself: its text, a special token's name, or its bytes if they are no text.

        The last in the OpenAI API's notation, as in `bytes:\\xf0\\x9f`.
        """
        spelled = self.token_bytes(token)
        if not spelled:
            return self._name(token)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special tokens left out, broken characters as U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def _name(self, token: int | None) -> str:
        return "" if token is None else self._special.id_to_token(token) or ""

    def _spell(self, token: int) -> bytes:
        piece = self._special.id_to_token(token)
        if piece is None or token in self._special_ids:
            return b""
        if token in self._added_ids:
            return piece.encode()
        if self._byte_level:
            return b"".join(_BYTE_OF.get(c) or c.encode() for c in piece)
        byte = _BYTE_PIECE.match(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()

    def _encode_chat(self, messages: Sequence[ChatMessage], owner: str) -> list[int]:
        if self._chat is None:
            raise RequestError("this model has no chat template; send a text prompt")
        veil = _Veil(self._special_text)
        rows = [{"role": m.role, "content": veil.cover(m.content)} for m in messages]
        ids: list[int] = []
        for text, plain in veil.split(self._chat.render(rows)):
            ids += self.encode(text, special=not plain, owner=owner)
        return ids


class _Veil:
    """Hides the names of special tokens in users' text from a chat template's output.

    A user who types "<|im_end|>" must not end the turn. Each name is replaced by a mark that nobody can
    guess; after rendering, the marks are where plain text has to be encoded as such.
    """

    def __init__(self, names: Sequence[str]) -> None:
        by_length = sorted(filter(None, names), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, by_length))) if by_length else None
        self._mark = secrets.token_hex(16)
        self._hidden: list[str] = []

    def cover(self, text: str) -> str:
        return self._names.sub(self._hide, text) if self._names else text

    def _hide(self, match: re.Match[str]) -> str:
        self._hidden.append(match[0])
        return f"{self._mark}{len(self._hidden) - 1}."

    def split(self, rendered: str) -> list[tuple[str, bool]]:
        """(text, whether a user wrote it) in order."""
        if not self._hidden:
            return [(rendered, False)]
        parts = re.split(rf"{self._mark}(\d+)\.", rendered)
        return [
            (self._hidden[int(part)] if i % 2 else part, bool(i % 2)) for i, part in enumerate(parts) if part
        ]


def _encode_each(encoder: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The library takes several at once side by side, and one sooner by itself."""
    if len(texts) == 1:
        return [encoder.encode(texts[0], add_special_tokens=False).ids]
    return [found.ids for found in encoder.encode_batch_fast(list(texts), add_special_tokens=False)]


def _twin(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same with switches of its own, and one vocabulary: to read it again takes 0.1 s and more."""
    twin = tokenizers.Tokenizer(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (own := getattr(tokenizer, part)) is not None:
            setattr(twin, part, own)
    added = tokenizer.get_added_tokens_decoder()
    twin.add_tokens([added[token] for token in sorted(added)])
    return twin


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes. Source: OpenAI's GPT-2 encoder."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    alphabet = {chr(b): b for b in printable}
    return alphabet | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = {character: bytes([byte]) for character, byte in _byte_alphabet().items()}


def _first_surrogate(text: str) -> str:
    at = next((i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff"), 0)
    return f"character {at} is {text[at]!a}, half of a surrogate pair"


def _promote(vocabulary: Vocabulary, infill: InfillTokens | None) -> frozenset[int]:
    """Makes special tokens of those that steer the model but are not marked as such; their ids.

    Some checkpoints list their fill-in-the-middle tokens as ordinary ones: users could type them.
    """
    steering = vocabulary.eos_ids.union(infill or ())
    added = vocabulary.tokenizer.get_added_tokens_decoder()
    found = {i: added[i].content for i in steering if i in added and not added[i].special}
    tokens = [tokenizers.AddedToken(text, special=True, normalized=False) for text in found.values()]
    vocabulary.tokenizer.add_special_tokens(tokens)
    return frozenset(found)


def _vocabulary_from_folder(folder: Path) -> Vocabulary:
    path = folder / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    with refuse_damage(f"{path} is not a usable tokenizer"):
        tokenizer = tokenizers.Tokenizer.from_str(text)
        byte_level = "ByteLevel" in json.dumps(json.loads(text).get("decoder"))
    settings = _json_object(folder / "tokenizer_config.json")
    generation = _json_object(folder / "generation_config.json")
    model = _json_object(folder / "config.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    bos = _token_id(tokenizer, settings.get("bos_token"))
    eos = _token_id(tokenizer, settings.get("eos_token"))
    added = set(tokenizer.encode("").ids)
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return Vocabulary(
        tokenizer=tokenizer,
        byte_level=byte_level,
        special_ids=frozenset(special),
        bos_id=bos,
        adds_bos=bool(settings.get("add_bos_token", bos in added)),
        eos_id=eos,
        eos_ids=frozenset(_ids(generation.get("eos_token_id")) | _ids(model.get("eos_token_id")) | _ids(eos)),
        chat_template=_template(folder, settings.get("chat_template")),
    )


def _json_object(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error


def _token_id(tokenizer: tokenizers.Tokenizer, token: Any) -> int | None:
    """`token` is written as its text or as an object with a `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(text) if isinstance(text, str) else None


def _ids(value: Any) -> set[int]:
    """An id, a list of ids, or nothing."""
    return {i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)}


def _template(folder: Path, setting: Any) -> str | None:
    """The default chat template: a file of its own, a string, or the entry named default in a list."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path} cannot be read as UTF-8 text: {error}") from error
    if isinstance(setting, list):
        defaults = [t for t in setting if isinstance(t, dict) and t.get("name") == "default"]
        setting = defaults[-1].get("template") if defaults else None
    return setting if isinstance(setting, str) else None
