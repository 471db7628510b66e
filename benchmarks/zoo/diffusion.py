from benchmarks.zoo.truth import Subject
def diffusers_names() -> list[str]:
    return []
def diffusers_subject(name: str) -> Subject:
    raise NotImplementedError
