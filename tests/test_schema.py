"""params.yaml: each mistake is named with its place, all of them at once."""

from pathlib import Path

import pytest

from stages.command import Refusal
from stages.planning.resolve import spread
from stages.planning.schema import load

MODEL = "models: {a: {source: {trainer: x}}}\n"


def refusal(tmp_path, text):
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(Refusal) as caught:
        load(tmp_path / "params.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: {a: {source: demo, stepz: all}}", ["models.a.stepz: unknown key", "did you mean steps"]),
        (
            "models: {a: {source: {trainer: x, allow_duplicates: true}}}",
            ["models.a.source.allow_duplicates: unknown key (it is a key of a model)"],
        ),
        ("models: {a: {source: {ftp: x}}}", ["models.a.source.ftp", "allowed: trainer, folder, gguf, repo"]),
        ("models: {a: {source: {trainer: x, folder: y}}}", ["models.a.source", "exactly one"]),
        ("models: {a: {source: {trainer: 3}}}", ["models.a.source.trainer", "string", "3"]),
        ("models: {a: {source: {trainer: x}, steps: [1, -2]}}", ["models.a.steps", "[1, -2]"]),
        ("models: {a: {source: {trainer: x}, steps: [1, 1]}}", ["models.a.steps", "twice"]),
        ("models: {a: {source: {trainer: x}, steps: [true]}}", ["models.a.steps", "True"]),
        ("models: {a: {source: {trainer: x}, steps: {lg: 3}}}", ["models.a.steps", "{log: 10}"]),
        ("models: {'../a': {source: demo}}", ["'../a'", "letters, digits"]),
        (MODEL + "gates: {f16_rel: big}", ["gates.f16_rel", "number", "'big'"]),
        (MODEL + "gates: {f16_top1: 2}", ["gates.f16_top1", "less than or equal to 1"]),
        (MODEL + "gates: {f16_kl: .nan}", ["gates.f16_kl", "finite"]),
        (MODEL + "gates: {on_failure: stop}", ["gates.on_failure", "'fail' or 'exclude'"]),
        (MODEL + "formats: [q4]", ["formats.0", "'f16'"]),
        ("models: {a: {source: {repo: pythia}}}", ["models.a.source", "expected OWNER/NAME"]),
        ("models: {a: {source: {repo: a--b/c}}}", ["models.a.source", "expected OWNER/NAME"]),
        ("models: {a: {source: {repo: ../c}}}", ["models.a.source", "expected OWNER/NAME"]),
        ("models: {a: {source: {trainer: x, revision: main}}}", ["revision belongs to repo, not to trainer"]),
        ("models: {a: {source: {repo: a/b, revision: 'step{}{}'}}}", ["write {} once"]),
        ("models: {a: {source: {repo: a/b, revision: 'step{'}}}", ["write {} once"]),
        ("models: {a: {source: {repo: a/b, revision: '-x'}}}", ["revision '-x'", "a template such as step{}"]),
        ("models: {a: {source: {repo: a/b, subfolders: x}}}", ["subfolders 'x'", "write {}"]),
        ("models: {a: {source: {repo: a/b, subfolders: {1: x}, scale: 2}}}", ["scale belongs to"]),
        ("models: {a: {source: {repo: a/b, subfolders: {}}}}", ["subfolders"]),
        ("models: {a: {source: {repo: a/b}, steps: [5]}}", ["names one checkpoint, step 0"]),
        ("models: {a: {source: {repo: a/b, revision: 'x{}', subfolders: {1: y}}}}", ["don't go together"]),
        ("models: {con: {source: demo}}", ["'con'", "letters, digits"]),
        (MODEL + MODEL, ["line 2", "duplicate key"]),
        ("models: [", ["line 1", "not valid YAML"]),
        ("", ["found NoneType"]),
        ("models:", ["models:", "dictionary"]),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, text, words):
    message = refusal(tmp_path, text)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_all_mistakes_are_named_at_once(tmp_path):
    message = refusal(tmp_path, "models: {a: {source: demo, x: 1}}\nfoo: 2\ngates: {f16_rel: -1}")
    assert all(place in message for place in ("models.a.x", "foo", "gates.f16_rel"))


def test_a_missing_file_says_where_to_run(tmp_path):
    with pytest.raises(Refusal, match="top folder"):
        load(tmp_path / "params.yaml")


def test_a_models_own_gates_go_over_the_common_ones(tmp_path):
    text = "gates: {f16_kl: 0.5, f16_rel: 0.1}\nmodels: {a: {source: demo, gates: {f16_kl: 1e-5}}}"
    (tmp_path / "params.yaml").write_text(text)
    gates = load(tmp_path / "params.yaml").gates_of("a")
    assert (gates["f16_kl"], gates["f16_rel"], gates["fp32_rel"]) == (1e-5, 0.1, 1e-5)


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_log_steps_are_spread_and_keep_both_ends(count):
    steps = [0, 1, 2, 4, 8, 16, 32, 64, 128, *range(1000, 144000, 1000)]
    chosen = spread(steps, count)
    assert len(chosen) == count
    assert chosen[0] == 0
    assert chosen[-1] == 143000
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(steps)
    if count == 9:
        assert sum(step <= 128 for step in chosen) >= 4, "a log axis has half its ticks below the square root"


def test_the_ready_suites_can_be_copied_into_params():
    suites = load(Path("data/suites.yaml"))
    repositories = {model.source.repo for model in suites.models.values()}
    for family in [
        "pythia-14m",
        "pythia-12b",
        "OLMo",
        "bloom",
        "neo_",
        "Aquila",
        "SmolLM",
        "gpt2",
        "opt",
        "Qwen3",
        "gemma-3",
    ]:
        assert any(family in name for name in repositories), family
    assert all(model.licence for model in suites.models.values())
    assert not set(suites.models) & set(load().models), "params.yaml names none of them by itself"


def test_log_steps_of_a_short_run_are_all_its_steps():
    assert spread([5, 7], 10) == [5, 7]
