"""Resolving one model of params.yaml: which steps, pinned to which content, of which config."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.command import Refusal
from stages.files import canonical
from stages.planning.same import duplicate_problems, same_code, same_config, same_tokenizer, shared_files
from stages.planning.schema import Params
from stages.sources.demo import CONFIG
from stages.sources.kinds import open_source
from stages.sources.local import DEMO_RUN
from stages.sources.pin import short
from stages.sources.quantised import quantised
from stages.sources.tokenizer import pin_tokenizer
from stages.sources.weights import open_weights
from stages.tokens.reading import read_prompts

DEFAULT_PROBE = "The capital of France is"
PINS = ("revisions", "folders", "files")


def wanted(params: Params, name: str) -> dict[str, Any]:
    """All that params.yaml says of one model, its gates resolved: what a plan must fit."""
    model = params.models[name]
    said = model.source.model_dump(exclude_none=True, exclude_defaults=True, exclude={model.source.kind})
    place = {"repo": model.source.repo} if model.source.kind == "repo" else {"path": model.source.path or str(DEMO_RUN)}
    if isinstance(model.source.subfolders, dict):
        said["subfolders"] = {str(step): folder for step, folder in sorted(model.source.subfolders.items())}
    return {
        "source": {"kind": model.source.kind, **place, **said},
        "steps": model.steps,
        "axis": model.axis,
        "tokenizer": model.tokenizer,
        "allow_duplicates": model.allow_duplicates,
        "blocks": model.blocks,
        "probe": model.probe or DEFAULT_PROBE,
        "licence": model.licence,
        "prompts": model.prompts or params.prompts,
        "formats": params.formats,
        "gates": params.gates_of(name),
    }


def spread(steps: list[int], count: int) -> list[int]:
    """`count` of the steps, evenly on a log axis, first and last among them; all of them if there are fewer."""
    if len(steps) <= count:
        return steps
    low, high = math.log1p(steps[0]), math.log1p(steps[-1])
    chosen: set[int] = set()
    for index in range(count):
        target = low + (high - low) * index / (count - 1)
        left = [step for step in steps if step not in chosen]
        chosen.add(min(left, key=lambda step: abs(math.log1p(step) - target)))
    return sorted(chosen)


class Resolved:
    """One model on its way from params.yaml to a plan.

    Attributes:
        problems: what stands in the way, a line each.
        notes: what people should know, a line each.
        plan: the content of params.json; complete only if there are no problems.
        source: the source, its pins filled in.
        at_hand: the steps whose files are on this machine.
    """

    def __init__(
        self, name: str, entry: dict[str, Any], old: dict[str, Any] | None = None, update: bool = False
    ) -> None:
        """Resolve.

        Args:
            name: the model.
            entry: what params.yaml says of it, as `wanted` gives it.
            old: its last plan; what that pinned on a hub stays pinned.
            update: ask anew for everything all the same.
        """
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.at_hand: list[str] = []
        self._before = old or {}
        self._old = None if update else old
        pins = self._kept_pins(entry)
        self.plan: dict[str, Any] = {"model": name, **entry, **pins}
        self.source = open_source(self.plan)
        gates = dict(entry["gates"])
        source = {key: value for key, value in entry["source"].items() if key != "subfolders"}
        self.plan |= {"source": source, "gates": gates, "on_failure": gates.pop("on_failure"), "entry": entry}
        self.prompts = self._attempt(lambda: read_prompts(Path(entry["prompts"])))
        self._attempt(self._resolve)

    def _kept_pins(self, entry: dict[str, Any]) -> dict[str, dict]:
        """What an earlier plan pinned of a remote source and is still asked for by the same name."""
        empty: dict[str, dict] = {key: {} for key in PINS}
        before = (self._old or {}).get("entry", {}).get("source")
        if not before or not open_source({"source": entry["source"]}).remote:
            return empty
        if {**before, "subfolders": 0} != {**entry["source"], "subfolders": 0}:
            return empty
        folders, steps = entry["source"].get("subfolders"), self._old["steps"]
        if isinstance(folders, dict):
            steps = [step for step in steps if folders.get(step) == self._old["folders"][step]]
        elif folders != before.get("subfolders"):
            return empty
        return {key: {step: self._old[key][step] for step in steps} for key in PINS}

    def _attempt(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Refusal as refusal:
            if str(refusal) not in self.problems:
                self.problems.append(str(refusal))
            return None

    def _resolve(self) -> None:
        entry = self.plan["entry"]
        steps = self._kept_steps(entry["steps"])
        if steps is None:
            missing = self.source.missing()
            if missing:
                self.problems.append(missing)
                return
            steps = self._steps(entry["steps"])
        self.plan["steps"] = [str(step) for step in steps]
        self.plan["tokenizer"] = self._attempt(lambda: pin_tokenizer(entry["tokenizer"], self._old))
        if self.source.made_by_pipeline:
            self.plan |= {"config": CONFIG, "code": None, "card": None}
            self.plan |= {key: dict.fromkeys(self.plan["steps"]) for key in PINS}
        else:
            self._pin()

    def _kept_steps(self, asked: Any) -> list[int] | None:
        """The steps without a look at the source: each is pinned already."""
        pinned = self.source.revisions
        if isinstance(asked, list):
            return asked if pinned and all(str(step) in pinned for step in asked) else None
        same = self._old is not None and self._old["entry"]["steps"] == asked
        return [int(step) for step in pinned] if pinned and same else None

    def _steps(self, asked: Any) -> list[int]:
        whole, incomplete = self.source.steps()
        if isinstance(asked, list):
            for step in asked:
                if step in incomplete:
                    self.problems.append(f"step {step} is incomplete: {incomplete[step]}")
                elif step not in whole:
                    self.problems.append(self.source.no_such_step(step))
            return [step for step in asked if step in whole]
        self.notes += [f"step {step} is incomplete and left out: {reason}" for step, reason in incomplete.items()]
        if not whole:
            raise Refusal(f"no checkpoints in {self.source.title}{self._why_none(incomplete)}")
        return spread(whole, asked["log"]) if isinstance(asked, dict) else whole

    def _why_none(self, incomplete: dict[int, str]) -> str:
        return f" ({'; '.join(list(incomplete.values())[:2])})" if incomplete else ""

    def _pin(self) -> None:
        """Pin each step; all must share one config, one code and one tokenizer, and differ in their weights."""
        source, steps = self.source, self.plan["steps"]
        self.at_hand = [step for step in steps if step in source.revisions and source.at_hand(step)]
        away = [step for step in steps if step not in self.at_hand]
        source.look(away)
        configs: dict[str, dict] = {}
        for step in steps:
            if step in away:
                self._attempt(lambda step=step: self._pin_step(step))
            if step in source.files:
                config = self._attempt(lambda step=step: source.config(step))
                configs |= {step: config} if config else {}
        self.plan |= {key: {s: getattr(source, key)[s] for s in steps if s in source.files} for key in PINS}
        if not configs:
            return
        self.problems += same_config(configs)
        self.plan["config"] = config = configs[min(configs, key=int)]
        self._refuse_config(config)
        self.plan["code"] = self._attempt(lambda: same_code(self.plan, config))
        self.problems += duplicate_problems(self.plan)
        self.notes += shared_files(self.plan)
        if self.prompts is not None:
            problems, notes = same_tokenizer(self.plan, source, self.prompts)
            self.problems += problems
            self.notes += notes
        self._name_licence(steps)

    def _pin_step(self, step: str) -> None:
        source = self.source
        before = source.files.get(step)
        names = source.members(step, with_tokenizer=not self.plan["tokenizer"])
        files = [source.promise(step, name) for name in names]
        if before and before != files:
            raise Refusal(f"step {step}: the hub now promises other files for the pinned commit: `make plan UPDATE=1`")
        folder = source.locate(step)
        if not source.remote and source.spec["kind"] != "gguf":
            open_weights(source.root / folder, source.allow_pickle)
        source.folders[step], source.files[step] = folder, files
        source.revisions[step] = self._kept(step, source.revision(step, files))
        if source.remote and source.at_hand(step):
            self.at_hand.append(step)

    def _kept(self, step: str, revision: str) -> str:
        """The revision to pin: the one pinned before, if only what no stage reads has changed since."""
        pinned = self._before.get("revisions", {}).get(step)
        if not self.source.remote or not pinned or pinned == revision:
            return revision
        same = all(self._before[key].get(step) == getattr(self.source, key)[step] for key in ("folders", "files"))
        if not same or not self.source.has(pinned):
            return revision
        self.notes.append(f"{self.source.name(step)} moved {short(pinned)} → {short(revision)}, its files are the same")
        return pinned

    def _refuse_config(self, config: dict) -> None:
        if "auto_map" in config and self.source.spec.get("trust_remote_code") is None:
            self.problems.append(
                f"config.json asks for remote code ({', '.join(sorted(map(str, config['auto_map'].values())))}): set "
                "trust_remote_code in its source: true runs it, false uses transformers' own class"
            )
        if reason := quantised(config):
            self.problems.append(reason)

    def _name_licence(self, steps: list[str]) -> None:
        """From params.yaml, else from the source's own card, which is read once for each pin of the last step."""
        old = self._old or {}
        last = steps[-1]
        if old.get("card") and old["revisions"].get(last) == self.plan["revisions"].get(last):
            card = old["card"]
        else:
            card = self._attempt(lambda: self.source.card(last)) or {"licence": None, "base_model": None}
        self.plan |= {"card": card, "licence": self.plan["entry"]["licence"] or card["licence"]}


def fits(plan: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Whether a plan was made from this entry of params.yaml."""
    return canonical(plan.get("entry")) == canonical(entry)
