"""Tokens as people read them, prompts, and readings that are compared."""

from functools import cache

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from stages.command import Refusal
from stages.tokens.convert import bring_tokenizer
from stages.tokens.reading import PLACEHOLDER, differences, encode, load_tokenizer, read_prompts, reading, token_text
from tests import vocabularies
from tests.models import write_tokenizer


def byte_level():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)} | {"Ġt": 256}, [("Ġ", "t")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece():
    words = [("<unk>", 0.0), ("▁", -2.0), ("▁tea", -3.0), ("t", -5.0), ("é", -5.0)]
    tokenizer = Tokenizer(models.Unigram(words, 0, False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def test_leading_spaces_survive_in_every_kind_of_tokenizer(tmp_path):
    assert token_text(byte_level(), 256) == " t"
    assert token_text(sentencepiece(), 2) == " tea"
    assert token_text(sentencepiece(), 3) == "t"
    write_tokenizer(tmp_path)
    word = load_tokenizer(tmp_path)
    assert token_text(word, word.token_to_id("▁w3")) == " w3"


def test_any_id_has_a_text_and_none_raises():
    for tokenizer in (byte_level(), sentencepiece()):
        for token in range(400):
            text = token_text(tokenizer, token)
            assert isinstance(text, str)
            assert (text == PLACEHOLDER) == (token >= tokenizer.get_vocab_size())
        text = " 中国 🌙 é\x00"
        assert isinstance("".join(token_text(tokenizer, i) for i in encode(tokenizer, text)), str)
    # One byte of a longer character is shown as such, not left out.
    (moon, *_) = encode(byte_level(), "🌙")
    assert token_text(byte_level(), moon) == "\ufffd"


KINDS = ["llama", "t5", "gpt2", "tiktoken", "bert", "words"]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A tokenizer of a kind, as it is shipped."""

    @cache
    def shipped(kind):
        root = tmp_path_factory.mktemp(kind)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(root)
            (write_tokenizer if kind == "words" else getattr(vocabularies, f"write_{kind}"))(root / "m")
            (root / "out").mkdir()
            assert bring_tokenizer(root / "m", root / "out")["live"]
        return load_tokenizer(root / "out")

    return shipped


def shown(tokenizer, text):
    return [token_text(tokenizer, token) for token in tokenizer.encode(text, add_special_tokens=False).ids]


@pytest.mark.parametrize("kind", KINDS)
def test_every_id_of_every_kind_has_a_text_that_is_not_empty(shipped, kind):
    tokenizer = shipped(kind)
    for token in range(tokenizer.get_vocab_size()):
        text = token_text(tokenizer, token)
        assert text, token
        assert text != PLACEHOLDER
        assert kind == "bert" or not {"▁", "Ġ"} & set(text), token
    for token in (tokenizer.get_vocab_size(), 10**6):
        assert token_text(tokenizer, token) == PLACEHOLDER
    with pytest.raises(OverflowError):
        token_text(tokenizer, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_shown_by_their_names(shipped, kind):
    tokenizer = shipped(kind)
    for number, token in tokenizer.get_added_tokens_decoder().items():
        assert token_text(tokenizer, number) == token.content


@pytest.mark.parametrize(("kind", "front"), [("llama", " "), ("t5", " "), ("gpt2", ""), ("tiktoken", "")])
def test_a_text_is_its_tokens_in_a_row(shipped, kind, front):
    for text in ("the capital of Japan", "x (y) 12", "it's two"):
        assert "".join(shown(shipped(kind), text)) == front + text


@pytest.mark.parametrize("kind", ["llama", "gpt2", "tiktoken"])
def test_bytes_of_a_split_character_are_shown_as_such(shipped, kind):
    texts = shown(shipped(kind), "x 🦖")
    assert "".join(texts[:-1]).strip().startswith("x ")
    assert len(texts) >= 4
    assert set(texts[-1]) == {"\ufffd"}


@pytest.mark.parametrize(
    ("kind", "name"), [("llama", "▁"), ("llama", "<0x20>"), ("t5", "▁"), ("gpt2", "Ġ"), ("tiktoken", "Ġ")]
)
def test_a_space_alone_is_a_space(shipped, kind, name):
    assert token_text(shipped(kind), shipped(kind).token_to_id(name)) == " "


def test_bytes_that_would_join_their_own_repetition_are_not_lost():
    """A token of the end of a character and the start of another: `82 e2` after itself is `82 (e2 82) e2`."""
    characters = vocabularies.byte_characters()
    vocabulary = {character: byte for byte, character in characters.items()}
    vocabulary[characters[0x82] + characters[0xE2]] = 256
    tokenizer = Tokenizer(models.BPE(vocabulary, [(characters[0x82], characters[0xE2])]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    assert token_text(tokenizer, 256) == "\ufffd\ufffd"


def test_a_vocabulary_without_an_a_shows_its_tokens_too():
    tokenizer = Tokenizer(models.WordLevel({"▁": 0, "▁b": 1, "b": 2, "<s>": 3}, unk_token="<none>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    assert [token_text(tokenizer, token) for token in range(5)] == [" ", " b", "b", "<s>", PLACEHOLDER]


def test_differing_readings_are_named_by_prompt(tmp_path):
    prompts = [{"id": "a", "text": "w5"}, {"id": "b", "text": "w1 w1"}]
    write_tokenizer(tmp_path / "one")
    write_tokenizer(tmp_path / "two", swapped=True)
    one, two = (reading(load_tokenizer(tmp_path / name), prompts) for name in ("one", "two"))
    assert differences(one, one) == []
    assert differences(one, two) == ["prompt 1 (b): expected [5, 5] got [6, 6]"]
    blind = [reading(load_tokenizer(tmp_path / name), prompts[:1]) for name in ("one", "two")]
    assert "other tokens" in differences(*blind)[0]
    assert "different prompts" in differences(one, blind[0])[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "not JSON"),
        ("{}", "list of objects"),
        ('[{"id": "a"}]', "list of objects"),
        ('[{"id": "a", "text": ""}]', "not empty"),
        ('[{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]', "of its own"),
    ],
)
def test_prompts_that_can_not_be_read_are_refused(tmp_path, text, words):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(Refusal, match=words):
        read_prompts(tmp_path / "p.json")


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Refusal, match="can't be read as a tokenizer"):
        load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path / "none") is None
