"""A run's tokenizer through the real stages: made where there is no tokenizer.json, left out if nothing proves it."""

import json

import pytest

from stages import fetch, fidelity, manifest, plan, summary, verify
from stages.command import Refusal
from stages.files import checkpoint_folder, manifest_file, read_json
from stages.sources.pin import content_digest
from tests import vocabularies
from tests.models import tiny, write_run, write_tokenizer
from tests.pipeline import make, ship, trace, write_params


def test_a_sentencepiece_model_becomes_a_tokenizer_json_that_is_measured_and_shipped(here):
    tiny(vocab_size=800).save_pretrained(here / "run/checkpoint-1")
    vocabularies.write_llama(here / "run")
    (here / "run/config.json").unlink()
    write_params("{trainer: run}")
    ship("1")
    made = read_json(manifest_file("m"))
    assert made["live"] is True
    assert made["tokenizer_origin"]["made"] == "converted"
    assert made["tokenizer_origin"]["compared_with"].startswith("sentencepiece")
    assert made["tokenizer_origin"]["from"] == ["tokenizer.model", "tokenizer_config.json"]
    assert "tokenizer/tokenizer.json" in {file["name"] for file in made["tokenizer_files"]}
    assert made["vocab_size"] == 800
    assert made["reading"]["size"] < 800
    verify.main()


def test_a_tokenizer_that_is_custom_code_alone_is_left_out_and_said(here, capsys):
    tiny().save_pretrained(here / "model")
    config = {"tokenizer_class": "X", "auto_map": {"AutoTokenizer": ["x.X", None]}}
    (here / "model/tokenizer_config.json").write_text(json.dumps(config))
    (here / "model/x.py").write_text(f"open({str(here / 'ran')!r}, 'w').write('code ran')\n")
    write_params("{folder: model}")
    ship("0")
    made = read_json(manifest_file("m"))
    assert made["live"] is False
    assert made["tokenizer"] is None
    assert "x.py" in made["tokenizer_origin"]["reason"]
    assert made["steps"][0]["f16_top1_match_all_pos"] == 1, "measured on random ids all the same"
    assert not (here / "ran").exists()
    summary.main(["m"])
    assert "m: no text can be typed for it: " in capsys.readouterr().out


def test_settings_in_a_checkpoint_do_not_hide_the_vocabulary_in_the_run(here):
    run = write_run(here / "run", steps=(1,))
    (run / "checkpoint-1/tokenizer_config.json").write_text("{}")
    write_params("{trainer: run}")
    trace()
    fetch.main("m", "1")
    assert (checkpoint_folder("m", "1") / "tokenizer.json").exists()


def test_a_tokenizer_in_a_folder_of_its_own_is_pinned_by_content(here):
    write_run(here / "run", steps=(1,))
    (here / "tok").mkdir()
    write_tokenizer(here / "tok", swapped=True)
    write_params("{trainer: run}", "tokenizer: tok")
    ship("1")
    pinned = read_json(here / "models/m/params.json")
    assert pinned["tokenizer"]["revisions"]["0"] == content_digest(pinned["tokenizer"]["files"]["0"])
    shipped = manifest_file("m").parent / "tokenizer/tokenizer.json"
    assert shipped.read_bytes() == (here / "tok/tokenizer.json").read_bytes()
    write_tokenizer(here / "tok")
    with pytest.raises(Refusal, match="tok is .* the plan has .*make plan"):
        fetch.main("m", "1")
    plan.main()
    make("1")
    manifest.main("m")
    assert shipped.read_bytes() == (here / "tok/tokenizer.json").read_bytes()


def test_an_id_that_moved_fails_where_transformers_and_the_file_disagree(here, monkeypatch):
    write_run(here / "run", steps=(1,))
    write_params("{trainer: run}")
    trace()
    make("1")
    from stages.measure import report

    class Moved:
        @classmethod
        def from_pretrained(cls, *_, **__):
            return lambda text: {"input_ids": [5, 5]}

    monkeypatch.setattr(report, "AutoTokenizer", Moved)
    with pytest.raises(Refusal, match="AutoTokenizer does not read tokenizer.json as it stands: prompt 0"):
        fidelity.main("m", "1")
