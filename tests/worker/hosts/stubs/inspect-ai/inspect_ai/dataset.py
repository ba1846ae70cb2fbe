from dataclasses import dataclass


@dataclass
class Sample:
    input: str
    target: str = ""
