"""What a service consists of, as text and as an object: engines and their steps, limits, load, and their sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simulator import paths
from simulator.commands.description import columns, expected_rows, setting_rows, settings_object
from simulator.commands.summary import count
from simulator.serving.settings import Instances, Service
from simulator.study.library import doc_of
from simulator.study.settings import leaves

PARTS = {"engines": "Engines", "scheduling": "Scheduling of {role}", "cache": "Cache of {role}",
         "host": "Host of {role}", "experts": "Experts of {role}", "front": "Front: API servers and router",
         "transfer": "Transfer from prefill to decode", "pool": "Pool of blocks", "load": "Load"}  # fmt: skip


def description(service: Service) -> str:
    """Everything that `braid show` prints of a service."""
    sections = {f"{service.name}: {service.title}": [],
                f"What its file says of it, sources included ({_path(service)})": [
                    f"  {line}".rstrip() for line in doc_of("services", service.name).splitlines()],
                "What runs": [_engines(role, one) for role, one in _roles(service)]}
    for title, keys in _groups(service).items():
        sections[f"{title} (--set KEY=VALUE)"] = columns(setting_rows(service, keys))
    for role, one in _roles(service):
        sections[f"Step of {role} (--set {role}.step.KEY=VALUE)"] = columns(setting_rows(one.step, one.step.settings()))
    sections["Expected values"] = expected_rows(service.expected)
    return "\n\n".join("\n".join([title, *lines]) for title, lines in sections.items())


def described(service: Service) -> dict[str, Any]:
    """The same for JSON."""
    return {"service": service.name, "title": service.title, "about": doc_of("services", service.name),
            "settings": settings_object(service, leaves(service)),
            "steps": {role: {"title": one.step.full_title, "cards": one.step.cards,
                             "settings": settings_object(one.step, one.step.settings())}
                      for role, one in _roles(service)},
            "expected": [one.model_dump(mode="json") for one in service.expected]}


def _path(service: Service) -> str:
    return str(paths.find("services", service.name.rpartition(":")[0]))


def _roles(service: Service) -> Iterator[tuple[str, Instances]]:
    for role in ("engines", "prefill"):
        if (one := getattr(service, role)) is not None:
            yield role, one


def _engines(role: str, one: Instances) -> str:
    """A line about engines that are alike."""
    step = one.step
    words = getattr(step.layout, "words", None)
    mesh = f", {words()}" if words else ""
    return (f"  {role}: {one.count} x {count(step.cards, 'card')} of {step.machine_spec().title}{mesh}; "
            f"{step.transformer().name}, kernels of {step.kernels}")


def _groups(service: Service) -> dict[str, list[str]]:
    """The keys of the service below the title of the part that they are in."""
    found: dict[str, list[str]] = {}
    for key in leaves(service):
        role, _, rest = key.partition(".")
        part = rest.partition(".")[0] if role in ("engines", "prefill") and rest.count(".") else role
        title = PARTS.get(part, f"Engines that {part}").format(role=role)
        found.setdefault(title, []).append(key)
    return found
