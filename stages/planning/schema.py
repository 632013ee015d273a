"""What params.yaml may say. Every problem is found at once, each with its place."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.command import Refusal

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


class Source(_Strict):
    """Where the checkpoints come from: exactly one kind."""

    trainer: str | None = None
    folder: str | None = None
    demo: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"demo": True} if value == "demo" else value

    @model_validator(mode="after")
    def _one_kind(self) -> Source:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"name exactly one kind of source: {', '.join(Source.model_fields)}")
        return self

    @property
    def kind(self) -> str:
        """The one kind that is named."""
        return next(iter(self.model_fields_set))

    @property
    def path(self) -> str | None:
        """The folder, as it stands in params.yaml; None for the demo run."""
        value = getattr(self, self.kind)
        return value if isinstance(value, str) else None


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
    tokenizer: str | None = None
    probe: str | None = None
    licence: str | None = None
    prompts: str | None = None
    gates: Gates = Gates()  # only what is set here counts; see Params.gates_of


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
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
                raise ValueError(f"model name {name!r}: letters, digits, - and _ only, 64 at most")
        return self

    def gates_of(self, name: str) -> dict[str, Any]:
        """The thresholds of one model, its own changes over the common ones."""
        return self.gates.model_dump() | self.models[name].gates.model_dump(exclude_unset=True)


def _allowed(location: tuple) -> str:
    """The keys that may stand where an unknown one was found."""
    parent = str(location[-2]) if len(location) > 1 else ""
    scope = {"": Params, "gates": Gates, "source": Source}.get(parent, Model)
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
