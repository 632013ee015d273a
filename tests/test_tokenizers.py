"""Tokenizers without a tokenizer.json: converted once, proven against a second reading, or not shipped."""

import json
import os
import re
import subprocess
import sys

import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer, normalizers

from stages.command import Refusal
from stages.files import TEMPORARY
from stages.tokens import conversion, convert
from stages.tokens.convert import bring_tokenizer
from stages.tokens.declared import custom_code, ends
from stages.tokens.second import merged
from stages.tokens.texts import TEXTS
from tests import vocabularies
from tests.conftest import REPOSITORY
from tests.models import write_tokenizer


@pytest.fixture
def bring(here):
    """Bring the tokenizer of a folder into here/out."""

    def bring(folder):
        (here / "out").mkdir(exist_ok=True)
        return bring_tokenizer(folder, here / "out")

    return bring


def made(here):
    return Tokenizer.from_file(str(here / "out/tokenizer.json"))


def test_a_tokenizer_json_is_copied_as_it_is_with_its_company(here, bring):
    write_tokenizer(here / "m")
    (here / "m/chat_template.jinja").write_text("{{ x }}")
    answer = bring(here / "m")
    assert (answer["made"], answer["live"], answer["compared_with"], answer["texts"]) == ("as it is", True, None, 0)
    assert answer["from"] == ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    for name in answer["from"]:
        assert (here / "out" / name).read_bytes() == (here / "m" / name).read_bytes()


def test_no_tokenizer_is_none(here, bring):
    assert bring(here) is None
    assert not list((here / "out").iterdir())


