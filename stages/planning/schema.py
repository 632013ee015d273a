"""What params.yaml may say. Every problem is found at once, each with its place."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.command import Refusal
from stages.sources.names import is_name, is_path

Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Gates(_Strict):
    """Thresholds; none depends on the scale of the logits."""

    fp32_rel: Positive = 1e-5
    identity_rel: Positive = 1e-5
    f16_rel: Positive = 2e-2
    f16_kl: Positive = 1e-3
    f16_top1: Share = 1.0
    near_tie: Share = 2e-3
    on_failure: Literal["fail", "exclude"] = "fail"


KINDS = ("trainer", "folder", "gguf", "repo", "demo")
HUB_ONLY = ("revision", "subfolders", "scale")


class Source(_Strict):
    """Where the checkpoints come from: exactly one kind, and what belongs to it."""

    trainer: str | None = None
    folder: str | None = None
    gguf: str | None = None
    repo: str | None = None
    demo: bool | None = None
    # A branch, tag or commit; with {} for the step, a template of branches or tags, in which * is anything.
    revision: str | None = None
    # {step: folder}, or a pattern with {}; then a step is its number times `scale`.
    subfolders: str | dict[int, str] | None = None
    scale: Annotated[int, Field(ge=1)] | None = None
    allow_pickle: bool = False
    # true: run the repository's code. false: ignore it and use transformers' own class. Not said: refuse.
    trust_remote_code: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"demo": True} if value == "demo" else value

    @model_validator(mode="after")
    def _fits(self) -> Source:
        named = [kind for kind in KINDS if kind in self.model_fields_set]
        if len(named) != 1:
            raise ValueError(f"name exactly one kind of source: {', '.join(KINDS)}")
        stray = [key for key in HUB_ONLY if key in self.model_fields_set and self.kind != "repo"]
        if stray:
            raise ValueError(f"{stray[0]} belongs to repo, not to {self.kind}")
        if self.kind == "repo":
            _check_hub(self)
        return self

    @property
    def kind(self) -> str:
        """The one kind that is named."""
        return next(kind for kind in KINDS if kind in self.model_fields_set)

    @property
    def path(self) -> str | None:
        """The folder or file, as it stands in params.yaml; None for the demo run and for a repository."""
        value = getattr(self, self.kind)
        return value if self.kind in ("trainer", "folder", "gguf") else None

    @property
    def is_suite(self) -> bool:
        """Whether it has more checkpoints than one."""
        return self.kind in ("trainer", "demo") or bool(self.subfolders) or "{}" in (self.revision or "")


def _check_hub(source: Source) -> None:
    if not is_repository(source.repo):
        raise ValueError(f"repo {source.repo!r}: expected OWNER/NAME")
    revision, folders = source.revision, source.subfolders
    if revision is not None and not re.fullmatch(r"[A-Za-z0-9{][A-Za-z0-9._/{}*+=-]*", revision):
        raise ValueError(f"revision {revision!r}: expected a branch, tag or commit, or a template such as step{{}}")
    for template in (revision, folders):
        if isinstance(template, str) and ("{" in template or "}" in template) and template.count("{}") != 1:
            raise ValueError(f"{template!r}: write {{}} once, where the step stands")
    if folders is not None and "{}" in (revision or ""):
        raise ValueError("revision: a template and subfolders don't go together")
    if isinstance(folders, str) and "{}" not in folders:
        raise ValueError(f"subfolders {folders!r}: write {{}} where the step stands, or a map of steps to folders")
    paths = list(folders.values()) if isinstance(folders, dict) else [(folders or "x").replace("{}", "0")]
    outside = [path for path in paths if not is_path(path.replace("*", "x"))]
    if outside or folders == {}:
        raise ValueError(f"subfolders: {outside[0] if outside else folders!r} is no folder inside the repository")
    if source.scale is not None and not isinstance(folders, str):
        raise ValueError("scale belongs to subfolders with a pattern")


def is_repository(name: Any) -> bool:
    """Whether this is a repository of a hub: OWNER/NAME."""
    if not is_path(name) or name.count("/") != 1:
        return False
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _steps(value: Any) -> Any:
    whole = lambda item: isinstance(item, int) and not isinstance(item, bool) and item >= 0  # noqa: E731
    if value == "all":
        return value
    if isinstance(value, list) and value and all(map(whole, value)):
        if len(set(value)) != len(value):
            raise ValueError("a step is named twice")
        return sorted(value)
    if isinstance(value, dict) and list(value) == ["log"] and whole(value["log"]) and value["log"] >= 2:
        return value
    raise ValueError("expected all, a list of steps such as [0, 512, 1000], or {log: 10}")


class Model(_Strict):
    """One training run."""

    source: Source
    # all; or the steps; or {log: n}: n of those that are there, even on a log axis, first and last among them.
    steps: Annotated[Any, BeforeValidator(_steps)] = "all"
    # The name of the step axis.
    axis: Annotated[str, Field(min_length=1, max_length=40)] = "step"
    # A folder, or OWNER/NAME@REVISION of a hub.
    tokenizer: str | None = None
    # Ship steps that hold the same weights as another, marked as such.
    allow_duplicates: bool = False
    # The list that holds the blocks, such as model.decoder.layers, where it is not found.
    blocks: str | None = None
    probe: str | None = None
    licence: str | None = None
    prompts: str | None = None
    gates: Gates = Gates()  # only what is set here counts; see Params.gates_of

    @model_validator(mode="after")
    def _one_step(self) -> Model:
        if not self.source.is_suite and self.steps not in ("all", [0]):
            raise ValueError(f"steps: {self.source.kind} names one checkpoint, step 0; for a suite, use a template")
        return self


class Params(_Strict):
    """The whole of params.yaml."""

    prompts: str = "data/prompts/prompts.json"
    formats: Annotated[list[Literal["f16"]], Field(min_length=1, max_length=1)] = ["f16"]
    gates: Gates = Gates()
    models: dict[str, Model]

    @model_validator(mode="after")
    def _names(self) -> Params:
        for name in self.models:
            # A model's name becomes a folder and part of a DVC target.
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name) or not is_name(name):
                raise ValueError(f"model name {name!r}: letters, digits, - and _ only, 64 at most")
        return self

    def gates_of(self, name: str) -> dict[str, Any]:
        """The thresholds of one model, its own changes over the common ones."""
        return self.gates.model_dump() | self.models[name].gates.model_dump(exclude_unset=True)


def _allowed(location: tuple) -> str:
    """Where an unknown key belongs, or the keys that may stand where it was found."""
    parent = str(location[-2]) if len(location) > 1 else ""
    scope = {"": Params, "gates": Gates, "source": Source}.get(parent, Model)
    places = {"beside models": Params, "of a model": Model, "of a source": Source, "of gates": Gates}
    other = [place for place, kind in places.items() if location[-1] in kind.model_fields]
    if other:
        return f" (it is a key {other[0]})"
    near = difflib.get_close_matches(str(location[-1]), scope.model_fields, 1)
    return f" (did you mean {near[0]}?)" if near else f" (allowed: {', '.join(scope.model_fields)})"


def _problem(error: dict) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "params.yaml"
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key{_allowed(error['loc'])}"
    if error["type"] == "missing":
        return f"{where}: missing"
    message = error["msg"].removeprefix("Value error, ")
    found = "" if error["type"] == "value_error" and len(error["loc"]) < 3 else f", found {error['input']!r}"
    return f"{where}: {message[0].lower()}{message[1:]}{found}"


def load(path: Path = Path("params.yaml")) -> Params:
    """Read and check params.yaml.

    Raises:
        Refusal: the file is not there, is not YAML, or holds unknown keys or wrong types; all of them at once.
    """
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refusal(f"{path} is not there: run from the repository's top folder") from None
    except (YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise Refusal(f"{path}{line}: not valid YAML ({getattr(error, 'problem', None) or error})") from None
    if not isinstance(content, dict):
        raise Refusal(f"{path}: found {type(content).__name__}, expected keys such as models")
    try:
        return Params.model_validate(content)
    except ValidationError as error:
        problems = [_problem(detail) for detail in error.errors()]
        raise Refusal(f"{path}: " + "; ".join(dict.fromkeys(problems))) from None
