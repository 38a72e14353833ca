"""Services by name ("one_server:llama_3_1_70b") from the library, or by path ("my.py:mine") from a user's own file."""

from __future__ import annotations

from contextlib import suppress

from simulator.paths import names
from simulator.serving.settings import Instances, Service
from simulator.study.batch import Part
from simulator.study.library import names_of, returned


def service_names() -> list[tuple[str, str]]:
    """(name, first line of what it is) of every service of the library, file by file in the order of the code."""
    return names_of("services")


def load_service(reference: str) -> Service:
    """The service FILE:FUNCTION, FILE being a name of the library or a path to a .py file; InputError as of
    `load_scenario`. Steps without a name have that of the service."""
    service = returned("services", reference, Service)
    named = {role: _named(instances, reference) for role in ("engines", "prefill")
             if (instances := getattr(service, role)) is not None}  # fmt: skip
    return service.model_copy(update={"name": reference, **named})


def is_service(reference: str) -> bool:
    """Whether FILE:FUNCTION is a service: of the library's files of services, or a function that returns one."""
    file = reference.rpartition(":")[0]
    if not file.endswith(".py"):
        file = file or reference
        return file in names("services") and file not in names("scenarios")
    with suppress(Exception):  # what is wrong with a file is said where it is used
        return isinstance(returned("services", reference, Part), Service)
    return False


def _named(instances: Instances, reference: str) -> Instances:
    if instances.step.name:
        return instances
    return instances.model_copy(update={"step": instances.step.variant(name=reference)})