@pytest.mark.parametrize(
    ("write", "names", "around"),
    [
        (vocabularies.write_llama, ("TokenizersBackend", "sentencepiece"), "<s>*"),
        (vocabularies.write_t5, ("T5Tokenizer", "sentencepiece"), "*</s>"),
        (vocabularies.write_gpt2, ("GPT2Tokenizer", "merge by merge"), "*"),
        (vocabularies.write_tiktoken, ("LlamaTokenizer", "tiktoken"), "<|begin_of_text|>*"),
        (vocabularies.write_bert, ("BertTokenizer", "BertTokenizerLegacy"), "[CLS]*[SEP]"),
    ],
)
def test_each_kind_is_converted_and_proven(here, bring, write, names, around):
    answer = bring(write(here / "m"))
    assert answer["reason"] is None
    assert (answer["made"], answer["live"], answer["texts"]) == ("converted", True, len(TEXTS))
    assert answer["by"].endswith(names[0])
    assert names[1] in answer["compared_with"]
    assert sorted(path.name for path in (here / "out").iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    config = json.loads((here / "out/tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert isinstance(config.get("additional_special_tokens", []), list)
    whole = made(here).encode("the capital").tokens
    inner = made(here).encode("the capital", add_special_tokens=False).tokens
    front, back = ([token] if token else [] for token in around.split("*"))
    assert whole == front + inner + back


def test_ids_are_those_of_sentencepiece_where_transformers_own_class_differs(here, bring):
    folder = vocabularies.write_llama(here / "m", user_defined_symbols=["<|im_start|>", "a-b"])
    assert bring(folder)["live"]
    model = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for text in ("  two before", " ", "x<|im_start|>y a-b", "\n a", "never seen: Ꙫ"):
        assert made(here).encode(text, add_special_tokens=False).ids == model.encode(text)


def test_regular_expressions_are_such_as_javascript_has(here, bring):
    model = vocabularies.sentencepiece_model("bpe", 700, user_defined_symbols=["a-b", "# c"])
    config = {"tokenizer_class": "LlamaTokenizer"}
    assert bring(vocabularies.write(here / "m", "llama", config, tokenizer__model=model))["live"]
    text = (here / "out/tokenizer.json").read_text()
    assert '"Regex"' in text
    for escape in ("\\\\A", "\\\\z", "\\\\-", "\\\\ ", "\\\\#"):
        assert escape not in text


def test_gpt2_with_a_space_in_front_and_a_class_that_nothing_else_reads(here, bring):
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    assert bring(vocabularies.write_gpt2(here / "m", config=config))["live"]
    assert json.loads((here / "out/tokenizer_config.json").read_text())["add_prefix_space"] is True
    answer = bring(vocabularies.write_gpt2(here / "n", "blenderbot", {"tokenizer_class": "BlenderbotTokenizer"}))
    assert answer["live"]
    assert "AutoTokenizer's own" in answer["compared_with"]


def test_tokens_added_and_named_anew_keep_their_ids(here, bring):
    folder = vocabularies.write_llama(here / "m", user_defined_symbols=["<|x|>"])
    config = {"tokenizer_class": "LlamaTokenizer"}
    config["added_tokens_decoder"] = {"3": {"content": "<|end|>", "special": True}, "700": {"content": "<|u|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert bring(folder)["reason"] is None
    assert [made(here).id_to_token(number) for number in (3, 700)] == ["<|end|>", "<|u|>"]


def test_a_conversion_that_reads_otherwise_is_not_shipped(here, bring, monkeypatch):
    """The proof is of the file that is shipped: here a normaliser slips in while it is saved."""
    save = conversion._save

    def broken(tokenizer, folder, source):
        save(tokenizer, folder, source)
        changed = Tokenizer.from_file(str(folder / "tokenizer.json"))
        changed.normalizer = normalizers.Lowercase()
        changed.save(str(folder / "tokenizer.json"))

    monkeypatch.setattr(conversion, "_save", broken)
    answer = bring(vocabularies.write_gpt2(here / "m"))
    assert (answer["made"], answer["live"], answer["texts"]) == (None, False, 0)
    assert "converted tokenizer.json reads text 0 as [" in answer["reason"]
    assert not list((here / "out").iterdir())


def test_the_llama_class_of_transformers_5_alone_does_not_pass(here, bring, monkeypatch):
    monkeypatch.setattr(conversion, "PLAIN", set())
    answer = bring(vocabularies.write_llama(here / "m"))
    assert not answer["live"]
    assert "sentencepiece" in answer["reason"]


def test_a_token_under_another_id_is_noticed_where_no_text_shows_it(here, bring, monkeypatch):
    second = conversion.merges

    def swapped(*arguments):
        found = second(*arguments)
        (a, first), (b, other) = list(found.tokens.items())[-2:]
        found.tokens.update({a: other, b: first})
        return found

    monkeypatch.setattr(conversion, "merges", swapped)
    assert "in the converted tokenizer.json" in bring(vocabularies.write_gpt2(here / "m"))["reason"]


def test_custom_python_is_not_run(here, bring):
    config = {"auto_map": {"AutoTokenizer": ["tokenization_x.X", None]}, "tokenizer_class": "X"}
    trap = f"open({str(here / 'ran')!r}, 'w')\n".encode()
    for files in ({}, {"tokenizer__model": vocabularies.sentencepiece_model("bpe", 700)}):
        folder = vocabularies.write(here / "m", "llama", config, tokenization_x__py=trap, **files)
        answer = bring(folder)
        assert not answer["live"]
        assert answer["reason"] == "the tokenizer is custom Python (tokenization_x.py) and has no tokenizer.json"
    assert not (here / "ran").exists()
    assert custom_code({"auto_map": ["a.B", None]}) == "a.py"
    assert custom_code({"auto_map": {"AutoTokenizer": "owner/name--a.B"}}) == "a.py"


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda m: vocabularies.write(m, "byt5", {"tokenizer_class": "ByT5Tokenizer"}), "no vocabulary .* ByT5"),
        (lambda m: vocabularies.write_gpt2(m, "gpt2", {"tokenizer_class": "Foo"}), "Foo is no class of transformers"),
        (lambda m: vocabularies.write_tiktoken(m, "gpt2"), "how a text is split"),
        (lambda m: vocabularies.write(m, "llama", {}, tokenizer__model=b"rubbish"), "no SentencePiece model"),
        (lambda m: vocabularies.write(m, "llama", {}, tokenizer__model=b"YQ== 0\n"), "256 bytes"),
        (
            lambda m: vocabularies.write(m, "gpt_neox", tokenizer__model=vocabularies.sentencepiece_model("bpe", 700)),
            "name tokenizer_class",
        ),
        (
            lambda m: vocabularies.write_gpt2(m, "roberta", {"tokenizer_class": "RobertaTokenizer"}),
            "'<s>' is added to a text",
        ),
        (lambda m: vocabularies.write(m, "gpt2", vocab__json=b"{}", merges__txt=b"a b\n"), "GPT2Tokenizer|AutoTok"),
    ],
)
def test_what_cannot_be_proven_says_why_in_a_line(here, bring, write, words):
    answer = bring(write(here / "m"))
    assert not answer["live"]
    assert re.search(words, answer["reason"]), answer["reason"]
    assert len(answer["reason"]) < 250
    assert "\n" not in answer["reason"]
    assert str(os.getpid()) not in answer["reason"], "of a path that is not there the next time"
    assert not list((here / "out").iterdir())


def test_a_config_that_is_no_json_is_refused(here, bring):
    folder = vocabularies.write_gpt2(here / "m")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(Refusal, match="not JSON"):
        bring(folder)


def test_what_stands_at_the_ends_is_what_config_or_documentation_says():
    assert ends({}, "LlamaTokenizer") == ("bos", "")
    assert ends({"add_bos_token": False, "add_eos_token": True}, "LlamaTokenizer") == ("", "eos")
    assert ends({"add_bos_token": True}, "T5Tokenizer") == ("", "eos")
    assert ends({"add_bos_token": True}, "GPT2Tokenizer") == ("bos", "")
    assert ends({"add_bos_token": None}, "GemmaTokenizer") == ("bos", "")
    assert ends({"add_eos_token": True}, "FooTokenizer") == ("", "eos")
    assert ends({}, "FooTokenizer") is None


def test_the_model_type_may_come_from_elsewhere(here):
    """A run's folder has the tokenizer, its checkpoints the configs."""
    folder = vocabularies.write_llama(here / "m")
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (here / "out").mkdir()
    assert not bring_tokenizer(folder, here / "out")["live"]
    assert bring_tokenizer(folder, here / "out", {"model_type": "llama", "vocab_size": 7})["live"]
    assert made(here).encode("a").tokens[0] == "<s>"


def test_the_same_files_give_the_same_bytes_wherever_they_lie(here, monkeypatch):
    vocabularies.write_tiktoken(here / "m")
    found = []
    for place in ("one", "two/deeper"):
        (here / place / "out").mkdir(parents=True)
        (here / "m").rename(here / place / "m")
        monkeypatch.chdir(here / place)
        bring_tokenizer(here / place / "m", here / place / "out")
        found.append({path.name: path.read_bytes() for path in (here / place / "out").iterdir()})
        (here / place / "m").rename(here / "m")
    assert found[0] == found[1]
    assert found[0]
    for content in found[0].values():
        assert b"data/tmp" not in content
        assert str(here).encode() not in content


def test_a_conversion_is_kept_and_a_change_makes_another(here, bring, monkeypatch):
    folder = vocabularies.write_gpt2(here / "m")
    first = bring(folder)
    files = {path.name: path.read_bytes() for path in (here / "out").iterdir()}
    code = "import sys; from pathlib import Path; from stages.tokens.convert import bring_tokenizer; import json;"
    code += "Path('again').mkdir(); print(json.dumps(bring_tokenizer(Path('m'), Path('again'))));"
    code += "assert not {'transformers', 'torch', 'sentencepiece'} & set(sys.modules)"
    again = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == first
    assert {path.name: path.read_bytes() for path in (here / "again").iterdir()} == files
    assert len(list((TEMPORARY / "tokenizers").iterdir())) == 1

    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "bos_token": "<|endoftext|>"}))
    bring(folder)
    assert made(here).encode("a").tokens[0] == "<|endoftext|>"
    assert len(list((TEMPORARY / "tokenizers").iterdir())) == 2


def test_a_missing_library_is_named(here, bring, monkeypatch):
    folder = vocabularies.write_gpt2(here / "m")
    monkeypatch.setattr(convert, "LIBRARIES", ("no-such-library",))
    with pytest.raises(Refusal, match="no-such-library is not installed"):
        bring(folder)


def test_pairs_merge_lowest_rank_first():
    ranks = {("a", "a"): 1, ("b", "c"): 0, ("aa", "bc"): 2}
    assert merged(list("aabcaaa"), ranks) == ["aabc", "aa", "a"]
    assert merged(list("xy"), ranks) == ["x", "y"]
    assert merged([], ranks) == []
