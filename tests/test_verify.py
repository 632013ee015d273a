"""Tampering with what is shipped: each file is named, with what was expected and what was found."""

import pytest

from stages import verify
from stages.command import Refusal
from stages.files import read_json
from tests.models import write_run, write_tokenizer
from tests.pipeline import ship, write_params


@pytest.fixture
def shipped(here):
    """One shipped step."""
    write_run(here / "run", "llama", steps=(1,))
    write_params("{trainer: run}")
    ship("1")
    verify.main()
    return here / "data/onnx/m"


def complaint():
    with pytest.raises(Refusal) as caught:
        verify.main()
    return str(caught.value)


def test_verify_names_each_tampered_file_with_expected_and_found(shipped):
    lens_file, backbone_file = (shipped / f"step1/{half}.f16.onnx" for half in ("lens", "backbone"))
    content = bytearray(lens_file.read_bytes())
    content[-5] ^= 1
    lens_file.write_bytes(content)
    size = backbone_file.stat().st_size
    backbone_file.write_bytes(backbone_file.read_bytes()[:-1])
    (shipped / "step1/f16.json").unlink()
    (shipped / "step1/extra.onnx").write_bytes(b"x")
    text = complaint()
    assert "4 problems" in text
    assert "step1/lens.f16.onnx: expected sha256" in text
    assert f"step1/backbone.f16.onnx: expected {size} bytes, found {size - 1}" in text
    assert "step1/f16.json: missing" in text
    assert "step1/extra.onnx: not in the manifest" in text


def test_verify_sees_an_edited_number_in_the_manifest(shipped):
    text = (shipped / "manifest.json").read_text()
    made = read_json(shipped / "manifest.json")
    number = str(made["steps"][0]["f16_max_diff"])
    (shipped / "manifest.json").write_text(text.replace(number, "1e-9", 1))
    assert "manifest.json: was edited: expected digest" in complaint()
    (shipped / "manifest.json").write_text("{}")
    assert "not a manifest of schema 1" in complaint()
    (shipped / "manifest.json").unlink()
    assert "manifest.json: missing: run `make repro`" in complaint()


def test_verify_reads_the_golden_prompts_again(shipped):
    write_tokenizer(shipped / "other", swapped=True)
    (shipped / "tokenizer/tokenizer.json").write_bytes((shipped / "other/tokenizer.json").read_bytes())
    text = complaint()
    assert "prompt 0 (a): expected [" in text
    assert "got [" in text
