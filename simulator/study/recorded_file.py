"""What result.json of a recorded run has, as types: a file that was changed by hand or cut is refused by its keys."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from simulator.spec.typed_toml import plain

MOST_RANKS = 1_000_000
Text: TypeAlias = Annotated[str, Field(strict=True)]
Number: TypeAlias = Annotated[float, Field(strict=True, ge=-1e300, le=1e300)]
Amount: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1e300)]
Whole: TypeAlias = Annotated[int, Field(strict=True, ge=-(1 << 63), lt=1 << 63)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Whole(_Table):
    model_config = ConfigDict(extra="forbid")


class ExpectedFile(_Whole):
    """A published value beside the simulated one."""

    id: Text
    metric: Text
    value: Number | None
    simulated: Number | None
    error: Number | None
    role: Text
    band: Text


class ParameterFile(_Table):
    """A number of the machine that bounded the critical path."""

    name: Text
    value: Number | None
    unit: Text
    kind: Text
    source: Text
    share: Number
    saves: Number


class AboutFile(_Table):
    """How it was run. leaders: for each rank the one that stands for it, with blanks between."""

    title: Text
    version: Text
    machine: Text
    model: Text
    cards: Whole
    ranks: Whole
    classes: Whole
    mode: Text
    leaders: Text
    settings: dict[str, Any]

    @field_validator("leaders")
    @classmethod
    def _are_ranks(cls, text: str) -> str:
        words = text.split()
        if len(words) > MOST_RANKS or not all(one.isascii() and one.isdecimal() and len(one) < 10 for one in words):
            raise ValueError("numbers of ranks with blanks between are right")
        return text


class MemoryFile(_Whole):
    """What the fullest rank keeps."""

    capacity_bytes: Amount
    usable_bytes: Annotated[float, Field(strict=True, gt=0, le=1e300)]
    items: list[tuple[Text, Text, Amount]]


class PeaksFile(_Whole):
    """What a rank has at most."""

    hbm_bytes_per_s: Amount
    l2_bytes_per_s: Amount
    cores: dict[str, Whole]
    links_bytes_per_s: dict[str, Amount]
    flops: dict[str, dict[str, Amount]]


class RecordedFile(_Table):
    """The whole file."""

    scenario: Text
    changes: dict[str, Text]
    seed: Whole
    metrics: dict[str, Number | None]
    expected: list[ExpectedFile]
    parameters: list[ParameterFile]
    about: AboutFile
    memory: MemoryFile
    peaks: PeaksFile


def check_recorded(given: Any) -> None:
    """ValueError with the first key that is not as `braid run --out` writes it."""
    check_file(RecordedFile, given)


def check_file(model: type[BaseModel], given: Any) -> None:
    """ValueError with the first key of a tree that is not as a model has it."""
    try:
        model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        text = f"it has no {where}" if first["type"] == "missing" else f"{where}: {plain(first['msg'])}"
        raise ValueError(text) from None
